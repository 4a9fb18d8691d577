//! Datagram calls, with a fallback to UDP for peers beyond the reach of any RDMA device.

use std::{
    os::fd::AsRawFd,
    ptr, slice,
    sync::Arc,
    time::{Duration, Instant},
};

use interpose::{cross, last_errno, load, real, set_errno};
use libc::{
    c_int, c_uint, c_void, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use rsocket_capi as capi;

use crate::{
    epoll,
    files::replace,
    fork, log, loopback, passing,
    table::{Rsocket, SOCKETS},
};

/// Reason of the fallback for the log.
pub(crate) const NO_ROUTE: &str = "no RDMA device leads to the peer";

/// Whether an error means that no RDMA device leads to the address, though another interface may.
pub(crate) fn leads_elsewhere(error: c_int) -> bool {
    matches!(
        error,
        libc::ENODEV | libc::EADDRNOTAVAIL | libc::EOPNOTSUPP | libc::ENETUNREACH
    )
}

/// Replaces a datagram rsocket with its UDP socket under all descriptors of the program, bound and connected
/// as before. `why` is the reason for the log. Returns whether the replacement succeeded; always false for streams.
pub(crate) fn turn_to_udp(fd: c_int, rsocket: Arc<Rsocket>, why: &str) -> bool {
    let Some(socket) = capi::socket_of(rsocket.fd()) else {
        return false;
    };
    let Ok(udp) = socket.udp_socket() else {
        return false;
    };
    if udp.set_nonblocking(socket.is_nonblocking()).is_err() {
        return false;
    }
    let descriptors = SOCKETS.same(&rsocket);
    let registrations = epoll::unregister_all(&descriptors);
    drop((rsocket, socket));
    let moved = descriptors.iter().all(|&descriptor| {
        let replaced = replace(udp.as_raw_fd(), descriptor);
        drop(SOCKETS.remove(descriptor));
        replaced
    });
    epoll::register_again(&registrations);
    log::write_line(|| format!("descriptor {fd}: UDP from now on: {why}"));
    moved && descriptors.contains(&fd)
}

/// Whether a failed call should be repeated on the UDP socket.
fn try_again(fd: c_int, rsocket: Arc<Rsocket>, result: ssize_t) -> bool {
    let error = last_errno();
    let again = result < 0 && leads_elsewhere(error) && turn_to_udp(fd, rsocket, NO_ROUTE);
    set_errno(error);
    again
}

/// Sends by an rsocket. Returns `None` for other descriptors.
///
/// # Safety
/// As for `sendto`.
unsafe fn rsocket_sendto(
    fd: c_int,
    (buf, len, flags): (*const c_void, size_t, c_int),
    (to, to_len): (*const sockaddr, socklen_t),
) -> Option<ssize_t> {
    let rsocket = fork::sender(fd, flags)?;
    if let Some(refused) = rsocket.refusal() {
        set_errno(refused);
        return Some(-1);
    }
    // SAFETY: as the caller promises.
    let rsocket = unsafe { loopback::sender(fd, rsocket, to, to_len) }?;
    let is_datagram = capi::socket_of(rsocket.fd()).is_some_and(|socket| socket.is_datagram());
    // As for TCP, the address has no effect on a stream.
    let (to, to_len) = if is_datagram {
        (to, to_len)
    } else {
        (ptr::null(), 0)
    };
    // SAFETY: as the caller promises.
    let sent = unsafe { capi::rsendto(rsocket.fd(), buf, len, flags, to, to_len) };
    (!try_again(fd, rsocket, sent)).then_some(sent)
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    if fork::may_be_own(fd) {
        let sent = cross(true, true, || {
            // SAFETY: as the caller promises.
            unsafe { rsocket_sendto(fd, (buf, len, flags), (to, to_len)) }
        });
        if let Some(sent) = sent {
            return sent;
        }
    }
    let real = real!(
        sendto: unsafe extern "C-unwind" fn(
            c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t
        ) -> ssize_t
    );
    // SAFETY: as the caller promises.
    unsafe { real(fd, buf, len, flags, to, to_len) }
}

/// Sends by an rsocket. Returns `None` for other descriptors.
///
/// # Safety
/// As for `sendmsg`.
unsafe fn rsocket_sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> Option<ssize_t> {
    let rsocket = fork::sender(fd, flags)?;
    if let Some(refused) = rsocket.refusal() {
        set_errno(refused);
        return Some(-1);
    }
    // SAFETY: null or valid, as the caller promises.
    let rsocket = match unsafe { load(msg) } {
        // SAFETY: as the caller promises.
        Some(to) => unsafe { loopback::sender(fd, rsocket, to.msg_name.cast(), to.msg_namelen) }?,
        None => rsocket,
    };
    // SAFETY: as the caller promises.
    let sent = unsafe { capi::rsendmsg(rsocket.fd(), msg, flags) };
    (!try_again(fd, rsocket, sent)).then_some(sent)
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    if fork::may_be_own(fd) {
        // SAFETY: as the caller promises.
        let sent = cross(true, true, || unsafe { rsocket_sendmsg(fd, msg, flags) });
        if let Some(sent) = sent {
            return sent;
        }
    }
    // SAFETY: as the caller promises.
    if unsafe { passing::refuse(msg) } {
        return -1;
    }
    let real = real!(sendmsg: unsafe extern "C-unwind" fn(c_int, *const msghdr, c_int) -> ssize_t);
    // SAFETY: as the caller promises.
    unsafe { real(fd, msg, flags) }
}

/// # Safety
/// `messages` is null, or `count` entries of `messages` are readable and writable for `'a`.
unsafe fn entries<'a>(messages: *mut mmsghdr, count: c_uint) -> &'a mut [mmsghdr] {
    let count = usize::try_from(count).unwrap_or(0);
    if messages.is_null() {
        return &mut [];
    }
    // SAFETY: not null, with as many entries as the caller promises.
    unsafe { slice::from_raw_parts_mut(messages, count) }
}

/// Repeats a call for each message until a call fails or `go_on` returns false. Returns the number of
/// messages, or -1 if the first call fails.
fn for_each_message(
    messages: &mut [mmsghdr],
    mut call: impl FnMut(&mut msghdr, usize) -> ssize_t,
    mut go_on: impl FnMut() -> bool,
) -> c_int {
    let mut done = 0;
    for (index, message) in messages.iter_mut().enumerate() {
        let Ok(len) = usize::try_from(call(&mut message.msg_hdr, index)) else {
            break;
        };
        message.msg_len = c_uint::try_from(len).unwrap_or(c_uint::MAX);
        done += 1;
        if !go_on() {
            break;
        }
    }
    if done == 0 && !messages.is_empty() {
        return -1;
    }
    done
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !fork::is_own(fd) {
        let real = real!(
            sendmmsg: unsafe extern "C-unwind" fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int
        );
        // SAFETY: as the caller promises.
        return unsafe { real(fd, messages, count, flags) };
    }
    let sent = cross(true, true, || {
        // SAFETY: as the caller promises.
        let messages = unsafe { entries(messages, count) };
        // SAFETY: as the caller promises.
        let send = |message: &mut msghdr, _| unsafe { sendmsg(fd, message, flags) };
        Some(for_each_message(messages, send, || true))
    });
    sent.unwrap_or(-1)
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !fork::is_own(fd) {
        let real = real!(
            recvmmsg: unsafe extern "C-unwind" fn(
                c_int, *mut mmsghdr, c_uint, c_int, *mut timespec
            ) -> c_int
        );
        // SAFETY: as the caller promises.
        return unsafe { real(fd, messages, count, flags, timeout) };
    }
    // SAFETY: null or valid, as the caller promises.
    let time = unsafe { load(timeout) };
    // Like the kernel, checks the time after each message only, not during a wait.
    let deadline = time.and_then(|time| {
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
        let nanos = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
        Instant::now().checked_add(seconds.saturating_add(nanos))
    });
    let once = flags & libc::MSG_WAITFORONE != 0;
    let receive = |message: &mut msghdr, index| {
        let dont_wait = if once && index > 0 {
            libc::MSG_DONTWAIT
        } else {
            0
        };
        let flags = flags & !libc::MSG_WAITFORONE | dont_wait;
        // SAFETY: as the caller promises.
        unsafe { libc::recvmsg(fd, message, flags) }
    };
    let go_on = || deadline.is_none_or(|deadline| Instant::now() < deadline);
    let received = cross(true, true, || {
        // SAFETY: as the caller promises.
        let messages = unsafe { entries(messages, count) };
        Some(for_each_message(messages, receive, go_on))
    });
    received.unwrap_or(-1)
}
