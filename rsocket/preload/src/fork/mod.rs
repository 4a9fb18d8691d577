//! Forking programs: connections start over TCP, and the process using one moves the connection to RDMA.
//!
//! A child cannot use RDMA resources opened by its parent, so none are opened before data is sent or received.
//! `CALLS.md` describes the move: its messages, states and promises.

#![forbid(unsafe_code)]

use std::{
    env, fs, io,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd},
    sync::{
        Arc, OnceLock, PoisonError,
        atomic::{
            AtomicBool, AtomicU8,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
    time::{Duration, Instant},
};

use interpose::{MAX_DESCRIPTORS, Table, is_owner};
use libc::c_int;
use rsocket::Socket;
use rsocket_capi as capi;
use rustix::{
    fs::{OFlags, fcntl_getfl, fstat},
    io::Errno,
    net::{Shutdown, getpeername, sockopt},
};

use crate::{
    epoll,
    files::{borrow, replace},
    inherited, log, move_options as options,
    sockets::make,
    table::{self, Rsocket, SOCKETS, adopt},
};

mod acceptor;
mod dup;
mod frame;
mod librdmacm;
mod offers;
mod rules;
#[cfg(test)]
mod simulation;
mod stream;
mod turn;

pub(crate) use dup::Dup;
pub(crate) use rules::Need;
pub(crate) use stream::{MovingStream, Names};
use stream::{Step, await_readable, skip_offer};

/// A TCP socket without a connection.
const NEW: u8 = 1;
/// An accepted connection without data so far.
const ACCEPTED: u8 = 2;
/// A connected or connecting socket without data so far.
const CONNECTED: u8 = 3;
/// A thread begins to move the connection.
const BEGINNING: u8 = 4;
/// The connection is in `MOVES`.
const MOVING: u8 = 5;
/// The connection uses TCP, and the first bytes received may be an offer.
const SKIPPING: u8 = 6;

/// State of each descriptor; 0 for unaffected ones. Read without a lock.
static STATES: [AtomicU8; MAX_DESCRIPTORS] = [const { AtomicU8::new(0) }; MAX_DESCRIPTORS];

/// Whether any descriptor has ever had a state.
static USED: AtomicBool = AtomicBool::new(false);

/// Connections during their move.
static MOVES: Table<MovingStream> = Table::new();

/// Duplicates of this library.
static INNER: Numbers = Numbers([const { AtomicBool::new(false) }; MAX_DESCRIPTORS]);

/// Pause while another thread begins a move.
const BEGIN_PAUSE: Duration = Duration::from_millis(1);

/// Default of `RS_FORK_WAIT` in seconds.
const SEND_LIMIT: u64 = 1;

/// A set of descriptors, readable without a lock.
struct Numbers([AtomicBool; MAX_DESCRIPTORS]);

impl Numbers {
    fn set(&self, fd: c_int, value: bool) {
        if let Some(flag) = usize::try_from(fd).ok().and_then(|fd| self.0.get(fd)) {
            flag.store(value, SeqCst);
        }
    }
}

/// How long a call to send waits for the peer's part of a move.
fn send_limit() -> Duration {
    static LIMIT: OnceLock<Duration> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let set = env::var("RS_FORK_WAIT").ok();
        let seconds = set.and_then(|seconds| seconds.trim().parse().ok());
        Duration::from_secs(seconds.unwrap_or(SEND_LIMIT))
    })
}

/// Whether peers use librdmacm's protocol, which distinguishes streams by their addresses alone.
fn is_for_librdmacm() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| env::var_os("RS_FORK_PEER").is_some_and(|peer| peer == "librdmacm"))
}

fn state(fd: c_int) -> Option<&'static AtomicU8> {
    let state = STATES.get(usize::try_from(fd).ok()?)?;
    (USED.load(Relaxed) && state.load(SeqCst) != 0 && is_owner()).then_some(state)
}

fn state_of(fd: c_int) -> u8 {
    state(fd).map_or(0, |state| state.load(SeqCst))
}

fn mark(fd: c_int, state: u8) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| STATES.get(fd)) {
        entry.store(state, SeqCst);
    }
}

/// Whether the host has an RDMA device.
pub(crate) fn has_device() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// Records a new TCP socket to be moved later.
pub(crate) fn record_new(fd: c_int) {
    if let Some(tcp) = borrow(fd) {
        show(fd, options::show_client(tcp));
        mark(fd, NEW);
        USED.store(true, SeqCst);
    }
}

/// Prepares a socket that is about to listen.
pub(crate) fn listening(fd: c_int) {
    if state(fd).is_some()
        && let Some(tcp) = borrow(fd)
    {
        show(fd, options::show_server(tcp));
    }
}

/// Handles a maximum segment size that the program has set on a socket without a connection.
pub(crate) fn limited(fd: c_int) {
    if state_of(fd) == NEW
        && let Some(tcp) = borrow(fd)
        && !options::show_within_limit(tcp)
    {
        mark(fd, 0);
        log::write_line(|| format!("descriptor {fd}: stays TCP: the program has set TCP_MAXSEG"));
    }
}

fn show(fd: c_int, shown: io::Result<()>) {
    if let Err(err) = shown {
        log::write_line(|| {
            format!("descriptor {fd}: stays TCP: no peer can know this library: {err}")
        });
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
    if state_of(fd) == NEW {
        mark(fd, CONNECTED);
    }
}

/// Forgets a closed descriptor.
pub(crate) fn forget(fd: c_int) {
    if let Some(state) = state(fd) {
        state.store(0, SeqCst);
        drop(MOVES.remove(fd));
    }
}

/// Copies the state to a duplicate descriptor.
pub(crate) fn follow(old: c_int, new: c_int) {
    if let Some(state) = state(old) {
        mark(new, state.load(SeqCst));
        if let Some(stream) = MOVES.find(old) {
            MOVES.add(new, stream);
        }
    }
}

/// Whether a descriptor is a TCP socket to be moved later.
pub(crate) fn is_later(fd: c_int) -> bool {
    state(fd).is_some()
}

/// Whether a connection is being moved.
pub(crate) fn is_moving(fd: c_int) -> bool {
    matches!(state_of(fd), BEGINNING | MOVING)
}

/// Whether a descriptor may be an rsocket, or may become one with the next data.
pub(crate) fn is_own(fd: c_int) -> bool {
    SOCKETS.may_have(fd) || is_later(fd)
}

/// As [`is_own`], or an rsocket of the parent process, whose use is reported.
pub(crate) fn may_be_own(fd: c_int) -> bool {
    is_own(fd) || inherited::may_have(fd)
}

/// Whether a connection was being moved when this process was forked.
pub(crate) fn was_moving(fd: c_int) -> bool {
    MOVES.may_have(fd)
}

/// Closes the duplicates of the parent in a child.
pub(crate) fn close_duplicates() {
    for (fd, inner) in (0..).zip(&INNER.0) {
        if inner.load(SeqCst) {
            inner.store(false, SeqCst);
            dup::close_inherited(fd);
        }
    }
}

/// Forgets the moves in progress in a child: they are the parent's.
pub(crate) fn forked() {
    if !USED.load(Relaxed) {
        return;
    }
    MOVES.forget_all();
    for state in &STATES {
        if matches!(state.load(SeqCst), BEGINNING | MOVING) {
            state.store(0, SeqCst);
        }
    }
}

/// Effect of a call on a descriptor.
enum Use {
    /// The call of the C library.
    Plain,
    /// The call of rsockets.
    Rsocket(Arc<Rsocket>),
    Fail(Errno),
}

/// Returns the rsocket of a descriptor before data is received, after moving the connection if necessary. The rsocket may
/// be a [refusal](Rsocket::refusal).
pub(crate) fn receiver(fd: c_int, flags: c_int) -> Option<Arc<Rsocket>> {
    find(fd, Need::Receive, flags)
}

/// As [`receiver`], before data is sent.
pub(crate) fn sender(fd: c_int, flags: c_int) -> Option<Arc<Rsocket>> {
    find(fd, Need::Send, flags)
}

fn find(fd: c_int, need: Need, flags: c_int) -> Option<Arc<Rsocket>> {
    if state(fd).is_some() {
        match settle_before(fd, need, flags) {
            Use::Plain => {}
            Use::Rsocket(rsocket) => return Some(rsocket),
            Use::Fail(errno) => return Some(Rsocket::refusing(errno.raw_os_error())),
        }
    }
    let found = table::find(fd);
    if found.is_none() {
        inherited::report(fd);
    }
    found
}

/// Goes on with the move of a connection, without blocking. Returns whether its readiness is unknown so far.
pub(crate) fn step_for_wait(fd: c_int, need: Need) -> bool {
    let Some(tcp) = state(fd).and_then(|_| borrow(fd)) else {
        return false;
    };
    if is_for_librdmacm() {
        librdmacm::finish_setup_for_wait(fd);
        return false;
    }
    match state_of(fd) {
        ACCEPTED | CONNECTED => {
            begin(fd, tcp);
        }
        SKIPPING => return !skip(fd, tcp) && need == Need::Receive,
        BEGINNING => return true,
        _ => {}
    }
    let Some(stream) = MOVES.find(fd) else {
        return false;
    };
    advance(fd, &stream, need).is_none()
}

/// Records that an event loop waits for a descriptor.
pub(crate) fn enter_loop(fd: c_int) {
    if let Some(stream) = state(fd).and_then(|_| MOVES.find(fd)) {
        stream.enter_loop();
    }
}

/// Ends a direction of a connection after its move. Returns whether the connection is being moved.
pub(crate) fn shut_later(fd: c_int, how: Shutdown) -> bool {
    let Some(stream) = state(fd).and_then(|_| MOVES.find(fd)) else {
        return false;
    };
    let mut ends = stream.ends.lock().unwrap_or_else(PoisonError::into_inner);
    ends.push(how);
    true
}

/// Skips an offer that came too late. Returns whether the next bytes are the program's.
fn skip(fd: c_int, tcp: BorrowedFd<'_>) -> bool {
    let found = skip_offer(tcp).is_some();
    if found {
        for twin in twins(fd, tcp, SKIPPING) {
            mark(twin, 0);
        }
    }
    found
}

/// Moves a connection before its use, or finds out that it stays TCP.
fn settle_before(fd: c_int, need: Need, flags: c_int) -> Use {
    let Some(tcp) = borrow(fd) else {
        return Use::Plain;
    };
    if is_for_librdmacm() {
        librdmacm::finish_setup(fd);
        return table::find(fd).map_or(Use::Plain, Use::Rsocket);
    }
    let blocks = flags & libc::MSG_DONTWAIT == 0
        && !fcntl_getfl(tcp).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
    let mut deadline = None;
    loop {
        let pause = match state_of(fd) {
            ACCEPTED | CONNECTED => {
                if !begin(fd, tcp) {
                    // The attempt is in progress or has failed: the kernel has the error.
                    return Use::Plain;
                }
                Duration::ZERO
            }
            BEGINNING => {
                thread::sleep(BEGIN_PAUSE);
                Duration::ZERO
            }
            SKIPPING if need == Need::Receive && !skip(fd, tcp) => Duration::from_secs(1),
            MOVING => {
                let Some(stream) = MOVES.find(fd) else {
                    continue;
                };
                match advance(fd, &stream, need) {
                    Some(done) => return done,
                    None => Duration::from_millis(20),
                }
            }
            _ => return table::find(fd).map_or(Use::Plain, Use::Rsocket),
        };
        if pause.is_zero() {
            continue;
        }
        if !blocks {
            // A level-triggered loop repeats the call.
            thread::yield_now();
            return Use::Fail(Errno::AGAIN);
        }
        if let Err(errno) = sleep(tcp, need, pause, &mut deadline) {
            return Use::Fail(errno);
        }
    }
}

/// Waits for the peer within the socket's own timeout.
fn sleep(
    tcp: BorrowedFd<'_>,
    need: Need,
    pause: Duration,
    deadline: &mut Option<Instant>,
) -> Result<(), Errno> {
    let which = match need {
        Need::Receive => sockopt::Timeout::Recv,
        Need::Send => sockopt::Timeout::Send,
    };
    if deadline.is_none()
        && let Ok(Some(limit)) = sockopt::socket_timeout(tcp, which)
    {
        *deadline = Instant::now().checked_add(limit);
    }
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Err(Errno::AGAIN);
    }
    await_readable(tcp, pause).map(drop)
}

/// Begins a move, or finds out that the connection stays TCP. Returns false for a connection that is not established.
fn begin(fd: c_int, tcp: BorrowedFd<'_>) -> bool {
    let side = state_of(fd);
    if !matches!(side, ACCEPTED | CONNECTED) {
        return true;
    }
    if !matches!(getpeername(tcp), Ok(Some(_))) {
        return false;
    }
    let claimed = state(fd).is_some_and(|state| {
        state
            .compare_exchange(side, BEGINNING, SeqCst, SeqCst)
            .is_ok()
    });
    if !claimed {
        return true;
    }
    let mut twins = twins(fd, tcp, side);
    for &twin in &twins {
        mark(twin, BEGINNING);
    }
    twins.push(fd);
    let (stream, otherwise) = match side {
        ACCEPTED => (MovingStream::accepting(tcp).map(Arc::new), 0),
        _ if !options::is_server_shown(tcp) => (Err(stream::not_shown()), 0),
        // An offer may come.
        _ => (MovingStream::connecting(tcp), SKIPPING),
    };
    if let Err(err) = &stream {
        log::write_line(|| format!("descriptor {fd}: stays TCP: {err}"));
    }
    for twin in twins {
        match &stream {
            Ok(stream) => {
                MOVES.add(twin, Arc::clone(stream));
                mark(twin, MOVING);
                if epoll::may_have(twin) {
                    stream.enter_loop();
                }
            }
            Err(_) => mark(twin, otherwise),
        }
    }
    true
}

/// Returns the other descriptors of the same socket in the same state.
fn twins(fd: c_int, tcp: BorrowedFd<'_>, side: u8) -> Vec<c_int> {
    let identity = |fd: BorrowedFd<'_>| fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
    let this = identity(tcp);
    (0..)
        .zip(&STATES)
        .filter(|(other, state)| {
            *other != fd
                && state.load(SeqCst) == side
                && borrow(*other).is_some_and(|other| identity(other) == this)
        })
        .map(|(other, _)| other)
        .collect()
}

/// Goes on with a move, and replaces or leaves the descriptors at its end. Returns `None` before.
fn advance(fd: c_int, stream: &Arc<MovingStream>, need: Need) -> Option<Use> {
    let mut settled = stream
        .settled
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if *settled {
        // By another thread.
        return Some(table::find(fd).map_or(Use::Plain, Use::Rsocket));
    }
    let tcp = borrow(fd)?;
    let done = match stream.step(need) {
        Step::Wait => return None,
        Step::Reset => {
            log::write_line(|| format!("descriptor {fd}: reset: the peer has not ended the move"));
            leave_tcp(stream, 0);
            Use::Fail(Errno::CONNRESET)
        }
        Step::Tcp { skips } => {
            log::write_line(|| {
                format!("descriptor {fd}: stays TCP: the peer takes no part in a move")
            });
            leave_tcp(stream, if skips { SKIPPING } else { 0 });
            let ends = stream.ends.lock().unwrap_or_else(PoisonError::into_inner);
            for &how in &*ends {
                // Fails for a connection that has ended.
                let _: Result<(), Errno> = rustix::net::shutdown(tcp, how);
            }
            Use::Plain
        }
        Step::Rdma { inner, ends_tcp } => {
            log::write_line(|| format!("descriptor {fd}: moved from TCP to RDMA"));
            match move_to_rdma(tcp, stream, inner, ends_tcp) {
                Ok(rsocket) => Use::Rsocket(rsocket),
                Err(_) => {
                    options::reset(tcp);
                    leave_tcp(stream, 0);
                    Use::Fail(Errno::CONNRESET)
                }
            }
        }
    };
    *settled = true;
    Some(done)
}

/// Ends the move of a stream that stays TCP.
fn leave_tcp(stream: &Arc<MovingStream>, state: u8) {
    for twin in MOVES.same(stream) {
        mark(twin, state);
        drop(MOVES.remove(twin));
    }
}

/// Replaces the descriptors of a stream.
fn move_to_rdma(
    tcp: BorrowedFd<'_>,
    stream: &Arc<MovingStream>,
    inner: Inner,
    ends_tcp: bool,
) -> io::Result<Arc<Rsocket>> {
    let Inner { rsocket, socket } = inner;
    let shown = capi::mirror_of(rsocket.fd())?;
    socket.set_linger(None);
    copy_options(tcp, &socket);
    rsocket.set_names(stream.names);
    if !ends_tcp {
        // An end of the TCP connection would reach an event loop of the peer before its part of the move.
        rsocket.retain_tcp(Arc::clone(stream));
    }
    for &how in &*stream.ends.lock().unwrap_or_else(PoisonError::into_inner) {
        drop(socket.shutdown(direction(how)));
    }
    let twins = MOVES.same(stream);
    let registrations = epoll::unregister_all(&twins);
    if ends_tcp {
        let _: Result<(), Errno> = rustix::net::shutdown(tcp, Shutdown::Both);
    }
    for &twin in &twins {
        if replace(shown.as_raw_fd(), twin) {
            SOCKETS.add(twin, Arc::clone(&rsocket));
        }
        // Last: until here, a call of another thread waits for the end of the replacement.
        drop(MOVES.remove(twin));
        mark(twin, 0);
    }
    epoll::register_again(&registrations);
    Ok(rsocket)
}

fn direction(how: Shutdown) -> std::net::Shutdown {
    match how {
        Shutdown::Read => std::net::Shutdown::Read,
        Shutdown::Write => std::net::Shutdown::Write,
        Shutdown::Both => std::net::Shutdown::Both,
    }
}

fn copy_options(tcp: BorrowedFd<'_>, socket: &Socket) {
    let flags = fcntl_getfl(tcp);
    let nonblocking = flags.is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
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

/// An rsocket without a descriptor of the program.
#[derive(Clone, Debug)]
pub(crate) struct Inner {
    rsocket: Arc<Rsocket>,
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
        let rsocket = adopt(fd);
        let socket = capi::socket_of(fd).ok_or(Errno::BADF)?;
        Ok(Self { rsocket, socket })
    }
}
