//! Conversion of C pointers to slices.

use std::{
    io::{self, IoSlice, IoSliceMut},
    slice,
};

use interpose::{load, os, store};
use libc::{c_void, iovec, socklen_t};
use smallvec::SmallVec;

/// Inline capacity of lists of buffers; longer lists are on the heap.
const INLINE_IOVECS: usize = 4;

/// A slice of the program's memory; empty if `len` is 0.
///
/// # Safety
/// `at` is null, or points to `len` readable bytes, unmodified for `'a`.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, len: usize) -> io::Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: not null, and valid as guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(at.cast(), len) })
}

/// A mutable slice of the program's memory; empty if `len` is 0.
///
/// # Safety
/// `at` is null, or points to `len` writable bytes, not used otherwise for `'a`.
pub(crate) unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> io::Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: not null, and valid as guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), len) })
}

/// The entries of an `iovec` array.
///
/// # Safety
/// `at` is null, or points to `count` readable entries.
unsafe fn entries<'a>(at: *const iovec, count: usize) -> io::Result<&'a [iovec]> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > 1024 {
        return Err(os(libc::EMSGSIZE));
    }
    if at.is_null() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: not null, and valid as guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(at, count) })
}

/// The buffers of an `iovec` array.
///
/// # Safety
/// As for [`bytes`], for each of `count` entries.
pub(crate) unsafe fn gather<'a>(
    at: *const iovec,
    count: usize,
) -> io::Result<SmallVec<[IoSlice<'a>; INLINE_IOVECS]>> {
    // SAFETY: guaranteed by the caller.
    let entries = unsafe { entries(at, count) }?;
    let mut pieces = SmallVec::new();
    for entry in entries {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { bytes(entry.iov_base, entry.iov_len) }?;
        pieces.push(IoSlice::new(bytes));
    }
    Ok(pieces)
}

/// The mutable buffers of an `iovec` array.
///
/// # Safety
/// As for [`bytes_mut`], for each of `count` entries, without overlap.
pub(crate) unsafe fn scatter<'a>(
    at: *const iovec,
    count: usize,
) -> io::Result<SmallVec<[IoSliceMut<'a>; INLINE_IOVECS]>> {
    // SAFETY: guaranteed by the caller.
    let entries = unsafe { entries(at, count) }?;
    let mut pieces = SmallVec::new();
    for entry in entries {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { bytes_mut(entry.iov_base, entry.iov_len) }?;
        pieces.push(IoSliceMut::new(bytes));
    }
    Ok(pieces)
}

/// Copies `value`, truncated to the room, and stores its full length.
///
/// # Safety
/// `len` is null or valid, and `at` is null or points to `len` writable bytes.
pub(crate) unsafe fn give(value: &[u8], at: *mut c_void, len: *mut socklen_t) -> io::Result<()> {
    // SAFETY: null or valid, guaranteed by the caller.
    let Some(room) = (unsafe { load(len) }) else {
        return if at.is_null() {
            Ok(())
        } else {
            Err(os(libc::EFAULT))
        };
    };
    let room = usize::try_from(room).unwrap_or(0).min(value.len());
    // SAFETY: writable, guaranteed by the caller.
    let place = unsafe { bytes_mut(at, room) }?;
    place.copy_from_slice(&value[..room]);
    let full = socklen_t::try_from(value.len()).unwrap_or(socklen_t::MAX);
    // SAFETY: not null, and valid, guaranteed by the caller.
    unsafe { store(len, full) };
    Ok(())
}
