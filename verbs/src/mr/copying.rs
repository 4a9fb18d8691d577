//! Copying to and from memory shared with other threads, other processes and devices.
//!
//! Two racing accesses must be atomic and of one size: Rust's memory model has no race of a word
//! with a part of the word. So each byte has one access size for every copy: aligned words wholly
//! inside the memory are accessed as words, also for a part of one, and the bytes before and behind
//! the words one by one.

use std::{
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

const WORD: usize = size_of::<u64>();

/// The offsets of the bytes accessed as words.
fn words(memory: NonNull<[u8]>) -> Range<usize> {
    let len = memory.len();
    let first = memory.cast::<u8>().align_offset(WORD).min(len);
    first..first + (len - first) / WORD * WORD
}

/// The parts of a copy of `len` bytes, from `offset` on: the number of bytes before the words, and
/// in the words. The rest is behind the words.
fn cut(words: &Range<usize>, offset: usize, len: usize) -> (usize, usize) {
    let before = words.start.saturating_sub(offset).min(len);
    let aligned = words.end.saturating_sub(offset + before);
    (before, aligned.min(len - before))
}

/// Copies `to.len()` bytes, from `offset` on, out of memory under concurrent writes.
///
/// # Safety
/// - The memory is readable for as long as this runs, and the bytes are inside the memory.
/// - Every other access of this process to the memory is one of this module, or an atomic access of
///   one of the aligned words.
pub(super) unsafe fn copy_out(memory: NonNull<[u8]>, offset: usize, to: &mut [u8]) {
    let (before, aligned) = cut(&words(memory), offset, to.len());
    let (first, rest) = to.split_at_mut(before);
    let (middle, last) = rest.split_at_mut(aligned);
    // SAFETY: bytes of the copy before the words.
    unsafe { bytes_out(memory, offset, first) };
    // SAFETY: bytes of the copy in words.
    unsafe { words_out(memory, offset + before, middle) };
    // SAFETY: bytes of the copy behind the words.
    unsafe { bytes_out(memory, offset + before + aligned, last) };
}

/// Copies `from` into memory under concurrent access, from `offset` on.
///
/// # Safety
/// - As for [`copy_out`], and the memory is writable.
pub(super) unsafe fn copy_in(from: &[u8], memory: NonNull<[u8]>, offset: usize) {
    let (before, aligned) = cut(&words(memory), offset, from.len());
    let (first, rest) = from.split_at(before);
    let (middle, last) = rest.split_at(aligned);
    // SAFETY: bytes of the copy before the words.
    unsafe { bytes_in(first, memory, offset) };
    // SAFETY: bytes of the copy in words.
    unsafe { words_in(middle, memory, offset + before) };
    // SAFETY: bytes of the copy behind the words.
    unsafe { bytes_in(last, memory, offset + before + aligned) };
}

/// # Safety
/// - As for [`copy_out`]; the byte lies before or behind the words.
unsafe fn byte<'m>(memory: NonNull<[u8]>, offset: usize) -> &'m AtomicU8 {
    // SAFETY: inside of the memory, as the caller promises.
    let byte = unsafe { memory.cast::<u8>().add(offset) };
    // SAFETY: valid, and accessed as an atomic byte only. A reference to an atomic is no claim on
    // the byte.
    unsafe { AtomicU8::from_ptr(byte.as_ptr()) }
}

/// The word at this offset, a multiple of 8 from the first word.
///
/// # Safety
/// - As for [`copy_out`]; the word is one of the words.
#[inline]
unsafe fn word<'m>(memory: NonNull<[u8]>, offset: usize) -> &'m AtomicU64 {
    // SAFETY: inside of the memory, as the caller promises.
    let word = unsafe { memory.cast::<u8>().add(offset) };
    // SAFETY: valid, aligned, and accessed as an atomic word only. A reference to an atomic is no
    // claim on the bytes.
    unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
}

/// # Safety
/// - As for [`copy_out`]; the bytes are before or behind the words.
unsafe fn bytes_out(memory: NonNull<[u8]>, offset: usize, to: &mut [u8]) {
    for (i, to) in to.iter_mut().enumerate() {
        // SAFETY: one of the bytes.
        *to = unsafe { byte(memory, offset + i) }.load(Relaxed);
    }
}

/// # Safety
/// - As for [`copy_in`]; the bytes are before or behind the words.
unsafe fn bytes_in(from: &[u8], memory: NonNull<[u8]>, offset: usize) {
    for (i, &from) in from.iter().enumerate() {
        // SAFETY: one of the bytes.
        unsafe { byte(memory, offset + i) }.store(from, Relaxed);
    }
}

/// The number of bytes of the word before this offset, and the number of the `len` bytes from there
/// on to complete the word: none, if a word begins here.
fn word_lead(memory: NonNull<[u8]>, offset: usize, len: usize) -> (usize, usize) {
    let lead = offset.wrapping_sub(words(memory).start) % WORD;
    (lead, ((WORD - lead) % WORD).min(len))
}

/// # Safety
/// - As for [`copy_out`]; the bytes are in words.
unsafe fn words_out(memory: NonNull<[u8]>, mut offset: usize, to: &mut [u8]) {
    let (lead, head) = word_lead(memory, offset, to.len());
    let (first, rest) = to.split_at_mut(head);
    if head > 0 {
        // SAFETY: the word around the first bytes.
        let value = unsafe { word(memory, offset - lead) }.load(Relaxed);
        first.copy_from_slice(&value.to_ne_bytes()[lead..lead + head]);
        offset += head;
    }
    let mut chunks = rest.chunks_exact_mut(WORD);
    for to in &mut chunks {
        // SAFETY: one of the words, since the bytes before were copied above.
        let value = unsafe { word(memory, offset) }.load(Relaxed);
        to.copy_from_slice(&value.to_ne_bytes());
        offset += WORD;
    }
    let last = chunks.into_remainder();
    if !last.is_empty() {
        // SAFETY: the word around the last bytes.
        let value = unsafe { word(memory, offset) }.load(Relaxed);
        last.copy_from_slice(&value.to_ne_bytes()[..last.len()]);
    }
}

/// # Safety
/// - As for [`copy_in`]; the bytes are in words.
unsafe fn words_in(from: &[u8], memory: NonNull<[u8]>, mut offset: usize) {
    let (lead, head) = word_lead(memory, offset, from.len());
    let (first, rest) = from.split_at(head);
    if head > 0 {
        // SAFETY: the word around the first bytes.
        part_in(first, unsafe { word(memory, offset - lead) }, lead);
        offset += head;
    }
    let (full_words, last) = rest.as_chunks::<WORD>();
    for from in full_words {
        // SAFETY: one of the words, since the bytes before were copied above.
        unsafe { word(memory, offset) }.store(u64::from_ne_bytes(*from), Relaxed);
        offset += WORD;
    }
    if !last.is_empty() {
        // SAFETY: the word around the last bytes.
        part_in(last, unsafe { word(memory, offset) }, 0);
    }
}

/// Writes a part of a word, in one atomic step. The other bytes keep their values, concurrent
/// writes included: the step is repeated after such a write. A device that writes through the
/// processor's caches counts as another processor.
fn part_in(from: &[u8], word: &AtomicU64, at: usize) {
    let merge = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[at..at + from.len()].copy_from_slice(from);
        Some(u64::from_ne_bytes(bytes))
    };
    // Never fails: there always is a new value.
    let _: Result<u64, u64> = word.fetch_update(Relaxed, Relaxed, merge);
}

#[cfg(test)]
mod tests {
    use std::{ptr, thread};

    use super::*;

    /// Memory of `len` bytes from `start` on, inside of an aligned array.
    fn part(array: &mut [u64; 8], start: usize, len: usize) -> NonNull<[u8]> {
        let array = NonNull::from(array).cast::<u8>();
        // SAFETY: tests ask for bytes inside of the array.
        NonNull::slice_from_raw_parts(unsafe { array.add(start) }, len)
    }

    #[test]
    fn copy_of_every_offset_and_length_stays_in_bounds() {
        let (starts, step) = if cfg!(miri) { (3, 13) } else { (WORD + 1, 1) };
        for (start, len) in (0..starts).flat_map(|start| (0..=40).map(move |len| (start, len))) {
            for offset in (0..=len).step_by(step) {
                let mut array = [0; 8];
                let memory = part(&mut array, start, len);
                let message: Vec<u8> = (1..=40).take(len - offset).collect();
                // SAFETY: the bytes are inside the memory, which has no other user.
                unsafe { copy_in(&message, memory, offset) };
                let mut back = vec![0; message.len()];
                // SAFETY: as above.
                unsafe { copy_out(memory, offset, &mut back) };
                assert_eq!(back, message, "{len} bytes at {start}, from {offset}");
                let all: Vec<u8> = array.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let range = start + offset..start + len;
                assert_eq!(all[range.clone()], message);
                let outside = all[..range.start].iter().chain(&all[range.end..]);
                assert!(
                    outside.copied().all(|byte| byte == 0),
                    "{len} at {start}, from {offset}"
                );
            }
        }
    }

    #[test]
    fn copy_ending_inside_a_word_changes_no_other_byte() {
        let mut array = [u64::MAX; 8];
        let memory = part(&mut array, 3, 50);
        for (offset, len) in [(0, 1), (4, 3), (8, 9), (20, 17), (48, 2)] {
            // SAFETY: the bytes are inside the memory, which has no other user.
            unsafe { copy_in(&vec![7; len], memory, offset) };
            let mut back = vec![0; len];
            // SAFETY: as above.
            unsafe { copy_out(memory, offset, &mut back) };
            assert_eq!(back, vec![7; len], "{len} bytes from {offset}");
        }
        let sevens = array
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .filter(|byte| *byte == 7);
        assert_eq!(sevens.count(), 1 + 3 + 9 + 17 + 2);
    }

    /// Threads write bytes of one word at the same time, and no write is lost. Miri finds accesses
    /// of different sizes.
    #[test]
    fn threads_copy_parts_of_words_at_the_same_time() {
        struct Shared(NonNull<[u8]>);
        // SAFETY: the memory is accessed by this module only.
        unsafe impl Sync for Shared {}

        let rounds = if cfg!(miri) { 20_u8 } else { 200 };
        for start in [0, 3] {
            let mut array = [0; 8];
            let array = ptr::from_mut(&mut array);
            // SAFETY: the array exists, and is not used in another way until the threads have ended.
            let memory = Shared(part(unsafe { &mut *array }, start, 61));
            thread::scope(|scope| {
                for (offset, len) in [(0, 3), (3, 1), (4, 9), (13, 20), (33, 28)] {
                    let memory = &memory;
                    scope.spawn(move || {
                        for round in 1..=rounds {
                            // SAFETY: the bytes are inside of the memory.
                            unsafe { copy_in(&vec![round; len], memory.0, offset) };
                            let mut copied = [0; 61];
                            // SAFETY: all of the memory.
                            unsafe { copy_out(memory.0, 0, &mut copied) };
                            let part = &copied[offset..offset + len];
                            assert!(part.iter().all(|byte| *byte == round), "{part:?}");
                        }
                    });
                }
            });
        }
    }
}
