//! Copying to and from memory that somebody else may be using.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

const WORD: usize = size_of::<u64>();

/// How many of `len` bytes from `start` come before the first aligned word.
fn unaligned(start: NonNull<u8>, len: usize) -> usize {
    start.align_offset(WORD).min(len)
}

/// Copies `to.len()` bytes out of memory that others may be writing: whole words where they are
/// aligned, bytes at the ends.
///
/// # Safety
/// - There are `to.len()` readable bytes from `from` on, for as long as this runs, and every other
///   access of this process to them is atomic.
pub(super) unsafe fn copy_out(from: NonNull<u8>, to: &mut [u8]) {
    let head = unaligned(from, to.len());
    let (first, rest) = to.split_at_mut(head);
    let words = rest.len() / WORD * WORD;
    let (middle, last) = rest.split_at_mut(words);
    // SAFETY: the head is part of the bytes.
    unsafe { bytes_out(from, first) };
    // SAFETY: `head` is at most the number of bytes.
    let mut source = unsafe { from.add(head) };
    for word in middle.chunks_exact_mut(WORD) {
        // SAFETY: a whole word from here is readable, and aligned, since the head has been left
        // behind. The reference is to an atomic, so it is no claim on the bytes.
        let value = unsafe { AtomicU64::from_ptr(source.as_ptr().cast()) }.load(Relaxed);
        word.copy_from_slice(&value.to_ne_bytes());
        // SAFETY: the word was inside.
        source = unsafe { source.add(WORD) };
    }
    // SAFETY: what is left is the rest of the bytes.
    unsafe { bytes_out(source, last) };
}

/// Copies `from` into memory that others may be using: whole words where they are aligned, bytes at
/// the ends.
///
/// # Safety
/// - There are `from.len()` writable bytes from `to` on, for as long as this runs, and every other
///   access of this process to them is atomic.
pub(super) unsafe fn copy_in(from: &[u8], to: NonNull<u8>) {
    let head = unaligned(to, from.len());
    let (first, rest) = from.split_at(head);
    let words = rest.len() / WORD * WORD;
    let (middle, last) = rest.split_at(words);
    // SAFETY: the head is part of the bytes.
    unsafe { bytes_in(first, to) };
    // SAFETY: `head` is at most the number of bytes.
    let mut target = unsafe { to.add(head) };
    for word in middle.chunks_exact(WORD) {
        let mut value = [0; WORD];
        value.copy_from_slice(word);
        // SAFETY: a whole word from here is writable, and aligned, since the head has been left
        // behind. The reference is to an atomic, so it is no claim on the bytes.
        let slot = unsafe { AtomicU64::from_ptr(target.as_ptr().cast()) };
        slot.store(u64::from_ne_bytes(value), Relaxed);
        // SAFETY: the word was inside.
        target = unsafe { target.add(WORD) };
    }
    // SAFETY: what is left is the rest of the bytes.
    unsafe { bytes_in(last, target) };
}

/// # Safety
/// As for [`copy_out`].
unsafe fn bytes_out(from: NonNull<u8>, to: &mut [u8]) {
    for (i, byte) in to.iter_mut().enumerate() {
        // SAFETY: `i` is below the number of bytes.
        let source = unsafe { from.add(i) };
        // SAFETY: the byte is readable; the reference is to an atomic, so it is no claim on it.
        *byte = unsafe { AtomicU8::from_ptr(source.as_ptr()) }.load(Relaxed);
    }
}

/// # Safety
/// As for [`copy_in`].
unsafe fn bytes_in(from: &[u8], to: NonNull<u8>) {
    for (i, &byte) in from.iter().enumerate() {
        // SAFETY: `i` is below the number of bytes.
        let target = unsafe { to.add(i) };
        // SAFETY: the byte is writable; the reference is to an atomic, so it is no claim on it.
        unsafe { AtomicU8::from_ptr(target.as_ptr()) }.store(byte, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_and_length_is_copied_and_nothing_beside_it() {
        let mut memory = [0_u64; 8];
        for start in 0..WORD * 2 {
            for len in 0..=40 {
                let message: Vec<u8> = (1..=40).take(len).collect();
                memory.fill(0);
                let base = NonNull::from(&mut memory).cast::<u8>();
                // SAFETY: 16 + 40 bytes are inside of 64.
                let place = unsafe { base.add(start) };
                // SAFETY: the bytes are inside `memory`, which nobody else uses.
                unsafe { copy_in(&message, place) };
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { copy_out(place, &mut back) };
                assert_eq!(back, message, "{len} bytes from {start}");
                let mut whole = [0; 64];
                // SAFETY: this is all of `memory`.
                unsafe { copy_out(base, &mut whole) };
                let beside = whole[..start].iter().chain(&whole[start + len..]);
                assert!(beside.copied().all(|byte| byte == 0), "{len} from {start}");
            }
        }
    }
}
