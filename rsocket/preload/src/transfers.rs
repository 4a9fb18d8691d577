//! Calls that send and receive.

use std::ptr;

use interpose::{load, store};
use libc::{c_int, c_void, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsocket_capi as capi;

use crate::{fork, table::with};

/// Whether an rsocket is a stream, whose messages have no address for the program.
fn is_stream(fd: c_int) -> bool {
    capi::socket_of(fd).is_some_and(|socket| !socket.is_datagram())
}

/// Receives; on a stream, with an address of 0 bytes, as TCP.
///
/// # Safety
/// As for `recvfrom`.
unsafe fn rsocket_recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if !is_stream(fd) {
        // SAFETY: as the caller promises.
        return unsafe { capi::rrecvfrom(fd, buf, len, flags, from, from_len) };
    }
    // SAFETY: as the caller promises.
    let received = unsafe { capi::rrecv(fd, buf, len, flags) };
    if received >= 0 && !from.is_null() && !from_len.is_null() {
        // SAFETY: as the caller promises.
        unsafe { store(from_len, 0) };
    }
    received
}

/// As [`rsocket_recvfrom`].
///
/// # Safety
/// As for `recvmsg`.
unsafe fn rsocket_recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: valid or null, as the caller promises.
    let program = unsafe { load(msg) };
    let (Some(program), true) = (program, is_stream(fd)) else {
        // SAFETY: as the caller promises.
        return unsafe { capi::rrecvmsg(fd, msg, flags) };
    };
    let mut unnamed = msghdr {
        msg_name: ptr::null_mut(),
        msg_namelen: 0,
        ..program
    };
    // SAFETY: as the caller promises.
    let received = unsafe { capi::rrecvmsg(fd, &raw mut unnamed, flags) };
    if received >= 0 {
        let received = msghdr {
            msg_name: program.msg_name,
            ..unnamed
        };
        // SAFETY: valid, as the caller promises.
        unsafe { store(msg, received) };
    }
    received
}

interpose::messages! {
    fork::may_be_own, fork::receiver, fork::sender, with:
    recv => capi::rrecv;
    recvfrom => rsocket_recvfrom;
    recvmsg => rsocket_recvmsg;
    read => capi::rread;
    readv => capi::rreadv;
    send => capi::rsend;
    write => capi::rwrite;
    writev => capi::rwritev;
}
