//! Connecting: by RDMA, and by TCP to a peer without an rsocket.

use std::sync::Arc;

use interpose::{cross, last_errno, os, real};
use libc::{c_int, sockaddr, socklen_t};
use rsocket_capi as capi;

use crate::{
    address, attempts,
    datagrams::{NO_ROUTE, leads_elsewhere, turn_to_udp},
    fork, log, loopback,
    sockets::{Name, failed, turn_to_tcp},
    table::{self, Rsocket, SOCKETS},
};

/// # Safety
/// As for `connect`.
unsafe fn real_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let real =
        real!(connect: unsafe extern "C-unwind" fn(c_int, *const sockaddr, socklen_t) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(fd, addr, len) }
}

/// Connects a socket of the kernel, without blocking if it is nonblocking.
pub(crate) fn connect_to(fd: c_int, peer: &Name) -> std::io::Result<()> {
    // SAFETY: the name has this length.
    match unsafe { real_connect(fd, peer.as_ptr(), peer.len()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Connects an rsocket. Returns `None` if the socket fell back to TCP or UDP and is not connected yet.
///
/// # Safety
/// As for `connect`.
unsafe fn connect_by_rdma(
    fd: c_int,
    rsocket: Arc<Rsocket>,
    addr: *const sockaddr,
    len: socklen_t,
) -> Option<c_int> {
    if capi::socket_of(rsocket.fd()).is_some_and(|socket| socket.is_listening()) {
        return Some(failed(&os(libc::EISCONN)));
    }
    let before = Name::of(&rsocket).filter(Name::has_port);
    // SAFETY: as the caller promises.
    if let Some(peer) = unsafe { Name::from_program(addr, len) } {
        attempts::keep_failure(&rsocket, peer, before.clone());
    }
    // SAFETY: as the caller promises.
    let connected = unsafe { capi::connect_once(rsocket.fd(), addr, len) };
    if connected == 0 {
        log::write_line(|| format!("descriptor {fd}: connected by RDMA"));
        return Some(0);
    }
    let error = last_errno();
    if error != libc::EINPROGRESS && table::find(fd).is_none() {
        // TCP has connected during a call that has waited.
        return None;
    }
    let turned = match capi::socket_of(rsocket.fd()) {
        Some(socket) if socket.is_datagram() => {
            drop(socket);
            leads_elsewhere(error) && turn_to_udp(fd, rsocket, NO_ROUTE)
        }
        socket => {
            // `AF_UNSPEC` disconnects.
            let is_connected = socket.is_some_and(|socket| socket.is_connected());
            let stays = matches!(
                error,
                libc::EINPROGRESS | libc::EALREADY | libc::EISCONN | libc::EINTR | libc::EFAULT
            ) || is_connected && error != libc::EAFNOSUPPORT;
            let why = || os(error).to_string();
            !stays && turn_to_tcp(fd, rsocket, before.as_ref(), &why()).is_ok()
        }
    };
    (!turned).then(|| failed(&os(error)))
}

/// As [`connect_by_rdma`], for any descriptor.
///
/// # Safety
/// As for `connect`.
unsafe fn rsocket_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    let rsocket = table::find(fd)?;
    if let Some(socket) = capi::socket_of(rsocket.fd())
        && !socket.is_datagram()
        && loopback::may_connect(&rsocket)
    {
        // SAFETY: as the caller promises.
        match unsafe { address::is_peer(socket.family(), addr, len) } {
            Ok(true) => {}
            // There is no connection to end.
            Ok(false) => return Some(0),
            Err(err) => return Some(failed(&err)),
        }
    }
    // SAFETY: as the caller promises.
    if unsafe { loopback::is_peer(addr, len) } && loopback::may_connect(&rsocket) {
        let moved = loopback::leave_rdma(fd, rsocket);
        return moved.err().map(|err| failed(&err));
    }
    // SAFETY: as the caller promises.
    unsafe { connect_by_rdma(fd, rsocket, addr, len) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if SOCKETS.may_have(fd) {
        // SAFETY: as the caller promises.
        let done = cross(true, true, || unsafe { rsocket_connect(fd, addr, len) });
        if let Some(done) = done {
            return done;
        }
    }
    // SAFETY: as the caller promises.
    let connected = unsafe { real_connect(fd, addr, len) };
    if connected == 0 || matches!(last_errno(), libc::EINPROGRESS | libc::EINTR) {
        fork::connecting(fd);
    }
    connected
}
