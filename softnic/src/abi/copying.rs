//! Copies of the engine to and from the process' memory, beside concurrent accesses of the program.
//!
//! The engine is Rust code of the program's process, so an access of the program at the same time is a data race by the
//! rules of Rust, unless both accesses are atomic and of one size. `verbs::mr::RemoteRegion` offers such accesses: aligned
//! words inside a region as words, also for a part of one, and the bytes before and behind the words one by one. Copies
//! here follow the same rule in a region [shared](Shared) with the program. Words are stored in the order of their
//! addresses, and a load that sees a word sees the words before it.
//!
//! Other memory belongs to the device while a request has it, and is copied plainly. The rest of a word may be another
//! buffer there, so no byte beside the range is accessed.

use std::{
    ptr,
    sync::atomic::{
        AtomicU8, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use crate::engine::{HostRange, Shared};

const WORD: usize = size_of::<u64>();

/// Length in bytes of the buffer between two ranges of the process' memory, a multiple of a word. The buffer stays in the
/// first level of the cache.
const BOUNCE: usize = 1024;

/// Parts of a range: the number of bytes before the first complete word, and in complete words.
fn cut(range: HostRange) -> (usize, usize) {
    let head = ((WORD - lead(range.addr)) % WORD).min(range.len);
    (head, (range.len - head) / WORD * WORD)
}

/// Number of bytes from the start of the word to this address.
fn lead(addr: u64) -> usize {
    let [low, ..] = addr.to_le_bytes();
    usize::from(low) % WORD
}

/// Copies bytes out of a range of the same length.
///
/// # Safety
/// - The range is readable memory.
/// - Other threads only read the range, or access a shared one as stated at the top of the module.
pub(super) unsafe fn copy_out(from: HostRange, to: &mut [u8]) {
    if !from.is_shared() {
        let start = pointer(from.addr);
        // SAFETY: the range is readable, and belongs to the device. `to` belongs to the engine.
        unsafe { start.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        return;
    }
    let (head, words) = cut(from);
    let (first, rest) = to.split_at_mut(head);
    let (middle, last) = rest.split_at_mut(words);
    // SAFETY: the part of a word before the complete ones.
    unsafe { part_out(from.part(0, head), first) };
    let mut addr = from.addr + head as u64;
    for to in middle.as_chunks_mut::<WORD>().0 {
        // SAFETY: a complete word of the range.
        *to = unsafe { word(addr) }.load(Acquire).to_ne_bytes();
        addr += WORD as u64;
    }
    // SAFETY: the part of a word behind the complete ones.
    unsafe { part_out(from.part(head + words, last.len()), last) };
}

/// Copies bytes into a range of the same length.
///
/// # Safety
/// - As for [`copy_out`], and the range is writable.
pub(super) unsafe fn copy_in(from: &[u8], to: HostRange) {
    if !to.is_shared() {
        let start = pointer(to.addr);
        // SAFETY: the range is writable, and belongs to the device. `from` belongs to the engine.
        unsafe { start.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        return;
    }
    let (head, words) = cut(to);
    let (first, rest) = from.split_at(head);
    let (middle, last) = rest.split_at(words);
    // SAFETY: the part of a word before the complete ones.
    unsafe { part_in(first, to.part(0, head)) };
    let mut addr = to.addr + head as u64;
    for from in middle.as_chunks::<WORD>().0 {
        // SAFETY: a complete word of the range.
        unsafe { word(addr) }.store(u64::from_ne_bytes(*from), Release);
        addr += WORD as u64;
    }
    // SAFETY: the part of a word behind the complete ones.
    unsafe { part_in(last, to.part(head + words, last.len())) };
}

/// Copies a range to another range of the same length. The ranges may overlap.
///
/// # Safety
/// - As for [`copy_out`] and [`copy_in`].
pub(super) unsafe fn copy(from: HostRange, to: HostRange) {
    if !from.is_shared() && !to.is_shared() {
        let (source, target) = (pointer(from.addr), pointer(to.addr));
        // SAFETY: both ranges belong to the device.
        unsafe { target.copy_from(source, from.len) };
        return;
    }
    let mut bounce = [0; BOUNCE];
    let mut chunk = |offset: usize, len: usize| {
        let bytes = &mut bounce[..len];
        // SAFETY: a part of the range.
        unsafe { copy_out(from.part(offset, len), bytes) };
        // SAFETY: a part of the range.
        unsafe { copy_in(bytes, to.part(offset, len)) };
    };
    // Chunks end between words of the target, so that each word is stored in one step.
    let (head, words) = cut(to);
    let overwrites_source = to.addr > from.addr && to.addr - from.addr < from.len as u64;
    let body = (head..from.len).step_by(BOUNCE);
    let len = |offset: usize| (from.len - offset).min(BOUNCE);
    if overwrites_source {
        body.rev().for_each(|offset| chunk(offset, len(offset)));
        chunk(0, head);
    } else if lead(from.addr) == lead(to.addr) {
        chunk(0, head);
        // SAFETY: the complete words of both ranges.
        unsafe { copy_words(from.part(head, words), to.part(head, words)) };
        let end = head + words;
        chunk(end, from.len - end);
    } else {
        chunk(0, head);
        body.for_each(|offset| chunk(offset, len(offset)));
    }
}

/// Copies complete words, the first one first.
///
/// # Safety
/// - As for [`copy_out`] and [`copy_in`]; both ranges start and end between words.
unsafe fn copy_words(from: HostRange, to: HostRange) {
    // SAFETY: words of the source, which belongs to the device.
    let plain_load = |addr| unsafe { pointer(addr).cast::<u64>().read() };
    // SAFETY: words of the source, which is shared.
    let load = |addr| unsafe { word(addr) }.load(Acquire);
    // SAFETY: words of the target, which belongs to the device.
    let plain_store = |addr, value| unsafe { pointer(addr).cast::<u64>().write(value) };
    // SAFETY: words of the target, which is shared.
    let store = |addr, value| unsafe { word(addr) }.store(value, Release);
    let addrs = (0..from.len as u64)
        .step_by(WORD)
        .map(|offset| (from.addr + offset, to.addr + offset));
    match (from.is_shared(), to.is_shared()) {
        (false, _) => addrs.for_each(|(from, to)| store(to, plain_load(from))),
        (true, false) => addrs.for_each(|(from, to)| plain_store(to, load(from))),
        (true, true) => addrs.for_each(|(from, to)| store(to, load(from))),
    }
}

/// Copies out a part of one word of a shared region.
///
/// # Safety
/// - As for [`copy_out`]; the bytes are in one word.
unsafe fn part_out(from: HostRange, to: &mut [u8]) {
    if to.is_empty() {
        return;
    }
    let lead = lead(from.addr);
    let start = from.addr - lead as u64;
    if is_inside(start, from.shared) {
        // SAFETY: a word of the region.
        let word = unsafe { word(start) }.load(Acquire).to_ne_bytes();
        to.copy_from_slice(&word[lead..lead + to.len()]);
    } else {
        for (addr, to) in (from.addr..).zip(to) {
            // SAFETY: a byte of the range, and of no word of the region.
            *to = unsafe { byte(addr) }.load(Acquire);
        }
    }
}

/// Copies in a part of one word of a shared region.
///
/// # Safety
/// - As for [`copy_in`]; the bytes are in one word.
unsafe fn part_in(from: &[u8], to: HostRange) {
    if from.is_empty() {
        return;
    }
    let lead = lead(to.addr);
    let start = to.addr - lead as u64;
    if is_inside(start, to.shared) {
        let merge = |old: u64| {
            let mut word = old.to_ne_bytes();
            word[lead..lead + from.len()].copy_from_slice(from);
            Some(u64::from_ne_bytes(word))
        };
        // SAFETY: a word of the region.
        let word = unsafe { word(start) };
        // Never fails: there always is a new value.
        let _: Result<u64, u64> = word.fetch_update(Release, Relaxed, merge);
    } else {
        for (addr, from) in (to.addr..).zip(from) {
            // SAFETY: a byte of the range, and of no word of the region.
            unsafe { byte(addr) }.store(*from, Release);
        }
    }
}

/// Whether a word is wholly inside of a region.
fn is_inside(word: u64, region: Shared) -> bool {
    region.start <= word
        && word
            .checked_add(WORD as u64)
            .is_some_and(|end| end <= region.end)
}

/// # Safety
/// - The address is a word's, readable, and only accessed as stated at the top of the module.
#[inline]
unsafe fn word<'m>(addr: u64) -> &'m AtomicU64 {
    // SAFETY: the caller's promise. A reference to an atomic is no claim on the bytes.
    unsafe { AtomicU64::from_ptr(pointer(addr).cast()) }
}

/// # Safety
/// - The address is readable, and only accessed as stated at the top of the module.
unsafe fn byte<'m>(addr: u64) -> &'m AtomicU8 {
    // SAFETY: as for `word`.
    unsafe { AtomicU8::from_ptr(pointer(addr)) }
}

fn pointer(addr: u64) -> *mut u8 {
    // Addresses of this process fit.
    ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Number of bytes around the copies of a test.
    const LEN: usize = 64;

    /// Aligned memory with a different value in each byte.
    #[repr(align(8))]
    struct Bytes([u8; LEN]);

    impl Bytes {
        fn new() -> Self {
            Self(std::array::from_fn(|index| index.to_le_bytes()[0]))
        }

        /// Address of the first byte.
        fn addr(&mut self) -> u64 {
            self.0.as_mut_ptr().expose_provenance() as u64
        }

        /// A range, in a region from `region` on, or in memory of the program alone.
        fn range(&mut self, start: usize, len: usize, region: Option<usize>) -> HostRange {
            let base = self.addr();
            let shared = region.map(|start| Shared {
                start: base + start as u64,
                end: base + LEN as u64,
            });
            HostRange {
                addr: base + start as u64,
                len,
                shared: shared.unwrap_or_default(),
            }
        }
    }

    /// Starts and lengths of copies, and their regions.
    fn copies() -> impl Iterator<Item = (usize, usize, Option<usize>)> {
        let step = if cfg!(miri) { 11 } else { 1 };
        (0..=17).step_by(step).flat_map(move |start| {
            let lens = (0..=LEN - 17).step_by(step);
            lens.flat_map(move |len| {
                let regions = [None, Some(0), Some(start.min(3)), Some(start)];
                regions.map(|region| (start, len, region))
            })
        })
    }

    #[test]
    fn copy_of_every_start_and_length_changes_no_other_byte() {
        for (start, len, region) in copies() {
            let mut memory = Bytes::new();
            let range = memory.range(start, len, region);
            let mut read = vec![0; len];
            // SAFETY: memory of this test.
            unsafe { copy_out(range, &mut read) };
            assert_eq!(read, Bytes::new().0[start..start + len]);
            // SAFETY: as above.
            unsafe { copy_in(&vec![255; len], range) };
            let mut expected = Bytes::new();
            expected.0[start..start + len].fill(255);
            assert_eq!(memory.0, expected.0, "{len} bytes at {start}, {region:?}");
        }
    }

    #[test]
    fn overlapping_copies_move_the_source() {
        for (start, len, region) in copies() {
            for target in [0, 3, 8, 16] {
                let mut memory = Bytes::new();
                let from = memory.range(start, len, region);
                let to = memory.range(target, len, region.map(|_| 0));
                // SAFETY: memory of this test.
                unsafe { copy(from, to) };
                let mut expected = Bytes::new();
                expected.0.copy_within(start..start + len, target);
                assert_eq!(memory.0, expected.0, "{len} bytes from {start} to {target}");
            }
        }
    }

    #[test]
    fn copy_longer_than_the_buffer_moves_all_bytes() {
        const LONG: usize = 3 * BOUNCE + 5;
        let mut memory: Vec<u8> = (0..LONG + 20)
            .map(|index| (index % 251).to_le_bytes()[0])
            .collect();
        for (start, target) in [(0, 0), (0, 9), (9, 0), (3, 4), (4, 3), (20, 1)] {
            let mut expected = memory.clone();
            expected.copy_within(start..start + LONG, target);
            let base = memory.as_mut_ptr().expose_provenance() as u64;
            let range = |start: usize| HostRange {
                addr: base + start as u64,
                len: LONG,
                shared: Shared::default(),
            };
            // SAFETY: memory of this test.
            unsafe { copy(range(start), range(target)) };
            assert!(memory == expected, "from {start} to {target}");
        }
    }

    /// The device writes parts of words beside memory of another thread, whose accesses are not atomic. `ThreadSanitizer`
    /// and Miri find accesses beyond the range.
    #[test]
    fn bytes_beside_a_range_belong_to_other_threads() {
        let mut memory = Bytes::new();
        let range = memory.range(11, 21, None);
        let (before, after) = (memory.addr(), memory.addr() + 32);
        thread::scope(|scope| {
            scope.spawn(move || {
                // SAFETY: the other threads access the bytes before and behind.
                unsafe { copy_in(&[255; 21], range) };
                let mut read = [0; 21];
                // SAFETY: as above.
                unsafe { copy_out(range, &mut read) };
                assert_eq!(read, [255; 21]);
            });
            // SAFETY: the first bytes of the memory, which the other thread does not access.
            unsafe { pointer(before).write_bytes(1, 11) };
            // SAFETY: the last bytes of the memory, as above.
            unsafe { pointer(after).write_bytes(2, LEN - 32) };
        });
        assert_eq!((memory.0[10], memory.0[11], memory.0[31]), (1, 255, 255));
        assert_eq!(memory.0[32], 2);
    }

    /// A load that sees the last word sees all words, as on a device without relaxed ordering.
    #[test]
    fn words_become_visible_in_the_order_of_their_addresses() {
        for round in 0..if cfg!(miri) { 20 } else { 1000 } {
            let mut memory = Bytes([0; LEN]);
            let range = memory.range(1, LEN - 1, Some(0));
            let (first, last) = (memory.addr() + 8, memory.addr() + LEN as u64 - 8);
            thread::scope(|scope| {
                // SAFETY: the other thread's accesses are those of the program.
                scope.spawn(move || unsafe { copy_in(&[7; LEN - 1], range) });
                // SAFETY: a word of the region.
                while unsafe { word(last) }.load(Acquire) == 0 {
                    thread::yield_now();
                }
                // SAFETY: as above.
                let value = unsafe { word(first) }.load(Relaxed);
                assert_eq!(value, u64::from_ne_bytes([7; WORD]), "round {round}");
            });
        }
    }
}
