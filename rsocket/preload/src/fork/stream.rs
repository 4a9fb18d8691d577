//! One stream during its move, shared by its descriptors.

#![forbid(unsafe_code)]

use std::{
    io,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use rsocket::{PollEntry, PollEvents, poll};
use rustix::{
    io::Errno,
    net::{RecvFlags, SendFlags, Shutdown, getpeername, getsockname, recv, send},
};
use verbs::{panics::survive, signals::spawn_without_signals};

use super::{
    Inner,
    acceptor::Acceptor,
    dup::Dup,
    frame::{Ends, FRAME_SIZE, Frame, Head, Kind, Proof, Secret},
    rules::{self, CONFIRM_LIMIT, Clock, MovePhase, Need, Verdict},
    send_limit,
};
use crate::{
    log,
    move_options::{is_client_shown, low_water, nudge, reset, set_low_water},
};

/// Pause, and number of pauses, for the rest of a frame; without it, the bytes are the program's.
const PARTIAL_PAUSE: Duration = Duration::from_millis(1);
const PARTIAL_PAUSES: u32 = 20;

/// Addresses of a stream for the program, in the family of its socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// Effect of a call on the stream.
#[derive(Debug)]
pub(crate) enum Step {
    /// Uses TCP. `skips` if the first bytes may be an offer.
    Tcp {
        skips: bool,
    },
    /// Uses the RDMA stream. `ends_tcp` if the peer no longer waits for the TCP connection, whose end it would receive.
    Rdma {
        inner: Inner,
        ends_tcp: bool,
    },
    /// Tries again later, for instance once the TCP connection is readable.
    Wait,
    Reset,
}

#[derive(Debug)]
pub(crate) struct MovingStream {
    tcp: Dup,
    pub(crate) names: Names,
    side: Side,
    /// Whether the descriptors have been replaced or left. Locked during the replacement.
    pub(crate) settled: Mutex<bool>,
    /// Ends of directions, to be done after the move.
    pub(crate) ends: Mutex<Vec<Shutdown>>,
}

enum Side {
    Accepting {
        secret: Secret,
        since: Instant,
        acceptor: Arc<Acceptor>,
    },
    Connecting(Mutex<MoveProgress>),
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Accepting { .. } => "Accepting",
            Self::Connecting(_) => "Connecting",
        })
    }
}

/// The connecting side.
#[derive(Debug)]
struct MoveProgress {
    phase: MovePhase,
    /// Beginning of the phase.
    since: Instant,
    inner: Option<Inner>,
    port: u16,
    secret: Secret,
    /// Whether a thread follows the stream. It shows the frames at its end, under the same lock.
    has_thread: bool,
    /// Whether an event loop waits for the TCP connection, to which frames alone are no readiness.
    is_in_loop: bool,
}

impl MoveProgress {
    /// Makes the TCP connection readable by a frame alone, or not. A loop would find no data, and wrk takes that for a failure.
    fn show_frames(&self, tcp: BorrowedFd<'_>, shows: bool) {
        if self.is_in_loop {
            let low_water = if shows { 1 } else { FRAME_SIZE + 1 };
            // If this fails, loops make a call in vain.
            drop(set_low_water(tcp, low_water));
        }
    }
}

/// Interval between looks at states without a descriptor to wait for.
const TICK: Duration = Duration::from_millis(20);

/// The interval for frames that end no wait is a part of the time so far, and at least this.
const HIDDEN_TICK_PART: u32 = 8;
const HIDDEN_TICK: Duration = Duration::from_millis(1);

fn stays(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why.to_owned())
}

/// Error for a peer without this library.
pub(crate) fn not_shown() -> io::Error {
    stays("the peer has not shown this library")
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn names_of(tcp: BorrowedFd<'_>) -> io::Result<Names> {
    // A frame would not wake the program.
    if low_water(tcp) != Some(1) {
        return Err(stays("the program has set `SO_RCVLOWAT`"));
    }
    let peer = getpeername(tcp)?.ok_or(Errno::NOTCONN)?;
    let names = Names {
        local: getsockname(tcp)?.try_into()?,
        peer: peer.try_into()?,
    };
    match canonical(names.peer).ip().is_loopback() {
        true => Err(stays("a loopback address")),
        false => Ok(names),
    }
}

/// First bytes of a TCP connection.
fn head(tcp: BorrowedFd<'_>) -> Head {
    let mut pauses = 0;
    loop {
        let mut bytes = [0; FRAME_SIZE];
        let head = match recv(tcp, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            // The end is the program's, as data is.
            Ok((_, 0)) => Head::Other,
            Ok((_, len)) => Head::of(&bytes[..len.min(FRAME_SIZE)]),
            Err(Errno::AGAIN) => Head::Nothing,
            Err(Errno::INTR) => continue,
            Err(_) => Head::Other,
        };
        if head != Head::Partial || pauses == PARTIAL_PAUSES {
            return head;
        }
        pauses += 1;
        thread::sleep(PARTIAL_PAUSE);
    }
}

/// Removes a frame from a TCP connection.
fn consume(tcp: BorrowedFd<'_>) {
    // The bytes were there before, and this thread has the lock of the stream.
    let _: rustix::io::Result<_> = recv(tcp, &mut [0; FRAME_SIZE], RecvFlags::DONTWAIT);
}

/// Removes an offer that came too late. Returns whether the next bytes are the program's; `None` if there are none.
pub(crate) fn skip_offer(tcp: BorrowedFd<'_>) -> Option<()> {
    match head(tcp) {
        Head::Nothing => None,
        Head::Frame(Frame {
            kind: Kind::Offer { .. },
            ..
        }) => {
            consume(tcp);
            Some(())
        }
        _ => Some(()),
    }
}

/// Waits until a connection is readable. Returns whether it is.
///
/// # Errors
/// - `INTR`: a signal is pending.
pub(crate) fn await_readable(tcp: BorrowedFd<'_>, timeout: Duration) -> rustix::io::Result<bool> {
    let waited = verbs::fd::wait_interruptible("poll", tcp, Some(timeout));
    waited.map_err(|err| Errno::from_raw_os_error(err.raw_os_error().unwrap_or(libc::ENOMEM)))
}

impl MovingStream {
    /// Offers an accepted connection to its peer.
    ///
    /// # Errors
    /// The stream stays TCP, without an offer.
    pub(crate) fn accepting(tcp: BorrowedFd<'_>) -> io::Result<Self> {
        let names = names_of(tcp)?;
        if !is_client_shown(tcp) {
            return Err(not_shown());
        }
        if head(tcp) != Head::Nothing {
            return Err(stays("the peer has sent data by TCP"));
        }
        let acceptor = Acceptor::of_process()?;
        let mut secret = Secret::default();
        if rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?
            != secret.len()
        {
            return Err(stays("there are no random numbers"));
        }
        let ends = Ends {
            accepting: canonical(names.local),
            connecting: canonical(names.peer),
        };
        acceptor.offer(secret, ends, Dup::new(tcp)?)?;
        let side = Side::Accepting {
            secret,
            since: Instant::now(),
            acceptor,
        };
        Self::of(tcp, names, side)
    }

    /// Prepares an established connection for the peer's offer.
    ///
    /// # Errors
    /// The stream stays TCP.
    pub(crate) fn connecting(tcp: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        let names = names_of(tcp)?;
        let inner = Inner::new(canonical(names.peer))?;
        // Fails at once without an RDMA device on the route.
        inner
            .socket
            .bind(SocketAddr::new(canonical(names.local).ip(), 0))?;
        let progress = MoveProgress {
            phase: MovePhase::Awaiting,
            since: Instant::now(),
            inner: Some(inner),
            port: 0,
            secret: Secret::default(),
            has_thread: false,
            is_in_loop: false,
        };
        let side = Side::Connecting(Mutex::new(progress));
        let stream = Arc::new(Self::of(tcp, names, side)?);
        stream.start_thread();
        Ok(stream)
    }

    fn of(tcp: BorrowedFd<'_>, names: Names, side: Side) -> io::Result<Self> {
        Ok(Self {
            tcp: Dup::new(tcp)?,
            names,
            side,
            settled: Mutex::new(false),
            ends: Mutex::default(),
        })
    }

    fn progress(&self) -> Option<MutexGuard<'_, MoveProgress>> {
        match &self.side {
            Side::Accepting { .. } => None,
            Side::Connecting(progress) => {
                Some(progress.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Goes on with the move, without blocking.
    pub(crate) fn step(self: &Arc<Self>, need: Need) -> Step {
        let Ok(tcp) = self.tcp.get() else {
            return Step::Tcp { skips: false };
        };
        match &self.side {
            Side::Accepting {
                secret,
                since,
                acceptor,
            } => step_of_accepting(tcp, acceptor, secret, *since, need),
            Side::Connecting(_) => self.step_of_connecting(tcp, need),
        }
    }

    fn step_of_connecting(self: &Arc<Self>, tcp: BorrowedFd<'_>, need: Need) -> Step {
        let Some(mut progress) = self.progress() else {
            return Step::Tcp { skips: false };
        };
        let clock = Clock {
            age: progress.since.elapsed(),
            send_limit: send_limit(),
        };
        let head = head(tcp);
        match rules::connecting(progress.phase, head, need, clock) {
            Verdict::Wait => Step::Wait,
            Verdict::Join { port, secret } => {
                consume(tcp);
                progress.phase = MovePhase::Joining;
                progress.since = Instant::now();
                progress.show_frames(tcp, true);
                (progress.port, progress.secret) = (port, secret);
                drop(progress);
                self.start_thread();
                Step::Wait
            }
            Verdict::Rdma => {
                consume(tcp);
                let (kind, secret) = (Kind::Go, progress.secret);
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                // Fails if the peer has moved already.
                let _: rustix::io::Result<usize> =
                    send(tcp, &Frame { kind, secret }.encode(), flags);
                // The rsocket keeps this stream, which must not keep the rsocket.
                let inner = progress.inner.take();
                let ends_tcp = false;
                inner.map_or(Step::Reset, |inner| Step::Rdma { inner, ends_tcp })
            }
            Verdict::Tcp { skips } => {
                // No proof is sent from now on.
                progress.phase = MovePhase::Failed;
                progress.inner = None;
                progress.show_frames(tcp, true);
                Step::Tcp { skips }
            }
            Verdict::Reset => {
                progress.phase = MovePhase::Failed;
                progress.inner = None;
                progress.show_frames(tcp, true);
                reset(tcp);
                Step::Reset
            }
        }
    }

    /// Starts the thread of a connecting stream, unless one is running.
    fn start_thread(self: &Arc<Self>) {
        let Some(mut progress) = self.progress() else {
            return;
        };
        if progress.has_thread {
            return;
        }
        let stream = Arc::downgrade(self);
        let started = spawn_without_signals("rsocket-move", move || run(&stream, follow));
        match started {
            Ok(_) => progress.has_thread = true,
            Err(_) => progress.phase = progress.phase.without_thread(),
        }
    }

    /// Goes on without the thread, which has panicked.
    fn abandon(&self) {
        if let Some(mut progress) = self.progress() {
            progress.phase = progress.phase.without_thread();
        }
        if let Ok(tcp) = self.tcp.get() {
            self.end_following(tcp);
            nudge(tcp);
        }
    }

    /// Looks for the offer. Returns whether to join, or `None` to look again.
    fn await_offer(self: &Arc<Self>, tcp: BorrowedFd<'_>) -> Option<bool> {
        let mut progress = self.progress()?;
        let limit = send_limit().saturating_sub(progress.since.elapsed());
        match progress.phase {
            MovePhase::Joining => return Some(true),
            MovePhase::Awaiting if !limit.is_zero() => {}
            _ => {
                progress.has_thread = false;
                progress.show_frames(tcp, true);
                return Some(false);
            }
        }
        drop(progress);
        self.await_head(tcp);
        if head(tcp) != Head::Nothing {
            self.step(Need::Receive);
        }
        None
    }

    /// Waits for a frame or data of the peer, at most for a tick.
    fn await_head(&self, tcp: BorrowedFd<'_>) {
        let Some(progress) = self.progress() else {
            return;
        };
        let hidden = (progress.since.elapsed() / HIDDEN_TICK_PART).clamp(HIDDEN_TICK, TICK);
        let tick = if progress.is_in_loop { hidden } else { TICK };
        drop(progress);
        // Another look follows.
        let _: rustix::io::Result<bool> = await_readable(tcp, tick);
    }

    /// Hides frames from an event loop. The thread shows the connection as readable once there is something for the program.
    pub(crate) fn enter_loop(&self) {
        if let (Some(mut progress), Ok(tcp)) = (self.progress(), self.tcp.get()) {
            progress.is_in_loop = true;
            let is_hidden = progress.has_thread
                && matches!(
                    progress.phase,
                    MovePhase::Awaiting | MovePhase::Proved { .. }
                );
            progress.show_frames(tcp, !is_hidden);
        }
    }

    /// Shows the frames to the event loop. From here on, none is hidden.
    fn end_following(&self, tcp: BorrowedFd<'_>) {
        if let Some(mut progress) = self.progress() {
            progress.has_thread = false;
            progress.show_frames(tcp, true);
        }
    }

    /// Waits until the confirmed RDMA stream has data or its end, or the program has gone on.
    fn follow_in_loop(&self) {
        while self.is_proved() {
            let inner = self.progress().and_then(|progress| progress.inner.clone());
            let Some(inner) = inner else { return };
            let mut entry = [PollEntry::socket(&inner.socket, PollEvents::IN)];
            if !matches!(poll(&mut entry, Some(TICK)), Ok(0)) {
                return;
            }
        }
    }

    /// Whether a proof has been sent, and the program has not gone on.
    fn is_proved(&self) -> bool {
        let is_settled = *self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let progress = self.progress();
        !is_settled
            && progress.is_some_and(|progress| matches!(progress.phase, MovePhase::Proved { .. }))
    }

    /// Connects by RDMA and sends the proof.
    fn join(&self) {
        let Some(progress) = self.progress() else {
            return;
        };
        let Some(inner) = progress.inner.clone() else {
            return;
        };
        let (port, secret) = (progress.port, progress.secret);
        drop(progress);
        let mut to = canonical(self.names.peer);
        if let (SocketAddr::V6(to), SocketAddr::V6(peer)) = (&mut to, self.names.peer) {
            to.set_scope_id(peer.scope_id());
        }
        to.set_port(port);
        let connected = inner.socket.connect(to);
        let Some(mut progress) = self.progress() else {
            return;
        };
        if progress.phase != MovePhase::Joining {
            return;
        }
        if let Err(err) = connected {
            progress.phase = MovePhase::Failed;
            drop(progress);
            log::write_line(|| format!("no RDMA stream to {to}: {err}"));
            return;
        }
        progress.phase = MovePhase::Proved { secret };
        progress.since = Instant::now();
        if let Ok(tcp) = self.tcp.get() {
            progress.show_frames(tcp, false);
        }
        drop(progress);
        let proof = Proof {
            secret,
            ends: Ends {
                accepting: canonical(self.names.peer),
                connecting: canonical(self.names.local),
            },
        };
        inner.socket.set_write_timeout(Some(CONFIRM_LIMIT));
        // After a failure there is no confirmation.
        drop(inner.socket.send(&proof.encode()));
    }
}

/// Runs the thread of a connecting stream. After a panic, the program goes on without the thread.
fn run(stream: &Weak<MovingStream>, work: impl FnOnce(&Weak<MovingStream>)) {
    if survive(|| work(stream)).is_none()
        && let Some(stream) = stream.upgrade()
    {
        stream.abandon();
    }
}

/// The work of a thread on a connecting stream, which would block the program. Wakes the program at the end. Ends if the
/// program closes the stream.
fn follow(stream: &Weak<MovingStream>) {
    let has_offer = loop {
        let Some(stream) = stream.upgrade() else {
            return;
        };
        let Ok(tcp) = stream.tcp.get() else { return };
        match stream.await_offer(tcp) {
            Some(true) => break true,
            Some(false) => {
                nudge(tcp);
                break false;
            }
            None => {}
        }
    };
    if let Some(stream) = stream.upgrade().filter(|_| has_offer) {
        stream.join();
    }
    let deadline = Instant::now() + CONFIRM_LIMIT;
    while let Some(stream) = stream.upgrade().filter(|_| has_offer) {
        let Ok(tcp) = stream.tcp.get() else { return };
        let is_over = !stream.is_proved() || Instant::now() > deadline;
        let head = head(tcp);
        if is_over || head != Head::Nothing {
            nudge(tcp);
            if matches!(head, Head::Frame(_)) {
                stream.follow_in_loop();
            }
            stream.end_following(tcp);
            return;
        }
        stream.await_head(tcp);
    }
}

fn step_of_accepting(
    tcp: BorrowedFd<'_>,
    acceptor: &Acceptor,
    secret: &Secret,
    since: Instant,
    need: Need,
) -> Step {
    let clock = Clock {
        age: since.elapsed(),
        send_limit: send_limit(),
    };
    // No stream comes for the offer between the decision and the withdrawal.
    let mut offers = acceptor.offers();
    let head = head(tcp);
    let ends_tcp = matches!(head, Head::Frame(frame) if frame.kind == Kind::Go);
    match rules::accepting(offers.is_confirmed(secret), head, need, clock) {
        Verdict::Rdma => match offers.take(secret) {
            Some(inner) => Step::Rdma { inner, ends_tcp },
            None => Step::Reset,
        },
        Verdict::Wait => {
            drop(offers);
            if need == Need::Send {
                acceptor.nudge_at(since + clock.send_limit, *secret);
            }
            Step::Wait
        }
        _ => {
            drop(offers.take(secret));
            Step::Tcp { skips: false }
        }
    }
}

impl Drop for MovingStream {
    fn drop(&mut self) {
        if let Side::Accepting {
            secret, acceptor, ..
        } = &self.side
            && self.tcp.is_of_process()
        {
            let ended = acceptor.offers().take(secret);
            // Closing a stream may block.
            drop(ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use super::*;

    /// A stream in a phase, and the accepting side of its TCP connection.
    fn connected(phase: MovePhase) -> (TcpStream, Arc<MovingStream>, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let names = Names {
            local: tcp.local_addr().unwrap(),
            peer: tcp.peer_addr().unwrap(),
        };
        let progress = MoveProgress {
            phase,
            since: Instant::now(),
            inner: None,
            port: 0,
            secret: Secret::default(),
            has_thread: true,
            is_in_loop: false,
        };
        let side = Side::Connecting(Mutex::new(progress));
        let stream = MovingStream::of(tcp.as_fd(), names, side).unwrap();
        (tcp, Arc::new(stream), peer)
    }

    fn uses_tcp(stream: &Arc<MovingStream>) -> Option<bool> {
        match stream.step(Need::Receive) {
            Step::Tcp { skips } => Some(skips),
            _ => None,
        }
    }

    #[test]
    fn stream_whose_thread_panics_stays_tcp() {
        for (phase, skips) in [(MovePhase::Awaiting, true), (MovePhase::Joining, false)] {
            let (_tcp, stream, _peer) = connected(phase);
            assert_eq!(uses_tcp(&stream), None, "waits in {phase:?}");
            let weak = Arc::downgrade(&stream);
            run(&weak, |_| panic!("as intended by the test"));
            assert_eq!(uses_tcp(&stream), Some(skips), "{phase:?}");
        }
    }

    #[test]
    fn frames_are_hidden_from_a_loop_while_a_thread_follows() {
        let proved = MovePhase::Proved { secret: [7; 16] };
        for phase in [MovePhase::Awaiting, proved] {
            let (tcp, stream, _peer) = connected(phase);
            stream.enter_loop();
            stream.enter_loop();
            assert_eq!(low_water(tcp.as_fd()), Some(49));
            stream.abandon();
            assert_eq!(low_water(tcp.as_fd()), Some(1));
            stream.enter_loop();
            assert_eq!(low_water(tcp.as_fd()), Some(1), "after {phase:?}");
        }
        // The thread ends as the program goes on.
        let (tcp, stream, mut peer) = connected(proved);
        stream.enter_loop();
        let (kind, secret) = (Kind::Confirm, [7; 16]);
        peer.write_all(&Frame { kind, secret }.encode()).unwrap();
        tcp.peek(&mut [0]).unwrap();
        *stream.settled.lock().unwrap() = true;
        follow(&Arc::downgrade(&stream));
        stream.enter_loop();
        assert_eq!(low_water(tcp.as_fd()), Some(1));
    }

    #[test]
    fn stream_with_a_low_water_mark_of_the_program_is_not_moved() {
        let (tcp, _stream, _peer) = connected(MovePhase::Awaiting);
        set_low_water(tcp.as_fd(), 200).unwrap();
        let failed = [
            MovingStream::accepting(tcp.as_fd()).unwrap_err(),
            MovingStream::connecting(tcp.as_fd()).unwrap_err(),
        ];
        for failed in failed {
            assert!(failed.to_string().contains("SO_RCVLOWAT"), "{failed}");
        }
    }

    #[test]
    fn offer_after_the_thread_could_not_start_is_no_data() {
        for has_arrived in [true, false] {
            let (mut tcp, stream, mut peer) = connected(MovePhase::Abandoned);
            let (kind, secret) = (Kind::Offer { port: 1 }, [7; 16]);
            let offer = Frame { kind, secret }.encode();
            let mut send = |bytes: &[u8]| {
                peer.write_all(bytes).unwrap();
                tcp.peek(&mut [0]).unwrap();
            };
            if has_arrived {
                send(&offer);
            }
            assert_eq!(uses_tcp(&stream), Some(true));
            if !has_arrived {
                assert_eq!(skip_offer(tcp.as_fd()), None);
                send(&offer);
            }
            assert_eq!(skip_offer(tcp.as_fd()), Some(()));
            peer.write_all(b"data").unwrap();
            let mut data = [0; 4];
            tcp.read_exact(&mut data).unwrap();
            assert_eq!(&data, b"data");
        }
    }
}
