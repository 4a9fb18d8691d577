//! The move of librdmacm's preload library, for peers that use that library (`RS_FORK_PEER=librdmacm`).
//!
//! The accepting side listens for an rsocket at the port of the TCP connection and sends four zero bytes; the connecting
//! side waits for these bytes and connects the rsocket, and both sides close the TCP connection. The protocol has no
//! other means to distinguish two connections of one host: only one at a time is moved at a port. The port is the lock,
//! released by the kernel when a process dies. After an offer, a connection is moved or reset.

#![forbid(unsafe_code)]

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd},
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use libc::c_int;
use rsocket::{PollEntry, PollEvents, poll};
use rsocket_capi as capi;
use rustix::{
    event::{PollFd, PollFlags},
    io::{Errno, ioctl_fionread},
    net::{RecvFlags, SendFlags, Shutdown, SocketAddrAny, getpeername, getsockname, recv, send},
};

use super::{ACCEPTED, CONNECTED, Inner, MOVING, copy_options, mark, state, twins};
use crate::{
    epoll,
    files::{borrow, replace},
    log,
    move_options::reset,
    sockets::take,
    table::SOCKETS,
};

/// Bytes announcing a listening rsocket.
const OFFER: [u8; 4] = [0; 4];

/// Timeout for the other side's part of a move.
const MOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the rsocket to connect after the end of the TCP connection.
const CONNECT_GRACE: Duration = Duration::from_secs(5);

/// Interval between attempts to bind a port in use.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Moves a connection before a wait, unless the peer must start the move and has not.
pub(crate) fn finish_setup_for_wait(fd: c_int) {
    let Some(state) = state(fd) else {
        return;
    };
    let begun = || {
        let mut some = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        borrow(fd).is_some_and(|tcp| recv(tcp, &mut some, flags).is_ok())
    };
    match state.load(SeqCst) {
        ACCEPTED | MOVING => finish_setup(fd),
        CONNECTED if begun() => finish_setup(fd),
        _ => {}
    }
}

pub(crate) fn finish_setup(fd: c_int) {
    while let Some(state) = state(fd) {
        match state.load(SeqCst) {
            // Another thread is moving the connection.
            MOVING => thread::sleep(RETRY_INTERVAL),
            side @ (ACCEPTED | CONNECTED) => {
                let began = state.compare_exchange(side, MOVING, SeqCst, SeqCst);
                if began.is_ok() {
                    move_to_rdma(fd, side);
                    return;
                }
            }
            _ => return,
        }
    }
}

fn move_to_rdma(fd: c_int, side: u8) {
    let Some(tcp) = borrow(fd) else {
        return;
    };
    if peer_of(tcp).is_err() {
        // The connection attempt is in progress or has failed.
        mark(fd, side);
        return;
    }
    let mut twins = twins(fd, tcp, side);
    for &twin in &twins {
        mark(twin, MOVING);
    }
    twins.push(fd);
    let moved = match side {
        ACCEPTED => take_over(tcp),
        _ => follow_over(tcp),
    };
    log::write_line(|| match &moved {
        Ok(_) => format!("descriptor {fd}: moved from TCP to RDMA"),
        Err(err) => format!("descriptor {fd}: stays TCP: {err}"),
    });
    if moved.as_ref().is_err_and(is_timeout) {
        // The peer may still come for the offer.
        reset(tcp);
    }
    if let Ok(Inner { rsocket, socket }) = moved
        && let Ok(shown) = capi::mirror_of(rsocket.fd())
    {
        copy_options(tcp, &socket);
        let registrations = epoll::unregister_all(&twins);
        let _: Result<(), Errno> = rustix::net::shutdown(tcp, Shutdown::Both);
        for &twin in &twins {
            if replace(shown.as_raw_fd(), twin) {
                SOCKETS.add(twin, Arc::clone(&rsocket));
            }
        }
        epoll::register_again(&registrations);
    }
    for twin in twins {
        mark(twin, 0);
    }
}

/// Converts an address, with mapped addresses as IPv4.
fn address(any: SocketAddrAny) -> io::Result<SocketAddr> {
    let address = SocketAddr::try_from(any)?;
    Ok(match address.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), address.port()),
            None => address,
        },
        IpAddr::V4(_) => address,
    })
}

fn peer_of(tcp: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    address(getpeername(tcp)?.ok_or(Errno::NOTCONN)?)
}

/// Error for a peer without RDMA, or gone.
fn stays() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// Moves the accepting side. Returns the rsocket.
fn take_over(tcp: BorrowedFd<'_>) -> io::Result<Inner> {
    let local = address(getsockname(tcp)?)?;
    let peer = peer_of(tcp)?;
    if peer.ip().is_loopback() {
        return Err(stays());
    }
    let listener = Inner::new(local)?;
    let deadline = Instant::now() + MOVE_TIMEOUT;
    loop {
        // A peer that sends data or closes does not take part.
        if ioctl_fionread(tcp)? > 0 || has_come(tcp, Some(Duration::ZERO))? {
            return Err(stays());
        }
        match listener.socket.bind(local) {
            Ok(()) => break,
            Err(err) if is_taken(&err) && Instant::now() < deadline => {
                thread::sleep(RETRY_INTERVAL)
            }
            Err(err) => return Err(err),
        }
    }
    listener.socket.listen(1)?;
    listener.socket.set_nonblocking(true);
    if send(tcp, &OFFER, SendFlags::NOSIGNAL)? != OFFER.len() {
        return Err(stays());
    }
    await_peer(&listener, tcp, peer.ip())
}

fn is_timeout(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::TimedOut
}

fn is_taken(err: &io::Error) -> bool {
    matches!(rsocket::errno(err), libc::EADDRINUSE | libc::EADDRNOTAVAIL)
}

/// Accepts the rsocket of the given peer.
fn await_peer(listener: &Inner, tcp: BorrowedFd<'_>, peer: IpAddr) -> io::Result<Inner> {
    let mut deadline = Instant::now() + MOVE_TIMEOUT;
    let mut open = true;
    loop {
        if let Some(fd) = take(listener.rsocket.fd()) {
            let accepted = Inner::of(fd)?;
            if accepted
                .socket
                .peer_addr()
                .is_ok_and(|addr| addr.ip() == peer)
            {
                return Ok(accepted);
            }
            continue;
        }
        let mut entries = vec![PollEntry::socket(&listener.socket, PollEvents::IN)];
        if open {
            entries.push(PollEntry::fd(tcp, PollEvents::IN));
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        match poll(&mut entries, Some(remaining)) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        };
        if entries.iter().all(|entry| entry.ready().is_empty()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if entries.get(1).is_some_and(|tcp| !tcp.ready().is_empty()) {
            if ioctl_fionread(tcp).is_ok_and(|waiting| waiting > 0) {
                return Err(stays());
            }
            // Either the peer is gone, or its rsocket is about to connect.
            open = false;
            deadline = deadline.min(Instant::now() + CONNECT_GRACE);
        }
    }
}

/// Moves the connecting side. Returns the rsocket.
fn follow_over(tcp: BorrowedFd<'_>) -> io::Result<Inner> {
    let local = address(getsockname(tcp)?)?;
    let peer = peer_of(tcp)?;
    if peer.ip().is_loopback() {
        return Err(stays());
    }
    let inner = Inner::new(peer)?;
    // Fails at once without an RDMA device on the route.
    inner.socket.bind(SocketAddr::new(local.ip(), 0))?;
    await_offer(tcp)?;
    if let Err(err) = inner.socket.connect(peer) {
        // The offer is not data for the program.
        let mut offer = OFFER;
        recv(tcp, &mut offer, RecvFlags::WAITALL)?;
        return Err(err);
    }
    Ok(inner)
}

/// Waits without a limit for the first bytes. Anything but an offer is data for the program.
fn await_offer(tcp: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let mut bytes = [1; OFFER.len()];
        match recv(tcp, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(_) if bytes == OFFER => return Ok(()),
            // The rest of the offer is outstanding.
            Ok((some @ 1.., _)) if bytes[..some].iter().all(|byte| *byte == 0) => {
                thread::sleep(RETRY_INTERVAL);
            }
            Ok(_) => return Err(stays()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(has_come(tcp, None)?),
            Err(err) => return Err(err.into()),
        }
    }
}

/// Whether data or the end has arrived within `timeout`.
fn has_come(tcp: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(tcp, PollFlags::IN)];
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(err) => Err(err.into()),
    }
}
