//! `preadv2` and `pwritev2` without a position, which are `readv` and `writev` with flags, and `splice`.

use std::{io, ptr, sync::Arc};

use interpose::{interpose, os, real, run};
use libc::{c_int, c_uint, iovec, msghdr, off_t, size_t, ssize_t};
use rsocket_capi as capi;

use crate::{
    fork,
    table::{Rsocket, with},
};

/// Flags that Linux accepts for a socket. Only `RWF_NOWAIT` has an effect; the last is `RWF_NOSIGNAL`.
const ACCEPTED: c_int = 0x3f | 0x100;

/// Returns the message and its flags, or the error of Linux for a socket.
fn message(
    pieces: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> io::Result<(msghdr, c_int)> {
    let flags = match position {
        -1 if flags & !ACCEPTED != 0 => return Err(os(libc::EOPNOTSUPP)),
        -1 if flags & libc::RWF_NOWAIT != 0 => libc::MSG_DONTWAIT,
        -1 => 0,
        0.. => return Err(os(libc::ESPIPE)),
        _ => return Err(os(libc::EINVAL)),
    };
    let message = msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: pieces.cast_mut(),
        msg_iovlen: usize::try_from(count).map_err(|_| os(libc::EINVAL))?,
        msg_control: ptr::null_mut(),
        msg_controllen: 0,
        msg_flags: 0,
    };
    Ok((message, flags))
}

/// # Safety
/// As for the function of the same name.
unsafe fn rsocket_preadv2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    run(rsocket::errno, || {
        let (mut message, flags) = message(pieces, count, position, flags)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { capi::rrecvmsg(fd, &raw mut message, flags) })
    })
}

/// # Safety
/// As for the function of the same name.
unsafe fn rsocket_pwritev2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    position: off_t,
    flags: c_int,
) -> ssize_t {
    run(rsocket::errno, || {
        let (message, flags) = message(pieces, count, position, flags)?;
        // SAFETY: as the caller promises.
        Ok(unsafe { capi::rsendmsg(fd, &raw const message, flags) })
    })
}

/// As [`fork::receiver`]; the flags of these calls are others.
fn receiver(fd: c_int) -> Option<Arc<Rsocket>> {
    fork::receiver(fd, 0)
}

/// As [`fork::sender`].
fn sender(fd: c_int) -> Option<Arc<Rsocket>> {
    fork::sender(fd, 0)
}

interpose! {
    true, fork::may_be_own, receiver, with:
    fn preadv2(
        fd: c_int, pieces: *const iovec, count: c_int, position: off_t, flags: c_int,
    ) -> ssize_t => rsocket_preadv2;
    fn preadv64v2(
        fd: c_int, pieces: *const iovec, count: c_int, position: off_t, flags: c_int,
    ) -> ssize_t => rsocket_preadv2;
}

interpose! {
    true, fork::may_be_own, sender, with:
    fn pwritev2(
        fd: c_int, pieces: *const iovec, count: c_int, position: off_t, flags: c_int,
    ) -> ssize_t => rsocket_pwritev2;
    fn pwritev64v2(
        fd: c_int, pieces: *const iovec, count: c_int, position: off_t, flags: c_int,
    ) -> ssize_t => rsocket_pwritev2;
}

/// Fails with `EINVAL` for an rsocket, as for other files without support: programs copy the data themselves then.
///
/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_position: *mut off_t,
    to: c_int,
    to_position: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if fork::is_own(from) || fork::is_own(to) {
        interpose::set_errno(libc::EINVAL);
        return -1;
    }
    let real = real!(
        splice: unsafe extern "C-unwind" fn(c_int, *mut off_t, c_int, *mut off_t, size_t, c_uint) -> ssize_t
    );
    // SAFETY: as the caller promises.
    unsafe { real(from, from_position, to, to_position, len, flags) }
}
