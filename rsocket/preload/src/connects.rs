//! Connecting: by RDMA, and by TCP to a peer without an rsocket.

use std::{sync::Arc, time::Duration};

use interpose::{cross, last_errno, os, real};
use libc::{c_int, sockaddr, socklen_t};
use rsocket_capi as capi;

use crate::{
    address, attempts,
    datagrams::{NO_ROUTE, leads_elsewhere, turn_to_udp},
    fork, log, loopback,
    replacement::renew,
    sockets::{Name, failed},
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

/// The rsocket for an attempt: a new one after a failed attempt, whose error has been reported.
///
/// # Errors
/// The unreported error of the failed attempt, as with TCP.
fn retried(rsocket: Arc<Rsocket>) -> std::io::Result<Arc<Rsocket>> {
    let socket = capi::socket_of(rsocket.fd());
    let Some(socket) = socket.filter(|socket| socket.has_failed()) else {
        return Ok(rsocket);
    };
    if let Some(err) = socket.take_error() {
        return Err(err);
    }
    renew(&rsocket)
}

/// Connects by TCP in place of an attempt that has failed with the error `why`.
fn connect_by_tcp(rsocket: Arc<Rsocket>, peer: &Name, bound: Option<&Name>, why: &str) -> c_int {
    let error = last_errno();
    let socket = capi::socket_of(rsocket.fd());
    match attempts::connect_by_tcp(rsocket, peer, bound, why) {
        Ok(()) => 0,
        Err(err) => {
            // This call reports the failure.
            drop(socket.and_then(|socket| socket.take_error()));
            failed(&err.unwrap_or_else(|| os(error)))
        }
    }
}

/// Ends the connection or listener of an rsocket, as `connect` with `AF_UNSPEC` does: a reset for the peer. The descriptor becomes that
/// of an unconnected rsocket.
fn disconnect(rsocket: &Arc<Rsocket>, socket: &rsocket::Socket) -> c_int {
    socket.set_linger(Some(Duration::ZERO));
    renew(rsocket).map_or_else(|err| failed(&err), |_| 0)
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
    let rsocket = match retried(rsocket) {
        Ok(rsocket) => rsocket,
        Err(err) => return Some(failed(&err)),
    };
    let before = Name::of(&rsocket).filter(Name::has_port);
    if loopback::may_connect(&rsocket) {
        rsocket.set_bound(before.clone());
    }
    // SAFETY: as the caller promises.
    let peer = unsafe { Name::from_program(addr, len) };
    if let Some(peer) = &peer {
        attempts::keep_failure(&rsocket, peer.clone(), before.clone());
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
    let stays = match capi::socket_of(rsocket.fd()) {
        Some(socket) if socket.is_datagram() => {
            drop(socket);
            let turned = leads_elsewhere(error) && turn_to_udp(fd, rsocket, NO_ROUTE);
            return (!turned).then(|| failed(&os(error)));
        }
        socket => {
            let is_connected = socket.is_some_and(|socket| socket.is_connected());
            let going_on = [libc::EINPROGRESS, libc::EALREADY, libc::EINTR];
            is_connected || going_on.contains(&error)
        }
    };
    Some(match peer {
        Some(peer) if !stays => {
            connect_by_tcp(rsocket, &peer, before.as_ref(), &os(error).to_string())
        }
        _ => failed(&os(error)),
    })
}

/// As [`connect_by_rdma`], for any descriptor.
///
/// # Safety
/// As for `connect`.
unsafe fn rsocket_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    let rsocket = table::find(fd)?;
    if let Some(socket) = capi::socket_of(rsocket.fd())
        && !socket.is_datagram()
    {
        // SAFETY: as the caller promises.
        match unsafe { address::is_peer(socket.family(), addr, len) } {
            Ok(true) => {}
            // There is no connection to end.
            Ok(false) if loopback::may_connect(&rsocket) => return Some(0),
            Ok(false) => return Some(disconnect(&rsocket, &socket)),
            Err(err) if loopback::may_connect(&rsocket) => {
                return Some(failed(&err));
            }
            Err(_) => {}
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
