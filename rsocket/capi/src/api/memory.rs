//! What C hands over by pointers.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    ptr::NonNull,
    slice,
};

use interpose::{load, store};
use libc::{c_int, c_void, iovec, sockaddr, socklen_t};
use verbs::Memory;

use crate::{address, errno::os};

fn check(len: usize, is_null: bool) -> io::Result<()> {
    if len > isize::MAX.unsigned_abs() {
        return Err(os(libc::EINVAL));
    }
    if is_null && len > 0 {
        return Err(os(libc::EFAULT));
    }
    Ok(())
}

/// Bytes to read.
///
/// # Safety
/// `len` bytes at `at`, if it is not null, are readable, and are not written for `'a`.
pub(super) unsafe fn bytes<'a>(at: *const c_void, len: usize) -> io::Result<&'a [u8]> {
    check(len, at.is_null())?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null and not too long, and the caller promises the rest. To Rust, what has come
    // from C is initialised.
    Ok(unsafe { slice::from_raw_parts(at.cast(), len) })
}

/// Bytes to write.
///
/// # Safety
/// `len` bytes at `at`, if it is not null, are readable and writable, and used by nobody else
/// for `'a`.
pub(super) unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> io::Result<&'a mut [u8]> {
    check(len, at.is_null())?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as for `bytes`, and nobody else has them.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), len) })
}

/// # Safety
/// `count` vectors at `at`, if it is not null, are readable.
unsafe fn vectors<'a>(at: *const iovec, count: usize) -> io::Result<&'a [iovec]> {
    /// `UIO_MAXIOV`
    const MOST: usize = 1024;
    if count > MOST {
        return Err(os(libc::EINVAL));
    }
    check(count, at.is_null())?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null and not too long, and the caller promises the rest.
    Ok(unsafe { slice::from_raw_parts(at, count) })
}

/// Vectors of bytes to read.
///
/// # Safety
/// As for [`vectors`], and as for [`bytes`] for each of them.
pub(super) unsafe fn gather<'a>(at: *const iovec, count: usize) -> io::Result<Vec<IoSlice<'a>>> {
    // SAFETY: as the caller promises.
    let vectors = unsafe { vectors(at, count) }?;
    vectors
        .iter()
        .map(|vector| {
            // SAFETY: as the caller promises.
            let bytes = unsafe { bytes(vector.iov_base, vector.iov_len) }?;
            Ok(IoSlice::new(bytes))
        })
        .collect()
}

/// Vectors of bytes to write.
///
/// # Safety
/// As for [`vectors`], and as for [`bytes_mut`] for each of them; none overlaps another.
pub(super) unsafe fn scatter<'a>(
    at: *const iovec,
    count: usize,
) -> io::Result<Vec<IoSliceMut<'a>>> {
    // SAFETY: as the caller promises.
    let vectors = unsafe { vectors(at, count) }?;
    vectors
        .iter()
        .map(|vector| {
            // SAFETY: as the caller promises.
            let bytes = unsafe { bytes_mut(vector.iov_base, vector.iov_len) }?;
            Ok(IoSliceMut::new(bytes))
        })
        .collect()
}

/// A number of vectors.
pub(super) fn vector_count(count: c_int) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| os(libc::EINVAL))
}

/// Reads an address.
///
/// # Safety
/// `len` bytes at `at`, if it is not null, are readable.
pub(super) unsafe fn address(at: *const sockaddr, len: socklen_t) -> io::Result<SocketAddr> {
    if at.is_null() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: as the caller promises.
    address::decode(unsafe { bytes(at.cast(), len as usize) }?)
}

/// Writes as much of `value` as fits, and how long it is.
///
/// # Safety
/// If neither is null, `len` is readable and writable, and as many bytes as it says are writable at
/// `at`.
pub(super) unsafe fn give(value: &[u8], at: *mut c_void, len: *mut socklen_t) -> io::Result<()> {
    // SAFETY: null or valid, as the caller promises.
    let room = unsafe { load(len) }.ok_or_else(|| os(libc::EFAULT))? as usize;
    let some = room.min(value.len());
    // SAFETY: as the caller promises, and it is not more than there is room for.
    let place = unsafe { bytes_mut(at, some) }?;
    place.copy_from_slice(&value[..some]);
    let full = socklen_t::try_from(value.len()).map_err(|_| os(libc::EINVAL))?;
    // SAFETY: not null, and as above.
    unsafe { store(len, full) };
    Ok(())
}

/// Writes an address, if it is asked for.
///
/// # Safety
/// As for [`give`].
pub(super) unsafe fn give_address(
    value: SocketAddr,
    at: *mut sockaddr,
    len: *mut socklen_t,
) -> io::Result<()> {
    if at.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller promises.
    unsafe { give(&interpose::encode(value), at.cast(), len) }
}

/// Memory of the program's that a peer may write to.
#[derive(Debug)]
pub(super) struct ProgramMemory {
    // INVARIANT: as `new` demands.
    range: NonNull<[u8]>,
}

// SAFETY: an address, of bytes that the caller of `new` has made promises about.
unsafe impl Send for ProgramMemory {}

impl ProgramMemory {
    /// # Safety
    /// The range is readable and writable until this is dropped, and the program expects it to
    /// change at any time.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self {
            range: NonNull::slice_from_raw_parts(start, len),
        }
    }
}

// SAFETY: the promise of `new`. Rust has no reference to it; what C does with memory that a device
// writes to is its own affair.
unsafe impl Memory for ProgramMemory {
    fn range(&mut self) -> NonNull<[u8]> {
        self.range
    }
}
