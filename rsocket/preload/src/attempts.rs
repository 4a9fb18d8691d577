//! Attempts that TCP takes over.
//!
//! Only a connected TCP socket replaces the rsocket: after a failure of both, the program's next attempt begins with RDMA again.
//! A call whose attempt fails at once, or that blocks, connects by TCP itself. The failure of an RDMA attempt in the background is kept from the program. A thread of this library connects a TCP socket
//! without a number that the program knows. Once it is connected, the program's descriptor is writable, and the next call replaces the
//! rsocket: only calls of the program change its descriptors. `CALLS.md` has the states.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd, BorrowedFd},
    process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use interpose::os;
use rsocket::{PollEntry, PollEvents};
use rsocket_capi as capi;
use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    net::sockopt,
};
use verbs::{fd::InternalFd, panics::survive};

use crate::{
    connects::connect_to,
    files::borrow,
    fork::Dup,
    log,
    replacement::replace_all,
    sockets::{Name, real_bind, real_stream},
    table::Rsocket,
};

/// Number of events of a turn.
const MAX_EVENTS: usize = 32;

/// Pause after a failure of the kernel.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// Token of the eventfd.
const WAKE: u64 = 0;

/// The TCP socket of an rsocket whose attempt has failed.
#[derive(Debug, Default)]
pub(crate) struct Substitute {
    tcp: Mutex<Option<Dup>>,
    is_connected: AtomicBool,
}

impl Substitute {
    fn lock(&self) -> MutexGuard<'_, Option<Dup>> {
        lock(&self.tcp)
    }

    /// Whether the program's next call is one of the TCP socket.
    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(SeqCst)
    }
}

/// A failed RDMA attempt.
struct FailedAttempt {
    rsocket: Weak<Rsocket>,
    peer: Name,
    bound: Option<Name>,
}

/// The thread that connects by TCP.
struct Follower {
    epoll: InternalFd,
    wake: InternalFd,
    failed: Mutex<Vec<FailedAttempt>>,
    /// Rsockets by their tokens.
    followed: Mutex<BTreeMap<u64, Weak<Rsocket>>>,
}

/// The follower, with the process that it belongs to.
static FOLLOWER: Mutex<Option<(u32, Arc<Follower>)>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has TCP take over the next attempt of a nonblocking rsocket, if it fails. Without a thread for this, the program gets the failure.
pub(crate) fn keep_failure(rsocket: &Arc<Rsocket>, peer: Name, bound: Option<Name>) {
    let Some(socket) = capi::socket_of(rsocket.fd()) else {
        return;
    };
    let begins = socket.is_nonblocking() && !socket.is_datagram();
    if !begins || socket.is_connecting() || socket.is_connected() {
        return;
    }
    let Ok(follower) = Follower::of_process() else {
        return;
    };
    let failed = FailedAttempt {
        rsocket: Arc::downgrade(rsocket),
        peer,
        bound,
    };
    socket.keep_failure(move || follower.push(failed));
}

/// Replaces an rsocket with its connected TCP socket.
pub(crate) fn take_over(rsocket: Arc<Rsocket>) {
    let of_another = Arc::clone(&rsocket);
    // Locked during the replacement: another thread waits for its end.
    let mut substitute = of_another.substitute().lock();
    let Some(tcp) = substitute.take() else { return };
    let Ok(tcp) = tcp.get() else { return };
    if let Some((_, follower)) = &*lock(&FOLLOWER) {
        // Fails for a socket whose last event was delivered.
        let _: rustix::io::Result<()> = epoll::delete(&follower.epoll, tcp);
    }
    set_flags(&rsocket, tcp);
    rsocket.options().set_on(tcp.as_raw_fd());
    replace_all(tcp.as_raw_fd(), rsocket, "no rsocket listens at the peer");
}

/// Sets the mode of the rsocket.
fn set_flags(rsocket: &Rsocket, tcp: BorrowedFd<'_>) {
    let is_nonblocking =
        capi::socket_of(rsocket.fd()).is_some_and(|socket| socket.is_nonblocking());
    if let Ok(mut flags) = fcntl_getfl(tcp) {
        flags.set(OFlags::NONBLOCK, is_nonblocking);
        // Fails for no open descriptor.
        let _: rustix::io::Result<()> = fcntl_setfl(tcp, flags);
    }
}

/// Begins to connect by TCP.
///
/// # Errors
/// With the error of `connect`, or without an error if there can be no such socket.
fn begin_by_tcp(
    rsocket: &Rsocket,
    peer: &Name,
    bound: Option<&Name>,
) -> Result<Dup, Option<io::Error>> {
    let fd = real_stream(peer.family(), libc::SOCK_NONBLOCK);
    let Some(tcp) = borrow(fd) else {
        return Err(None);
    };
    let duplicate = Dup::new(tcp);
    crate::files::close_inner(fd);
    let duplicate = duplicate.map_err(|_| None)?;
    let number = duplicate.get().map_err(|_| None)?.as_raw_fd();
    rsocket.options().set_on(number);
    if let Some(bound) = bound
        && real_bind(number, bound.as_ptr(), bound.len()) != 0
    {
        return Err(None);
    }
    match connect_to(number, peer) {
        Err(err) if err.raw_os_error() != Some(libc::EINPROGRESS) => Err(Some(err)),
        _ => Ok(duplicate),
    }
}

/// Connects by TCP in a call whose attempt by RDMA has failed for the reason `why`, and replaces the rsocket. Blocks unless the
/// rsocket is nonblocking.
///
/// # Errors
/// - `EINPROGRESS`: the rsocket is nonblocking; `Interrupted`: a signal interrupted the wait. The attempt continues, of the TCP
///   socket.
/// - Of the attempt by TCP, or none if there can be no such socket. The descriptor stays an rsocket.
pub(crate) fn connect_by_tcp(
    rsocket: Arc<Rsocket>,
    peer: &Name,
    bound: Option<&Name>,
    why: &str,
) -> Result<(), Option<io::Error>> {
    let tcp = begin_by_tcp(&rsocket, peer, bound)?;
    let tcp = tcp.get().map_err(|_| None)?;
    let waited = match capi::socket_of(rsocket.fd()) {
        Some(socket) if socket.is_nonblocking() => Err(os(libc::EINPROGRESS)),
        _ => rsocket::poll(&mut [PollEntry::fd(tcp, PollEvents::OUT)], None),
    };
    if waited.is_ok()
        && let Ok(Err(errno)) = sockopt::socket_error(tcp)
    {
        return Err(Some(os(errno.raw_os_error())));
    }
    set_flags(&rsocket, tcp);
    replace_all(tcp.as_raw_fd(), rsocket, why);
    waited.map(drop).map_err(Some)
}

impl Follower {
    /// Returns the follower of this process, started by the first nonblocking attempt.
    fn of_process() -> io::Result<Arc<Self>> {
        let mut current = lock(&FOLLOWER);
        if let Some((process, follower)) = &*current
            && *process == process::id()
        {
            return Ok(Arc::clone(follower));
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let follower = Arc::new(Self {
            epoll: verbs::fd::raised(epoll::create(epoll::CreateFlags::CLOEXEC)?),
            wake: verbs::fd::raised(eventfd(0, flags)?),
            failed: Mutex::default(),
            followed: Mutex::default(),
        });
        let data = epoll::EventData::new_u64(WAKE);
        epoll::add(&follower.epoll, &follower.wake, data, epoll::EventFlags::IN)?;
        let run = Arc::clone(&follower);
        verbs::signals::spawn_without_signals("rsocket-tcp", move || {
            loop {
                run.turn();
            }
        })?;
        // The parent's descriptors are its own.
        let before = current.replace((process::id(), Arc::clone(&follower)));
        let _parents = std::mem::ManuallyDrop::new(before);
        Ok(follower)
    }

    fn push(&self, failed: FailedAttempt) {
        lock(&self.failed).push(failed);
        // Fails only if the thread is being woken already.
        let _: rustix::io::Result<usize> = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// A panic ends the work for one rsocket.
    fn turn(&self) {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, buffer, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(err) => {
                log::write_line(|| format!("waiting for TCP connections failed: {err}"));
                thread::sleep(FAILURE_PAUSE);
            }
        }
        // Fails if the thread was not woken.
        let _: rustix::io::Result<usize> = rustix::io::read(&self.wake, &mut [0; 8]);
        let failed = std::mem::take(&mut *lock(&self.failed));
        for failed in failed {
            survive(|| self.begin(&failed));
        }
        for event in events {
            let token = event.data.u64();
            survive(|| self.advance(token));
        }
    }

    /// Connects by TCP in place of a failed attempt.
    fn begin(&self, failed: &FailedAttempt) {
        let Some(rsocket) = failed.rsocket.upgrade() else {
            return;
        };
        let Some(socket) = capi::socket_of(rsocket.fd()) else {
            return;
        };
        let begun = begin_by_tcp(&rsocket, &failed.peer, failed.bound.as_ref()).and_then(|tcp| {
            let mut substitute = rsocket.substitute().lock();
            let tcp = substitute.insert(tcp);
            let tcp = tcp.get().map_err(|_| None)?;
            self.follow(&rsocket, tcp).map_err(|_| None)
        });
        if let Err(error) = begun {
            drop(rsocket.substitute().lock().take());
            socket.fail_attempt(error);
        }
    }

    fn follow(&self, rsocket: &Arc<Rsocket>, tcp: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut followed = lock(&self.followed);
        followed.retain(|_, rsocket| rsocket.strong_count() > 0);
        let last = followed.last_key_value().map_or(WAKE, |(&token, _)| token);
        let token = last + 1;
        followed.insert(token, Arc::downgrade(rsocket));
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        epoll::add(&self.epoll, tcp, epoll::EventData::new_u64(token), flags)
    }

    /// Shows the end of the TCP attempt to the program, or the first data.
    fn advance(&self, token: u64) {
        let rsocket = lock(&self.followed).get(&token).and_then(Weak::upgrade);
        let Some(rsocket) = rsocket else { return };
        let Some(socket) = capi::socket_of(rsocket.fd()) else {
            return;
        };
        let mut substitute = rsocket.substitute().lock();
        let Some(Ok(tcp)) = substitute.as_ref().map(Dup::get) else {
            return;
        };
        let is_first = !rsocket.substitute().is_connected();
        if is_first && let Ok(Err(errno)) = sockopt::socket_error(tcp) {
            drop(substitute.take());
            drop(substitute);
            return socket.fail_attempt(Some(os(errno.raw_os_error())));
        }
        if is_first {
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            let data = epoll::EventData::new_u64(token);
            // Without, the program waits to send at first.
            let _: rustix::io::Result<()> = epoll::modify(&self.epoll, tcp, data, flags);
        }
        rsocket.substitute().is_connected.store(true, SeqCst);
        drop(substitute);
        socket.show_replaced(!is_first);
    }
}
