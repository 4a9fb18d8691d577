//! Conversion of C pointers to slices. A pointer without the memory that the call needs is an error, as for the kernel.

use std::{
    io::{self, IoSlice, IoSliceMut},
    ptr, slice,
    sync::OnceLock,
};

use interpose::{load, os, store};
use libc::{c_int, c_void, iovec, socklen_t};
use smallvec::SmallVec;

/// Inline capacity of lists of buffers; longer lists are on the heap.
const INLINE_IOVECS: usize = 4;

/// Access that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// `madvise(2)`—Has the kernel prepare pages for an access, which changes no byte. Returns whether it can.
fn prepares(start: usize, len: usize, access: Access) -> bool {
    let advice = match access {
        Access::Read => libc::MADV_POPULATE_READ,
        Access::Write => libc::MADV_POPULATE_WRITE,
    };
    let start = ptr::without_provenance_mut::<c_void>(start);
    loop {
        // SAFETY: the advice changes no byte and no mapping, at any address.
        if unsafe { libc::madvise(start, len, advice) } == 0 {
            return true;
        }
        match interpose::last_errno() {
            libc::EINTR | libc::EAGAIN => {}
            _ => return false,
        }
    }
}

/// Size of a page; 0 on a kernel without the advice, before Linux 5.14.
fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: numbers only.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let size = usize::try_from(size).unwrap_or(4096);
        let on_stack = (&raw const size).addr();
        match prepares(on_stack & !(size - 1), size, Access::Write) {
            true => size,
            false => 0,
        }
    })
}

/// Fails, as the kernel's copies do, unless the program may access `len` bytes at `at`.
///
/// # Errors
/// - `EFAULT`
fn check(at: *const c_void, len: usize, access: Access) -> io::Result<()> {
    let end = at.addr().checked_add(len);
    let Some(end) = end.filter(|_| !at.is_null() && isize::try_from(len).is_ok()) else {
        return Err(os(libc::EFAULT));
    };
    let size = page_size();
    if size == 0 {
        return Ok(());
    }
    let start = at.addr() & !(size - 1);
    match prepares(start, end - start, access) {
        true => Ok(()),
        false => Err(os(libc::EFAULT)),
    }
}

/// The value at `at`, of any alignment.
///
/// # Errors
/// - `EFAULT`
///
/// # Safety
/// The value at `at`, if accessible, is not written during the call.
pub(crate) unsafe fn value<T: Copy>(at: *const T) -> io::Result<T> {
    check(at.cast(), size_of::<T>(), Access::Read)?;
    // SAFETY: accessible, and not written, guaranteed by the caller.
    unsafe { load(at) }.ok_or_else(|| os(libc::EFAULT))
}

/// Fails unless a value can be stored at `at`.
///
/// # Errors
/// - `EFAULT`
pub(crate) fn check_place<T>(at: *const T) -> io::Result<()> {
    check(at.cast(), size_of::<T>(), Access::Write)
}

/// Fails unless an address can be [given](write_out) at `at`, before a call that cannot be undone.
///
/// # Errors
/// - `EFAULT`, or `EINVAL` for a negative length.
///
/// # Safety
/// As for [`value`], of the length.
pub(crate) unsafe fn check_room(at: *const c_void, len: *const socklen_t) -> io::Result<()> {
    // SAFETY: guaranteed by the caller.
    let capacity = unsafe { value(len) }?;
    let capacity = c_int::try_from(capacity).map_err(|_| os(libc::EINVAL))?;
    check_place(len)?;
    match usize::try_from(capacity).unwrap_or(0) {
        0 => Ok(()),
        capacity => check(at, capacity.min(MAX_NAME), Access::Write),
    }
}

/// Bytes of the longest address.
const MAX_NAME: usize = size_of::<libc::sockaddr_in6>();

/// A slice of the program's memory; empty if `len` is 0.
///
/// # Safety
/// The bytes at `at`, if accessible, are unmodified for `'a`.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, len: usize) -> io::Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    check(at, len, Access::Read)?;
    // SAFETY: accessible, and unmodified as guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(at.cast(), len) })
}

/// A mutable slice of the program's memory; empty if `len` is 0.
///
/// # Safety
/// The bytes at `at`, if accessible, are not used otherwise for `'a`.
pub(crate) unsafe fn bytes_mut<'a>(at: *mut c_void, len: usize) -> io::Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(at, len, Access::Write)?;
    // SAFETY: accessible, and not used otherwise as guaranteed by the caller.
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
    check(at.cast(), size_of::<iovec>() * count, Access::Read)?;
    // SAFETY: accessible, and unmodified as guaranteed by the caller.
    Ok(unsafe { slice::from_raw_parts(at, count) })
}

/// Fails for a length that is negative for the kernel.
///
/// # Errors
/// - `EINVAL`
fn check_len(entry: &iovec) -> io::Result<()> {
    match isize::try_from(entry.iov_len) {
        Ok(_) => Ok(()),
        Err(_) => Err(os(libc::EINVAL)),
    }
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
        check_len(entry)?;
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
        check_len(entry)?;
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
pub(crate) unsafe fn write_out(
    value: &[u8],
    at: *mut c_void,
    len: *mut socklen_t,
) -> io::Result<()> {
    if len.is_null() && at.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let capacity = unsafe { self::value(len) }?;
    check_place(len)?;
    let capacity = usize::try_from(capacity).unwrap_or(0).min(value.len());
    // SAFETY: writable, guaranteed by the caller.
    let out = unsafe { bytes_mut(at, capacity) }?;
    out.copy_from_slice(&value[..capacity]);
    let full = socklen_t::try_from(value.len()).unwrap_or(socklen_t::MAX);
    // SAFETY: not null, and valid, guaranteed by the caller.
    unsafe { store(len, full) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pages: readable and writable, readable, and neither.
    struct Pages(*mut c_void);

    impl Pages {
        const SIZE: usize = 1 << 16;

        fn new() -> Self {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping.
            let at = unsafe { libc::mmap(ptr::null_mut(), 3 * Self::SIZE, all, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            let pages = Self(at);
            for (number, access) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
                // SAFETY: within the mapping, and unused.
                let set = unsafe { libc::mprotect(pages.page(number), Self::SIZE, access) };
                assert_eq!(set, 0);
            }
            pages
        }

        fn page(&self, number: usize) -> *mut c_void {
            self.0.wrapping_byte_add(number * Self::SIZE)
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the mapping of `new`.
            unsafe { libc::munmap(self.0, 3 * Self::SIZE) };
        }
    }

    fn errno<T>(result: io::Result<T>) -> Option<c_int> {
        result.err().and_then(|err| err.raw_os_error())
    }

    #[test]
    fn memory_without_the_access_is_efault_and_unchanged() {
        assert_ne!(page_size(), 0, "the kernel has the advice since Linux 5.14");
        let pages = Pages::new();
        let last = Pages::SIZE - 1;
        let bad = Some(libc::EFAULT);
        for (number, at, len, readable, writable) in [
            (0, 0, 8, None, None),
            (0, last, 1, None, None),
            (0, last, 2, None, bad),
            (1, 5, 8, None, bad),
            (1, last, 2, bad, bad),
            (2, 0, 1, bad, bad),
        ] {
            let at = pages.page(number).wrapping_byte_add(at);
            // SAFETY: not used otherwise.
            let read = unsafe { bytes(at, len) }.map(|_| ());
            // SAFETY: not used otherwise.
            let write = unsafe { bytes_mut(at, len) }.map(|_| ());
            let found = (errno(read), errno(write));
            assert_eq!(found, (readable, writable), "{number}, {len}");
        }
        for at in [ptr::null_mut(), ptr::without_provenance_mut(1 << 62)] {
            // SAFETY: no memory is there.
            assert_eq!(errno(unsafe { bytes(at, 1) }), bad);
            // SAFETY: no memory is there.
            assert_eq!(errno(unsafe { bytes(at, usize::MAX) }), bad);
            // SAFETY: no memory is there.
            assert_eq!(errno(unsafe { value::<socklen_t>(at.cast()) }), bad);
        }
        // A piece in the list, and the list itself.
        let piece = |iov_base| iovec {
            iov_base,
            iov_len: 4,
        };
        let pieces = [piece(pages.page(0)), piece(pages.page(2))];
        // SAFETY: not used otherwise.
        assert_eq!(errno(unsafe { gather(pieces.as_ptr(), 1) }), None);
        // SAFETY: not used otherwise.
        assert_eq!(errno(unsafe { gather(pieces.as_ptr(), 2) }), bad);
        // SAFETY: not used otherwise.
        assert_eq!(errno(unsafe { scatter(pages.page(2).cast(), 1) }), bad);
        // A negative length, wherever the piece is.
        for iov_base in [pages.page(0), pages.page(2)] {
            let piece = iovec {
                iov_base,
                iov_len: usize::MAX,
            };
            // SAFETY: not used otherwise.
            let of_gather = errno(unsafe { gather(&raw const piece, 1) });
            // SAFETY: not used otherwise.
            let of_scatter = errno(unsafe { scatter(&raw const piece, 1) });
            assert_eq!(
                (of_gather, of_scatter),
                (Some(libc::EINVAL), Some(libc::EINVAL))
            );
        }
        // An address that cannot be given leaves the length.
        let mut len: socklen_t = 4;
        // SAFETY: not used otherwise.
        let stored = unsafe { write_out(&[1, 2, 3, 4], pages.page(1), &raw mut len) };
        assert_eq!((errno(stored), len), (bad, 4));
    }
}
