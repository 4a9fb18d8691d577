//! Programs that fork: connections begin over TCP, and are moved by the process that uses them.
//!
//! A child cannot use what its parent has opened on an RDMA device, so until there is something to
//! be sent or received, nothing is. Then the side that has accepted listens for an rsocket at the
//! port of the TCP connection, and says so by four zero bytes; the side that has connected waits for
//! these, connects the rsocket, and both end the TCP connection. rdma-core's library does the same.
//!
//! One process at a time can listen at a port. That is all the lock there is, and the kernel gives
//! it back when a process dies.

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

/// A TCP socket that has no connection.
const NEW: u8 = 1;
/// It has been accepted, and nothing has gone over it yet.
const ACCEPTED: u8 = 2;
/// It has been connected, or is about to be, and nothing has gone over it yet.
const CONNECTED: u8 = 3;
/// A thread is moving it.
const MOVING: u8 = 4;

/// What each descriptor is; 0 for those that need nothing. Looking takes no lock.
static STATES: [AtomicU8; MAX_DESCRIPTORS] = [const { AtomicU8::new(0) }; MAX_DESCRIPTORS];

/// Whether there has been any at all.
static USED: AtomicBool = AtomicBool::new(false);

/// What says that an rsocket can be connected.
const OFFER: [u8; 4] = [0; 4];

/// How long the other side may take to do its part, once this one has begun.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long an rsocket may take to come after its TCP connection has ended.
const GRACE: Duration = Duration::from_secs(5);

/// How often a port that is taken is tried.
const PAUSE: Duration = Duration::from_millis(2);

fn state(fd: c_int) -> Option<&'static AtomicU8> {
    let state = STATES.get(usize::try_from(fd).ok()?)?;
    (USED.load(Relaxed) && state.load(SeqCst) != 0 && is_owner()).then_some(state)
}

fn mark(fd: c_int, state: u8) {
    if let Some(place) = usize::try_from(fd).ok().and_then(|fd| STATES.get(fd)) {
        place.store(state, SeqCst);
    }
}

/// Whether there can be RDMA at all.
pub(crate) fn has_device() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// A TCP socket has been made that is to be an rsocket.
pub(crate) fn made(fd: c_int) {
    if fd >= 0 {
        mark(fd, NEW);
        USED.store(true, SeqCst);
    }
}

/// A connection has been taken from a listener.
pub(crate) fn accepted(listener: c_int, fd: c_int) {
    if fd >= 0 && state(listener).is_some() {
        mark(fd, ACCEPTED);
    }
}

/// A socket is being connected.
pub(crate) fn connecting(fd: c_int) {
    if state(fd).is_some() {
        mark(fd, CONNECTED);
    }
}

/// A descriptor has been closed.
pub(crate) fn forget(fd: c_int) {
    if let Some(state) = state(fd) {
        state.store(0, SeqCst);
    }
}

/// A descriptor has got a twin.
pub(crate) fn follow(old: c_int, new: c_int) {
    if let Some(state) = state(old) {
        mark(new, state.load(SeqCst));
    }
}

/// What a thread of the parent's was moving is not a child's.
pub(crate) fn forked() {
    if !USED.load(Relaxed) {
        return;
    }
    for state in &STATES {
        // It fails where there is nothing to be done.
        let _: Result<u8, u8> = state.compare_exchange(MOVING, 0, SeqCst, SeqCst);
    }
}

/// Whether a descriptor is TCP's as long as nothing goes over it.
pub(crate) fn is_later(fd: c_int) -> bool {
    state(fd).is_some()
}

/// The rsocket of a descriptor that is about to be used, after it has been moved if it is to be.
pub(crate) fn find(fd: c_int) -> Option<Arc<Held>> {
    if state(fd).is_some() {
        settle(fd);
    }
    let found = table::find(fd);
    if found.is_none() {
        inherited::tell(fd);
    }
    found
}

/// Moves what is about to be waited for, unless that is for the peer to begin and it has not.
pub(crate) fn settle_to_wait(fd: c_int) {
    let Some(state) = state(fd) else {
        return;
    };
    let begun = || {
        let mut some = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        borrow(fd).is_some_and(|tcp| recv(tcp, &mut some, flags).is_ok())
    };
    match state.load(SeqCst) {
        ACCEPTED | MOVING => settle(fd),
        CONNECTED if begun() => settle(fd),
        _ => {}
    }
}

fn settle(fd: c_int) {
    while let Some(state) = state(fd) {
        match state.load(SeqCst) {
            // Another thread is at it.
            MOVING => thread::sleep(PAUSE),
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
        // It is being connected yet, or has failed to.
        mark(fd, side);
        return;
    }
    let twins = twins(fd, tcp, side);
    let moved = match side {
        ACCEPTED => take_over(tcp),
        _ => follow_over(tcp),
    };
    log::say(|| match &moved {
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

/// All descriptors of the same socket, which from now on are being moved.
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

/// An address, as IPv4 if it stands for one.
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

/// An rsocket that the program does not know yet.
struct Inner {
    held: Arc<Held>,
    socket: Arc<Socket>,
}

impl Inner {
    /// One for addresses like this one.
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

/// The peer does without RDMA, or is gone.
fn stays() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}

/// The side that has accepted; returns the rsocket.
fn take_over(tcp: BorrowedFd<'_>) -> io::Result<Inner> {
    let local = address(getsockname(tcp)?)?;
    let peer = peer_of(tcp)?;
    let listener = Inner::new(local)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // A peer that sends something, or ends it, has not waited.
        if ioctl_fionread(tcp)? > 0 || has_come(tcp, Some(Duration::ZERO))? {
            return Err(stays());
        }
        match listener.socket.bind(local) {
            Ok(()) => break,
            Err(err) if is_taken(&err) && Instant::now() < deadline => thread::sleep(PAUSE),
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

/// Takes the connection of that peer.
fn await_peer(listener: &Inner, tcp: BorrowedFd<'_>, peer: IpAddr) -> io::Result<Inner> {
    let mut deadline = Instant::now() + PATIENCE;
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
            // Either it has gone, or its rsocket is about to come.
            open = false;
            deadline = deadline.min(Instant::now() + GRACE);
        }
    }
}

/// The side that has connected; returns the rsocket.
fn follow_over(tcp: BorrowedFd<'_>) -> io::Result<Inner> {
    let local = address(getsockname(tcp)?)?;
    let peer = peer_of(tcp)?;
    let inner = Inner::new(peer)?;
    // Where the way there begins at no RDMA device, nobody is waited for.
    inner.socket.bind(SocketAddr::new(local.ip(), 0))?;
    await_offer(tcp)?;
    if let Err(err) = inner.socket.connect(peer) {
        // What was for us is not for the program.
        let mut offer = OFFER;
        recv(tcp, &mut offer, RecvFlags::WAITALL)?;
        return Err(err);
    }
    Ok(inner)
}

/// Waits for the first bytes, however long they take. Anything but an offer is the program's.
fn await_offer(tcp: BorrowedFd<'_>) -> io::Result<()> {
    loop {
        let mut bytes = [1; OFFER.len()];
        match recv(tcp, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(_) if bytes == OFFER => return Ok(()),
            // The rest is to come.
            Ok((some @ 1.., _)) if bytes[..some].iter().all(|byte| *byte == 0) => {
                thread::sleep(PAUSE);
            }
            Ok(_) => return Err(stays()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => drop(has_come(tcp, None)?),
            Err(err) => return Err(err.into()),
        }
    }
}

/// Whether there is something to receive, or the end, after waiting so long.
fn has_come(tcp: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(tcp, PollFlags::IN)];
    let timeout = timeout.and_then(|timeout| timeout.try_into().ok());
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(err) => Err(err.into()),
    }
}
