//! Memory mapped by one side and written by the other.

use std::{io, ptr::NonNull};

use libc::{c_int, c_void, off_t, size_t};

use super::memory::{ProgramMemory, bytes};
use crate::{
    errno::{os, run},
    table::{self, Mapped},
};

/// `riomap(fd, buf, len, prot, flags, offset)`—Maps memory for the peer to write to. Returns the offset for
/// the peer: `offset`, or the address for -1.
///
/// # Errors
/// - `EINVAL`: `prot` has flags besides `PROT_WRITE`, the socket is not connected, or the memory is null or
///   empty.
/// - `ENOMEM`: the peer has no room for another mapping, or the memory cannot be registered.
///
/// # Safety
/// `len` bytes of `buf` are readable and writable until [`riounmap`] or [`rclose`](super::rclose) has
/// returned, and the program expects changes at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn riomap(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    run(|| {
        let opened = table::socket(fd)?;
        let start = NonNull::new(buf.cast::<u8>());
        let start = start.filter(|_| len > 0).ok_or_else(|| os(libc::EINVAL))?;
        let is_stream = opened.socket.is_connected() && !opened.socket.is_datagram();
        if prot & !libc::PROT_WRITE != 0 || !is_stream {
            return Err(os(libc::EINVAL));
        }
        let address = off_t::try_from(start.addr().get()).map_err(|_| os(libc::EINVAL))?;
        let offset = if offset == -1 { address } else { offset };
        let name = u64::try_from(offset).map_err(|_| os(libc::EINVAL))?;
        // Atomic with `rclose`: a socket closed meanwhile has no mapping afterwards.
        opened.mappings(|mappings| {
            let buffer = if prot & libc::PROT_WRITE != 0 {
                // SAFETY: as the caller promises. The mapping is dropped by `riounmap` and `rclose`.
                let memory = unsafe { ProgramMemory::new(start, len) };
                Some(opened.socket.map_memory(memory, len, Some(name))?)
            } else {
                None
            };
            mappings.push(Mapped {
                start: start.addr().get(),
                len,
                buffer,
            });
            Ok(())
        })?;
        Ok(offset)
    })
}

/// `riounmap(fd, buf, len)`—Ends a mapping. A later write by the peer breaks the connection.
///
/// # Errors
/// - `EINVAL`: no mapping with this address and length.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn riounmap(fd: c_int, buf: *mut c_void, len: size_t) -> c_int {
    run(|| {
        let opened = table::socket(fd)?;
        opened.mappings(|mappings| {
            let found = mappings
                .iter()
                .position(|mapped| mapped.start == buf.addr() && mapped.len == len);
            drop(mappings.remove(found.ok_or_else(|| os(libc::EINVAL))?));
            Ok(())
        })?;
        Ok(0)
    })
}

/// `riowrite(fd, buf, count, offset, flags)`—Writes into a mapping of the peer at an offset. Returns the
/// number of bytes written, or `SIZE_MAX` with `errno` set.
///
/// # Safety
/// `count` bytes of `buf` are readable, without writes by other code during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn riowrite(
    fd: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    let written = run(|| {
        let opened = table::socket(fd)?;
        // SAFETY: as the caller promises.
        let piece = unsafe { bytes(buf, count) }?;
        let offset = u64::try_from(offset).map_err(|_| os(libc::EINVAL))?;
        let written = if flags & libc::MSG_DONTWAIT != 0 {
            opened.socket.try_write_at(piece, offset)?
        } else {
            opened.socket.write_at(piece, offset)?
        };
        isize::try_from(written).map_err(io::Error::other)
    });
    usize::try_from(written).unwrap_or(usize::MAX)
}
