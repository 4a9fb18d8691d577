//! The stack of a call: unwinding costs as much as a post for each frame, so that stacks are remembered.

use std::{cell::RefCell, ptr, sync::Arc};

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 24;

/// Maximum number of remembered stacks of a thread.
const MAX_KNOWN: usize = 64;

/// A stack of this thread, as found by unwinding.
#[derive(Debug)]
struct Known {
    /// Address of a variable of [`stack`] at that time.
    base: usize,
    /// Places of return addresses, from the frame of [`stack`] on, with the addresses in them.
    returns: Vec<(usize, usize)>,
    frames: Arc<[usize]>,
}

thread_local! {
    static KNOWN: RefCell<Vec<Known>> = const { RefCell::new(Vec::new()) };
}

impl Known {
    /// Whether the current stack has the same return addresses at the same places.
    fn is_current(&self, base: usize) -> bool {
        self.base == base
            && self
                .returns
                .iter()
                .all(|(place, address)| word(*place) == *address)
    }
}

/// The word at a place of this thread's stack, above the current frame.
fn word(place: usize) -> usize {
    let place: *const usize = ptr::with_exposed_provenance(place);
    // SAFETY: an aligned place in a frame of this thread. The caller has found the frame by unwinding, or all return addresses
    // below as at that time: then the frames below are those of that time, and the place is in the next one.
    unsafe { place.read_volatile() }
}

/// Addresses of the calls of this stack, the innermost one first, up to the first for which `is_last` holds.
#[inline(never)]
pub(crate) fn stack(is_last: impl Fn(usize) -> bool) -> Arc<[usize]> {
    let variable = 0_u8;
    let base = (&raw const variable).expose_provenance();
    let find = |known: &RefCell<Vec<Known>>| {
        let known = known.borrow();
        let found = known.iter().find(|known| known.is_current(base));
        found.map(|found| Arc::clone(&found.frames))
    };
    if let Ok(Some(found)) = KNOWN.try_with(find) {
        return found;
    }
    let known = unwind(base, is_last);
    let frames = Arc::clone(&known.frames);
    if !known.returns.is_empty() {
        // Without the thread's values, at its end, nothing is remembered.
        let _remembered = KNOWN.try_with(|all| {
            let mut all = all.borrow_mut();
            if all.len() >= MAX_KNOWN {
                all.remove(0);
            }
            all.push(known);
        });
    }
    frames
}

/// Finds the stack by unwinding. Without return addresses at the places of x86-64, none is listed.
fn unwind(base: usize, is_last: impl Fn(usize) -> bool) -> Known {
    let mut frames = Vec::with_capacity(MAX_FRAMES);
    let (mut returns, mut is_plain) = (Vec::new(), cfg!(target_arch = "x86_64"));
    backtrace::trace(|frame| {
        let return_address = frame.ip().addr();
        let place = frame
            .sp()
            .expose_provenance()
            .wrapping_sub(size_of::<usize>());
        is_plain &= !frame.sp().is_null();
        if is_plain && place > base {
            is_plain = place.is_multiple_of(align_of::<usize>()) && word(place) == return_address;
            returns.push((place, return_address));
        }
        // The call before the return address.
        let address = return_address.saturating_sub(1);
        frames.push(address);
        frames.len() < MAX_FRAMES && !is_last(address)
    });
    if !is_plain {
        returns.clear();
    }
    Known {
        base,
        returns,
        frames: frames.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn inner() -> Arc<[usize]> {
        stack(|_| false)
    }

    #[inline(never)]
    fn first() -> (Arc<[usize]>, u8) {
        (inner(), 1)
    }

    #[inline(never)]
    fn second() -> (Arc<[usize]>, u8) {
        (inner(), 2)
    }

    /// The two callers have frames of one size, so that the stacks differ in return addresses only.
    #[test]
    fn stacks_of_two_callers_differ_and_are_remembered() {
        let all: Vec<_> = (0..4).map(|_| (first().0, second().0)).collect();
        for (by_first, by_second) in &all {
            assert_ne!(by_first, by_second);
            assert_eq!(by_first.len(), by_second.len());
        }
        let (first, second) = (&all[1], &all[2]);
        assert_eq!(first, second);
        if cfg!(all(target_arch = "x86_64", not(miri))) {
            assert!(Arc::ptr_eq(&first.0, &second.0), "the stack is remembered");
        }
    }
}
