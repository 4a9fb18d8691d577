//! What C hands over by pointers.

use std::{
    io::{self, IoSlice, IoSliceMut},
    slice,
};

use interpose::os;
use libc::{c_void, iovec, socklen_t};
use smallvec::SmallVec;

/// So many places need no memory of their own.
const FEW: usize = 4;

/// Bytes that a program has; none at no address.
///
/// # Safety
/// `len` bytes at `at`, if that is not null, are readable for `'a`, and nobody writes them.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, len: usize) -> io::Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: not null, and as many as the caller promises.
    Ok(unsafe { slice::from_raw_parts(at.cast(), len) })
}

/// The same for bytes that are written.
///
/// # Safety
/// `len` bytes at `at`, if that is not null, are writable for `'a`, and nobody else uses them.
pub(crate) unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> io::Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: not null, and as many as the caller promises.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), len) })
}

/// The entries of a list of places.
///
/// # Safety
/// `count` entries at `at`, if that is not null, are readable for `'a`.
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
    // SAFETY: not null, and as many as the caller promises.
    Ok(unsafe { slice::from_raw_parts(at, count) })
}

/// Bytes in several places.
///
/// # Safety
/// As for [`bytes`], for each of `count` entries.
pub(crate) unsafe fn gather<'a>(
    at: *const iovec,
    count: usize,
) -> io::Result<SmallVec<[IoSlice<'a>; FEW]>> {
    // SAFETY: as the caller promises.
    let entries = unsafe { entries(at, count) }?;
    let mut pieces = SmallVec::new();
    for entry in entries {
        // SAFETY: as the caller promises.
        let bytes = unsafe { bytes(entry.iov_base, entry.iov_len) }?;
        pieces.push(IoSlice::new(bytes));
    }
    Ok(pieces)
}

/// The same for bytes that are written.
///
/// # Safety
/// As for [`bytes_mut`], for each of `count` entries, which do not overlap.
pub(crate) unsafe fn scatter<'a>(
    at: *const iovec,
    count: usize,
) -> io::Result<SmallVec<[IoSliceMut<'a>; FEW]>> {
    // SAFETY: as the caller promises.
    let entries = unsafe { entries(at, count) }?;
    let mut pieces = SmallVec::new();
    for entry in entries {
        // SAFETY: as the caller promises.
        let bytes = unsafe { bytes_mut(entry.iov_base, entry.iov_len) }?;
        pieces.push(IoSliceMut::new(bytes));
    }
    Ok(pieces)
}

/// Writes as much of `value` as there is room for, and how long it is.
///
/// # Safety
/// `len` is null or valid, and `at` has as many bytes as it says, or is null.
pub(crate) unsafe fn give(value: &[u8], at: *mut c_void, len: *mut socklen_t) -> io::Result<()> {
    // SAFETY: null or valid, as the caller promises.
    let Some(len) = (unsafe { len.as_mut() }) else {
        return if at.is_null() {
            Ok(())
        } else {
            Err(os(libc::EFAULT))
        };
    };
    let room = usize::try_from(*len).unwrap_or(0).min(value.len());
    // SAFETY: so much is writable, as the caller promises.
    let place = unsafe { bytes_mut(at, room) }?;
    place.copy_from_slice(&value[..room]);
    *len = socklen_t::try_from(value.len()).unwrap_or(socklen_t::MAX);
    Ok(())
}
