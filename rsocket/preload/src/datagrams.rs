//! Datagrams for those that no RDMA device leads to.

use std::{os::fd::AsRawFd, sync::Arc};

use interpose::{last_errno, real, set_errno};
use libc::{c_int, c_void, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket_capi as own;

use crate::{
    epoll,
    files::replace,
    inherited, log,
    table::{self, Held, SOCKETS},
};

/// Whether an error says that no RDMA device leads there, though something else may.
pub(crate) fn leads_elsewhere(error: c_int) -> bool {
    matches!(
        error,
        libc::ENODEV | libc::EADDRNOTAVAIL | libc::EOPNOTSUPP | libc::ENETUNREACH
    )
}

/// Makes the program's descriptors of a socket for datagrams stand for the UDP socket behind it, as
/// it is bound and connected. Returns whether it has worked; it does not for streams.
pub(crate) fn turn_to_udp(fd: c_int, held: Arc<Held>) -> bool {
    let Some(socket) = own::socket_of(held.fd()) else {
        return false;
    };
    let Ok(udp) = socket.udp_socket() else {
        return false;
    };
    if udp.set_nonblocking(socket.is_nonblocking()).is_err() {
        return false;
    }
    let known = SOCKETS.same(&held);
    let left = epoll::leave(&known);
    drop((held, socket));
    let moved = known.iter().all(|&known| {
        let replaced = replace(udp.as_raw_fd(), known);
        drop(SOCKETS.remove(known));
        replaced
    });
    epoll::join(&left);
    log::say(|| format!("descriptor {fd}: UDP from now on, as no RDMA device leads to the peer"));
    moved && known.contains(&fd)
}

/// Whether a call that has failed is to be tried on what was there before.
fn try_again(fd: c_int, held: Arc<Held>, result: ssize_t) -> bool {
    let error = last_errno();
    let again = result < 0 && leads_elsewhere(error) && turn_to_udp(fd, held);
    set_errno(error);
    again
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    inherited::tell(fd);
    if let Some(held) = table::find(fd) {
        // SAFETY: as the caller promises.
        let sent = unsafe { own::rsendto(held.fd(), buf, len, flags, to, to_len) };
        if !try_again(fd, held, sent) {
            return sent;
        }
    }
    let real = real!(
        sendto: unsafe extern "C" fn(
            c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t
        ) -> ssize_t
    );
    // SAFETY: as the caller promises.
    unsafe { real(fd, buf, len, flags, to, to_len) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    inherited::tell(fd);
    if let Some(held) = table::find(fd) {
        // SAFETY: as the caller promises.
        let sent = unsafe { own::rsendmsg(held.fd(), msg, flags) };
        if !try_again(fd, held, sent) {
            return sent;
        }
    }
    let real = real!(sendmsg: unsafe extern "C" fn(c_int, *const msghdr, c_int) -> ssize_t);
    // SAFETY: as the caller promises.
    unsafe { real(fd, msg, flags) }
}
