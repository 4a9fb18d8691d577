//! Forking programs: connections start over TCP, and the process using one moves the connection to RDMA.
//!
//! A child cannot use RDMA resources opened by its parent, so none are opened before data is sent or
//! received. Then the accepting side listens for an rsocket at the port of the TCP connection and sends four
//! zero bytes; the connecting side waits for these bytes and connects the rsocket, and both sides close the
//! TCP connection. rdma-core's library uses the same protocol.
//!
//! Only one process at a time can listen at a port. The port serves as the lock, released by the kernel when
//! a process dies.

#![forbid(unsafe_code)]

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicU8,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::{Duration, Instant},
};

use interpose::{MAX_DESCRIPTORS, is_owner};
use libc::c_int;
use rsocket::{PollEntry, PollEvents, Socket, poll};
use rsocket_capi as own;
use rustix::{
    event::{PollFd, PollFlags},
    fs::fstat,
    io::{Errno, ioctl_fionread},
    net::{
        RecvFlags, SendFlags, Shutdown, SocketAddrAny, getpeername, getsockname, recv, send,
        sockopt,
    },
};

use crate::{
    epoll,
    files::{borrow, replace},
    inherited, log,
    sockets::{make, take},
    table::{self, Held, SOCKETS, hold},
};

/// A TCP socket without a connection.
const NEW: u8 = 1;
/// An accepted connection without data so far.
const ACCEPTED: u8 = 2;
/// A connected or connecting socket without data so far.
const CONNECTED: u8 = 3;
/// A thread is moving the connection.
const MOVING: u8 = 4;

/// State of each descriptor; 0 for unaffected ones. Read without a lock.
static STATES: [AtomicU8; MAX_DESCRIPTORS] = [const { AtomicU8::new(0) }; MAX_DESCRIPTORS];

/// Whether any descriptor has ever had a state.
static USED: AtomicBool = AtomicBool::new(false);

/// Bytes announcing a listening rsocket.
const OFFER: [u8; 4] = [0; 4];

/// Timeout for the other side's part of a move.
const MOVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for the rsocket to connect after the end of the TCP connection.
const CONNECT_GRACE: Duration = Duration::from_secs(5);

/// Interval between attempts to bind a port in use.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

fn state(fd: c_int) -> Option<&'static AtomicU8> {
    let state = STATES.get(usize::try_from(fd).ok()?)?;
    (USED.load(Relaxed) && state.load(SeqCst) != 0 && is_owner()).then_some(state)
}

fn mark(fd: c_int, state: u8) {
    if let Some(place) = usize::try_from(fd).ok().and_then(|fd| STATES.get(fd)) {
        place.store(state, SeqCst);
    }
}

/// Whether the host has an RDMA device.
pub(crate) fn has_device() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// Records a new TCP socket to be moved later.
pub(crate) fn made(fd: c_int) {
    if fd >= 0 {
        mark(fd, NEW);
        USED.store(true, SeqCst);
    }
}

/// Records an accepted connection.
pub(crate) fn accepted(listener: c_int, fd: c_int) {
    if fd >= 0 && state(listener).is_some() {
        mark(fd, ACCEPTED);
    }
}

/// Records a connection attempt.
pub(crate) fn connecting(fd: c_int) {
    if state(fd).is_some() {
        mark(fd, CONNECTED);
    }
}

/// Forgets a closed descriptor.
pub(crate) fn forget(fd: c_int) {
    if let Some(state) = state(fd) {
        state.store(0, SeqCst);
    }
}

/// Copies the state to a duplicate descriptor.
pub(crate) fn follow(old: c_int, new: c_int) {
    if let Some(state) = state(old) {
        mark(new, state.load(SeqCst));
    }
}

/// Clears moves in progress in a child: the moving thread is the parent's.
pub(crate) fn forked() {
    if !USED.load(Relaxed) {
        return;
    }
    for state in &STATES {
        // Fails for descriptors without a move in progress.
        let _: Result<u8, u8> = state.compare_exchange(MOVING, 0, SeqCst, SeqCst);
    }
}

/// Whether a descriptor is a TCP socket to be moved later.
pub(crate) fn is_later(fd: c_int) -> bool {
    state(fd).is_some()
}

/// Whether a descriptor may be an rsocket, or may become one with the next data.
pub(crate) fn is_own(fd: c_int) -> bool {
    SOCKETS.may_have(fd) || is_later(fd)
}

/// Returns the rsocket of a descriptor before its use, after moving the connection if necessary.
pub(crate) fn find(fd: c_int) -> Option<Arc<Held>> {
    if state(fd).is_some() {
        finish_setup(fd);
    }
    let found = table::find(fd);
    if found.is_none() {
        inherited::report(fd);
    }
    found
}

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

fn finish_setup(fd: c_int) {
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
    let twins = twins(fd, tcp, side);
    let moved = match side {
        ACCEPTED => take_over(tcp),
        _ => follow_over(tcp),
    };
    log::write_line(|| match &moved {
        Ok(_) => format!("descriptor {fd}: moved from TCP to RDMA"),
        Err(err) => format!("descriptor {fd}: stays TCP: {err}"),
    });
    if let Ok(Inner { held, socket }) = moved
        && let Ok(shown) = own::mirror_of(held.fd())
    {
        copy_options(tcp, &socket);
        let left = epoll::leave(&twins);
        let _: Result<(), Errno> = rustix::net::shutdown(tcp, Shutdown::Both);
        for &twin in &twins {
            if replace(shown.as_raw_fd(), twin) {
                SOCKETS.add(twin, Arc::clone(&held));
            }
        }
        epoll::join(&left);
    }
    for twin in twins {
        mark(twin, 0);
    }
}

/// Returns all descriptors of the same socket, and marks them as moving.
fn twins(fd: c_int, tcp: BorrowedFd<'_>, side: u8) -> Vec<c_int> {
    let identity = |fd: BorrowedFd<'_>| fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
    let this = identity(tcp);
    let others = (0..).zip(&STATES).filter(|(other, state)| {
        state.load(SeqCst) == side
            && borrow(*other).is_some_and(|other| identity(other) == this)
            && state.compare_exchange(side, MOVING, SeqCst, SeqCst).is_ok()
    });
    let mut twins = vec![fd];
    twins.extend(others.map(|(other, _)| other));
    twins
}

fn copy_options(tcp: BorrowedFd<'_>, socket: &Socket) {
    let flags = rustix::fs::fcntl_getfl(tcp);
    let nonblocking = flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
    socket.set_nonblocking(nonblocking);
    socket.set_no_delay(sockopt::tcp_nodelay(tcp).unwrap_or(false));
    if let Ok(idle) = sockopt::tcp_keepidle(tcp) {
        drop(socket.set_keep_idle(idle));
    }
    if let Ok(interval) = sockopt::tcp_keepintvl(tcp) {
        drop(socket.set_keep_interval(interval));
    }
    if let Ok(count) = sockopt::tcp_keepcnt(tcp) {
        drop(socket.set_keep_count(count));
    }
    let user_timeout = sockopt::tcp_user_timeout(tcp).ok();
    socket.set_user_timeout(user_timeout.map(|millis| Duration::from_millis(millis.into())));
    socket.set_keep_alive(sockopt::socket_keepalive(tcp).unwrap_or(false));
    if let Ok(Some(linger)) = sockopt::socket_linger(tcp) {
        socket.set_linger(Some(linger));
    }
    let timeout = |which| sockopt::socket_timeout(tcp, which).ok().flatten();
    socket.set_read_timeout(timeout(sockopt::Timeout::Recv));
    socket.set_write_timeout(timeout(sockopt::Timeout::Send));
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

/// An rsocket without a descriptor of the program.
struct Inner {
    held: Arc<Held>,
    socket: Arc<Socket>,
}

impl Inner {
    /// Creates an rsocket for the family of an address.
    fn new(like: SocketAddr) -> io::Result<Self> {
        let domain = match like {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        };
        let fd = make(domain, libc::SOCK_STREAM, 0).ok_or_else(io::Error::last_os_error)?;
        Self::of(fd)
    }

    fn of(fd: c_int) -> io::Result<Self> {
        let held = hold(fd);
        let socket = own::socket_of(fd).ok_or(Errno::BADF)?;
        Ok(Self { held, socket })
    }
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

fn is_taken(err: &io::Error) -> bool {
    matches!(rsocket::errno(err), libc::EADDRINUSE | libc::EADDRNOTAVAIL)
}

/// Accepts the rsocket of the given peer.
fn await_peer(listener: &Inner, tcp: BorrowedFd<'_>, peer: IpAddr) -> io::Result<Inner> {
    let mut deadline = Instant::now() + MOVE_TIMEOUT;
    let mut open = true;
    loop {
        if let Some(fd) = take(listener.held.fd()) {
            let taken = Inner::of(fd)?;
            if taken.socket.peer_addr().is_ok_and(|addr| addr.ip() == peer) {
                return Ok(taken);
            }
            continue;
        }
        let mut entries = vec![PollEntry::socket(&listener.socket, PollEvents::IN)];
        if open {
            entries.push(PollEntry::fd(tcp, PollEvents::IN));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut entries, Some(left)) {
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
