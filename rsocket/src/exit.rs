//! Disconnecting all streams before the process exits.

use std::{
    env,
    sync::{
        Arc, Once, OnceLock,
        atomic::{
            AtomicBool, AtomicI32, AtomicU32, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::Timespec,
    process::Pid,
    thread::{futex, gettid},
};

use crate::{connection::Connection, datagram::DatagramSocket, engine::Engine};

/// Interval between checks of the streams being disconnected, and of dropped ones.
const CHECK: Duration = Duration::from_millis(1);

/// Time for the engine threads to answer after the limit of a disconnect of all streams.
const EXIT_GRACE: Duration = Duration::from_millis(500);

/// Maximum time for which the state of a socket stays locked, before the socket is given up: the thread with
/// the lock is stopped, for example by the signal handler that ends the process.
const MAX_LOCKED: Duration = Duration::from_secs(1);

/// Disconnects all streams of this process, and waits until the peers have acknowledged all data, at most for
/// `limit`. Returns whether they have.
///
/// For the end of a process that has not dropped its streams, such as by [`std::process::exit`]. The exit itself waits
/// for the data of dropped streams, at most for [`exit_linger`].
/// Programs of C libraries need no such call: `librsocket.so` and `librspreload.so` call [`disconnect_at_exit`].
///
/// A stream is waited for no longer than for its own [linger time](crate::Options::linger), and not
/// disconnected if that is zero. Datagrams are waited for until the device has sent them. Calls of other
/// threads that block on a socket stay blocked until this call returns. In a child of the process that opened
/// the sockets, the call does nothing. May be called in a signal handler: takes no lock and allocates
/// nothing.
pub fn disconnect_all(limit: Duration) -> bool {
    disconnect(limit, None)
}

/// Disconnects all streams like [`disconnect_all`], in the thread that ends the process.
///
/// Calls of other threads on the disconnected streams stay blocked after the return too, as if their threads had ended with the
/// process: a peer that closes in answer is not reported to them. Calls of this thread return, so that a destructor cannot wait
/// forever. After a [`shutdown`](crate::Stream::shutdown) by this thread, calls of all threads on that stream return.
pub fn disconnect_at_exit(limit: Duration) -> bool {
    disconnect(limit, Some(gettid()))
}

fn disconnect(limit: Duration, thread: Option<Pid>) -> bool {
    let engines = Engine::running();
    let engines = || engines.iter().flatten();
    engines().for_each(|engine| engine.request_exit(limit, thread));
    let deadline = Instant::now().checked_add(limit.saturating_add(EXIT_GRACE));
    let delivered = engines().map(|engine| engine.exit_request().wait(deadline));
    delivered.fold(true, |all, delivered| all & delivered)
}

/// Effect of the exit of the process on calls on a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum ExitPhase {
    /// None.
    #[default]
    Running,
    /// Calls stay blocked while the stream is disconnected.
    Disconnecting,
    /// Calls of threads other than this one, which ends the process, stay blocked.
    Ending(Pid),
}

impl ExitPhase {
    /// Whether a call of the current thread stays blocked.
    pub(crate) fn blocks(self) -> bool {
        match self {
            Self::Running => false,
            Self::Disconnecting => true,
            Self::Ending(thread) => thread != gettid(),
        }
    }
}

/// Default of [`exit_linger`].
const EXIT_LINGER: Duration = Duration::from_secs(10);

/// Maximum time for which the exit of the process waits for the data of dropped streams: 10 seconds, or
/// `RS_EXIT_LINGER` in seconds, as of the first socket.
///
/// ```
/// assert_eq!(rsocket::exit_linger().as_secs(), 10);
/// ```
pub fn exit_linger() -> Duration {
    // The environment cannot be read in a signal handler, which may exit.
    static LIMIT: OnceLock<Duration> = OnceLock::new();
    *LIMIT.get_or_init(|| exit_linger_of(env::var("RS_EXIT_LINGER").ok().as_deref()))
}

fn exit_linger_of(seconds: Option<&str>) -> Duration {
    let seconds = seconds.and_then(|seconds| seconds.trim().parse().ok());
    seconds.map_or(EXIT_LINGER, Duration::from_secs)
}

extern "C" fn exiting() {
    let (engines, start) = (Engine::running(), Instant::now());
    let has_dropped = || engines.iter().flatten().any(|engine| engine.has_dropped());
    while has_dropped() && start.elapsed() < exit_linger() {
        thread::sleep(CHECK);
    }
}

/// Has the exit of the process wait for the data of dropped streams.
pub(crate) fn wait_at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        exit_linger();
        // Without memory for the registration, the data may be lost.
        drop(verbs::exit::at_exit(exiting));
    });
}

/// Request of an exiting thread to the engine thread. The exiting thread may be inside a signal handler, whose
/// thread holds locks.
#[derive(Debug, Default)]
pub(crate) struct ExitRequest {
    state: AtomicU32,
    limit_millis: AtomicU64,
    /// Thread that ends the process; 0 if the process may continue.
    thread: AtomicI32,
    lost: AtomicBool,
}

const IDLE: u32 = 0;
const REQUESTED: u32 = 1;

impl ExitRequest {
    /// Makes the request, unless another thread has.
    pub(crate) fn make(&self, limit: Duration, thread: Option<Pid>) {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.limit_millis.store(millis, Relaxed);
        self.thread.store(Pid::as_raw(thread), Relaxed);
        self.state.store(REQUESTED, Release);
    }

    /// Waits for the engine thread. Returns whether all data has been delivered.
    fn wait(&self, deadline: Option<Instant>) -> bool {
        while self.state.load(Acquire) == REQUESTED {
            let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return false;
            }
            let timeout: Option<Timespec> =
                remaining.and_then(|remaining| remaining.try_into().ok());
            // A wake-up, a signal and an expired time need the same check.
            let _: rustix::io::Result<()> = futex::wait(
                &self.state,
                futex::Flags::PRIVATE,
                REQUESTED,
                timeout.as_ref(),
            );
        }
        !self.lost.load(Relaxed)
    }

    fn limit(&self) -> Option<Duration> {
        (self.state.load(Acquire) == REQUESTED)
            .then(|| Duration::from_millis(self.limit_millis.load(Relaxed)))
    }

    /// The phase of streams from the request on.
    fn phase(&self) -> ExitPhase {
        let thread = Pid::from_raw(self.thread.load(Relaxed));
        thread.map_or(ExitPhase::Disconnecting, ExitPhase::Ending)
    }

    fn finish(&self, lost: bool) {
        self.lost.store(lost, Relaxed);
        self.state.store(IDLE, Release);
        // Fails only for an invalid address.
        let _: rustix::io::Result<usize> =
            futex::wake(&self.state, futex::Flags::PRIVATE, u32::MAX >> 1);
    }
}

#[derive(Debug)]
enum LeavingSocket {
    Stream(Arc<Connection>),
    Datagrams(Arc<DatagramSocket>),
}

/// A socket of the exiting process.
#[derive(Debug)]
struct Leaving {
    socket: LeavingSocket,
    deadline: Option<Instant>,
    /// Time of the first failure to lock the state since the last success.
    locked_since: Option<Instant>,
    done: bool,
}

impl Leaving {
    /// Disconnects, and checks for unacknowledged data. Returns whether data is lost.
    fn check(&mut self, now: Instant, phase: ExitPhase) -> bool {
        let flushed = match &self.socket {
            LeavingSocket::Stream(connection) => connection.begin_exit(phase),
            LeavingSocket::Datagrams(socket) => socket.begin_exit(),
        };
        if flushed == Some(true) {
            self.done = true;
            return false;
        }
        let is_locked = flushed.is_none();
        let locked_since = *self.locked_since.get_or_insert(now);
        if !is_locked {
            self.locked_since = None;
        }
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        self.done = is_late || is_locked && now - locked_since >= MAX_LOCKED;
        self.done
    }

    /// Lets calls on the socket fail, unless the process ends.
    fn end(&self) {
        match &self.socket {
            LeavingSocket::Stream(connection) => connection.cancel_exit(),
            LeavingSocket::Datagrams(socket) => socket.cancel_exit(),
        }
    }
}

/// Progress of the engine thread with a request.
#[derive(Debug, Default)]
pub(crate) struct ExitProgress {
    /// `None` without a request.
    leaving: Option<Vec<Leaving>>,
    lost: bool,
}

impl ExitProgress {
    /// Serves the request, if any. Returns the time of the next check.
    pub(crate) fn serve(&mut self, engine: &Engine) -> Option<Instant> {
        let limit = engine.exit_request().limit()?;
        let (now, phase) = (Instant::now(), engine.exit_request().phase());
        let leaving = self
            .leaving
            .get_or_insert_with(|| leaving(engine, now, limit));
        for socket in leaving.iter_mut().filter(|socket| !socket.done) {
            self.lost |= socket.check(now, phase);
        }
        if leaving.iter().any(|socket| !socket.done) {
            return Some(now + CHECK);
        }
        leaving.iter().for_each(Leaving::end);
        engine.exit_request().finish(self.lost);
        *self = Self::default();
        None
    }
}

/// Returns all sockets with data to deliver.
fn leaving(engine: &Engine, now: Instant, limit: Duration) -> Vec<Leaving> {
    let leaving = |socket, time| Leaving {
        socket,
        deadline: now.checked_add(time),
        locked_since: None,
        done: false,
    };
    let streams = engine.connections().into_iter().filter_map(|connection| {
        let linger = connection.linger().min(limit);
        (!linger.is_zero()).then(|| leaving(LeavingSocket::Stream(connection), linger))
    });
    let datagrams = engine.all_datagram_sockets().into_iter();
    let datagrams = datagrams.map(|socket| leaving(LeavingSocket::Datagrams(socket), limit));
    streams.chain(datagrams).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_linger_is_a_number_of_seconds() {
        for text in [None, Some(""), Some("-1"), Some("long"), Some("1.5")] {
            assert_eq!(exit_linger_of(text), EXIT_LINGER, "{text:?}");
        }
        assert_eq!(exit_linger_of(Some(" 3\n")), Duration::from_secs(3));
        assert_eq!(exit_linger_of(Some("0")), Duration::ZERO);
    }
}
