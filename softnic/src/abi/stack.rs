//! The stack of a call: unwinding costs as much as a post for each frame, so that stacks are remembered.

use std::{cell::RefCell, ptr, sync::Arc};

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 24;

/// Maximum number of remembered stacks of a thread.
const MAX_REMEMBERED: usize = 64;

/// A stack of this thread, as found by unwinding.
#[derive(Debug)]
struct RememberedStack {
    /// Address of a variable of [`stack`] at that time.
    base: usize,
    /// Slots of return addresses, from the frame of [`stack`] on, with the addresses in them.
    returns: Vec<(usize, usize)>,
    frames: Arc<[usize]>,
}

thread_local! {
    static REMEMBERED: RefCell<Vec<RememberedStack>> = const { RefCell::new(Vec::new()) };
}

impl RememberedStack {
    /// Whether the current stack has the same return addresses at the same slots.
    fn is_current(&self, base: usize) -> bool {
        self.base == base
            && self
                .returns
                .iter()
                .all(|(slot, address)| word(*slot) == *address)
    }
}

/// The word at a slot of this thread's stack, above the current frame.
fn word(slot: usize) -> usize {
    let slot: *const usize = ptr::with_exposed_provenance(slot);
    // SAFETY: an aligned slot in a frame of this thread. The caller has found the frame by unwinding, or all return addresses
    // below as at that time: then the frames below are those of that time, and the slot is in the next one.
    unsafe { slot.read_volatile() }
}

/// Addresses of the calls of this stack, the innermost one first, up to the first for which `is_last` holds.
#[inline(never)]
pub(crate) fn stack(is_last: impl Fn(usize) -> bool) -> Arc<[usize]> {
    let variable = 0_u8;
    let base = (&raw const variable).expose_provenance();
    let find = |stacks: &RefCell<Vec<RememberedStack>>| {
        let stacks = stacks.borrow();
        let found = stacks.iter().find(|stack| stack.is_current(base));
        found.map(|found| Arc::clone(&found.frames))
    };
    if let Ok(Some(found)) = REMEMBERED.try_with(find) {
        return found;
    }
    let unwound = unwind(base, is_last);
    let frames = Arc::clone(&unwound.frames);
    if !unwound.returns.is_empty() {
        // Without the thread's values, at its end, nothing is remembered.
        let _remembered = REMEMBERED.try_with(|all| {
            let mut all = all.borrow_mut();
            if all.len() >= MAX_REMEMBERED {
                all.remove(0);
            }
            all.push(unwound);
        });
    }
    frames
}

/// Finds the stack by unwinding. Without return addresses at the slots of x86-64, none is listed.
fn unwind(base: usize, is_last: impl Fn(usize) -> bool) -> RememberedStack {
    let mut frames = Vec::with_capacity(MAX_FRAMES);
    let (mut returns, mut is_plain) = (Vec::new(), cfg!(target_arch = "x86_64"));
    backtrace::trace(|frame| {
        let return_address = frame.ip().addr();
        let slot = frame
            .sp()
            .expose_provenance()
            .wrapping_sub(size_of::<usize>());
        is_plain &= !frame.sp().is_null();
        if is_plain && slot > base {
            is_plain = slot.is_multiple_of(align_of::<usize>()) && word(slot) == return_address;
            returns.push((slot, return_address));
        }
        // The call before the return address.
        let address = return_address.saturating_sub(1);
        frames.push(address);
        frames.len() < MAX_FRAMES && !is_last(address)
    });
    if !is_plain {
        returns.clear();
    }
    RememberedStack {
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
