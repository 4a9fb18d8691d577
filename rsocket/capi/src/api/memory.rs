//! Memory passed by C as pointers.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::SocketAddr,
    ptr::NonNull,
    slice,
};

use interpose::{load, store};
use libc::{c_int, c_void, iovec, sockaddr, socklen_t};
use verbs::mr::Memory;

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

/// Borrows bytes for reading.
///
/// # Safety
/// `at` is null, or `len` bytes at `at` are readable and not written for `'a`.
pub(super) unsafe fn bytes<'a>(at: *const c_void, len: usize) -> io::Result<&'a [u8]> {
    check(len, at.is_null())?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null and not too long, and the caller promises the rest. Memory from C counts as
    // initialised in Rust.
    Ok(unsafe { slice::from_raw_parts(at.cast(), len) })
}

/// Borrows bytes for writing.
///
/// # Safety
/// `at` is null, or `len` bytes at `at` are readable and writable, without access by other code for `'a`.
pub(super) unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> io::Result<&'a mut [u8]> {
    check(len, at.is_null())?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: as for `bytes`, without other access.
    Ok(unsafe { slice::from_raw_parts_mut(at.cast(), len) })
}

/// # Safety
/// `at` is null, or `count` vectors at `at` are readable.
unsafe fn vectors<'a>(at: *const iovec, count: usize) -> io::Result<&'a [iovec]> {
    /// `UIO_MAXIOV`
    const MAX_SEGMENTS: usize = 1024;
    if count > MAX_SEGMENTS {
        return Err(os(libc::EINVAL));
    }
    check(count, at.is_null())?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null and not too long, and the caller promises the rest.
    Ok(unsafe { slice::from_raw_parts(at, count) })
}

/// Number of bytes in vectors.
///
/// # Safety
/// As for [`vectors`].
pub(super) unsafe fn total_len(at: *const iovec, count: usize) -> io::Result<usize> {
    // SAFETY: as the caller promises.
    let vectors = unsafe { vectors(at, count) }?;
    let lens = vectors.iter().map(|vector| vector.iov_len);
    Ok(lens.fold(0, usize::saturating_add))
}

/// Borrows vectors of bytes for reading.
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

/// Borrows vectors of bytes for writing.
///
/// # Safety
/// As for [`vectors`], and as for [`bytes_mut`] for each of them, without overlap.
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

/// Converts a number of vectors.
pub(super) fn vector_count(count: c_int) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| os(libc::EINVAL))
}

/// Converts a length, negative for the kernel above `INT_MAX`.
///
/// # Errors
/// - `EINVAL`: a negative number.
pub(super) fn checked_len(len: socklen_t) -> io::Result<usize> {
    c_int::try_from(len)
        .ok()
        .and_then(|len| usize::try_from(len).ok())
        .ok_or_else(|| os(libc::EINVAL))
}

/// Decodes an address.
///
/// # Safety
/// `at` is null, or `len` bytes at `at` are readable.
pub(super) unsafe fn address(at: *const sockaddr, len: socklen_t) -> io::Result<SocketAddr> {
    if at.is_null() {
        return Err(os(libc::EFAULT));
    }
    // SAFETY: as the caller promises.
    address::decode(unsafe { bytes(at.cast(), checked_len(len)?) }?)
}

/// Copies `value`, truncated to the buffer, and stores its full length.
///
/// # Safety
/// `len` is null, or readable and writable. `at` is null, or `*len` bytes at `at` are writable.
pub(super) unsafe fn write_out(
    value: &[u8],
    at: *mut c_void,
    len: *mut socklen_t,
) -> io::Result<()> {
    // SAFETY: null or valid, as the caller promises.
    let capacity = unsafe { load(len) }.ok_or_else(|| os(libc::EFAULT))? as usize;
    let some = capacity.min(value.len());
    // SAFETY: as the caller promises, and `some` is within the room.
    let buffer = unsafe { bytes_mut(at, some) }?;
    buffer.copy_from_slice(&value[..some]);
    let full = socklen_t::try_from(value.len()).map_err(|_| os(libc::EINVAL))?;
    // SAFETY: not null, and as above.
    unsafe { store(len, full) };
    Ok(())
}

/// Stores an address, unless `at` is null.
///
/// # Safety
/// As for [`write_out`], unless `at` is null.
pub(super) unsafe fn write_address(
    value: SocketAddr,
    at: *mut sockaddr,
    len: *mut socklen_t,
) -> io::Result<()> {
    if at.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller promises.
    unsafe { write_out(&interpose::encode(value), at.cast(), len) }
}

/// Memory of the program, writable by a peer.
#[derive(Debug)]
pub(super) struct ProgramMemory {
    // INVARIANT: as `new` demands.
    range: NonNull<[u8]>,
}

// SAFETY: an address only; the caller of `new` has promised access to the bytes.
unsafe impl Send for ProgramMemory {}

impl ProgramMemory {
    /// # Safety
    /// The range is readable and writable until this is dropped, and the program expects changes at any time.
    pub(super) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self {
            range: NonNull::slice_from_raw_parts(start, len),
        }
    }
}

// SAFETY: the promise of `new`. No Rust reference to the memory exists; concurrent access by C and the device
// is the program's responsibility.
unsafe impl Memory for ProgramMemory {
    fn range(&mut self) -> NonNull<[u8]> {
        self.range
    }

    /// Soft-iWARP may access the memory after the end of the mapping, as with librdmacm: the C program uses it again at its
    /// own risk.
    fn frees_pages(&self) -> bool {
        true
    }
}
