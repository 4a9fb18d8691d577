//! `ioctl` on RDS sockets: the type of service, nonblocking mode, and the bytes queued.

use std::io;

use interpose::{os, real};
use libc::{c_int, c_ulong, c_void};

use crate::{
    memory::bytes_mut,
    options::int,
    table::{SocketEntry, find, with},
};

/// `SIOCRDSSETTOS` and `SIOCRDSGETTOS`.
const SET_TOS: c_ulong = 0x89e0;
const GET_TOS: c_ulong = 0x89e1;

/// # Safety
/// `arg` fits the request.
unsafe fn ioctl_on(entry: &SocketEntry, request: c_ulong, arg: *mut c_void) -> io::Result<c_int> {
    let socket = &entry.socket;
    let size = match request {
        SET_TOS | GET_TOS => 1,
        libc::FIONBIO | libc::FIONREAD | libc::TIOCOUTQ => size_of::<c_int>(),
        _ => return Err(os(libc::ENOTTY)),
    };
    // SAFETY: readable and writable, guaranteed by the caller.
    let arg = unsafe { bytes_mut(arg, size) }?;
    match request {
        SET_TOS if !entry.settings().bound => return Err(os(libc::ENOTTY)),
        SET_TOS => socket.set_tos(arg[0])?,
        GET_TOS => arg[0] = socket.tos(),
        libc::FIONBIO => {
            let nonblocking = int(arg)? != 0;
            entry.settings().nonblocking = nonblocking;
            socket.set_nonblocking(nonblocking);
        }
        _ => {
            let (sent, received) = socket.queued()?;
            let bytes = if request == libc::FIONREAD {
                received
            } else {
                sent
            };
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            arg.copy_from_slice(&bytes.to_ne_bytes());
        }
    }
    Ok(0)
}

/// # Safety
/// As for `ioctl(2)`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if let Some(entry) = find(fd) {
        // SAFETY: as the caller promises.
        return with(&entry, |entry| unsafe { ioctl_on(entry, request, arg) });
    }
    let real = real!(ioctl: unsafe extern "C-unwind" fn(c_int, c_ulong, ...) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(fd, request, arg) }
}
