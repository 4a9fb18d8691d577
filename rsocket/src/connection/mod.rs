//! A connected stream and its queue pair.

mod direction_lock;
mod ending;
mod receiving;
mod sending;

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use cm::{CmId, Key, PathRecord, phases::Connected};
use rustix::io::Errno;
use verbs::{
    Completed, RemoteRegion, RemoteToken, Rts, WcStatus,
    cq::{CompletionChannel, WcError},
    op,
    waiting::{Source, Waiters},
    work::With,
};

use crate::{
    endpoint::{Endpoint, Pair, RECEIVES, SendWork},
    engine::Engine,
    exit::ExitPhase,
    failure::{Cause, ConnectionFailure},
    memory::{MESSAGE, Memory},
    options::{Options, USER_TIMEOUT},
    proto::{
        ConnectData, Mapping, Message,
        stream::{
            Framing, MapError, Outgoing, Payload, PayloadSource, Readiness, SPARE_RECEIVES,
            Settings, Stream, StreamStats,
        },
    },
    queue::Queue,
    trace::{StreamSpan, note},
    waiters::Interest,
    waiting::{Pollable, Shared},
};
use direction_lock::DirectionLock;

/// Minimum timeout for unacknowledged data.
const MIN_USER_TIMEOUT: Duration = Duration::from_secs(1);

/// A connected stream, shared by the calls of all threads and by the engine.
#[derive(Debug)]
pub(crate) struct Connection {
    shared: Shared<ConnectionState, Arc<CompletionChannel>>,
    /// Taken by a blocking call that sends, so that the bytes of concurrent calls do not mix.
    sending: DirectionLock,
    receiving: DirectionLock,
    /// Time to wait for the peer when the program closes the stream or exits.
    linger: Mutex<Duration>,
    local_addr: SocketAddr,
    peer_addr: SocketAddr,
    key: Key,
    engine: Weak<Engine>,
}

/// The addresses and the connection manager identifier of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionAddrs {
    pub(crate) local_addr: SocketAddr,
    pub(crate) peer_addr: SocketAddr,
    pub(crate) key: Key,
    pub(crate) span: StreamSpan,
}

/// Mutable state of a connection, behind one lock.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    stream: Stream,
    qp: Pair<Rts>,
    sends: Queue,
    receives: Queue,
    channel: Arc<CompletionChannel>,
    /// A flushed receive has completed: the queue pair is in the error state.
    flushed: bool,
    memory: Memory,
    /// Dropping the identifier disconnects.
    id: CmId<Connected>,
    waiters: Waiters<Interest>,
    /// Gathers the pieces of a message sent from several buffers.
    scratch: Vec<u8>,
    /// Timeout for unacknowledged data, and for data without room of the peer, if limited.
    limit: Duration,
    stall_limit: Option<Duration>,
    /// Bytes accepted from the program that wait for room of the peer.
    unsent: VecDeque<u8>,
    /// First reported cause of a failure.
    cause: Option<Cause>,
    /// Next check for unacknowledged data by the engine, while anything is in flight.
    check_at: Option<Instant>,
    /// Number of doorbells that have failed since the last success.
    failed_doorbells: u8,
    /// While the process exits, calls stay blocked as if their threads had ended already.
    exit_phase: ExitPhase,
    /// Zero of the stream's clock.
    start: Instant,
    key: Key,
    span: StreamSpan,
    engine: Weak<Engine>,
}

impl Connection {
    /// Creates the connection of an endpoint whose peer has completed the handshake. `establish` is called
    /// last, after everything else has succeeded.
    pub(crate) fn new(
        endpoint: Endpoint<Rts>,
        send_buffer: RemoteRegion,
        establish: impl FnOnce(Pair<Rts>) -> io::Result<(Pair<Rts>, CmId<Connected>)>,
        peer: &ConnectData,
        addrs: ConnectionAddrs,
        engine: &Arc<Engine>,
    ) -> io::Result<Self> {
        let stream = endpoint.stream(peer);
        let Endpoint {
            qp,
            sends,
            receives,
            channel,
            exposed,
            settings,
        } = endpoint;
        let memory = Memory::new(&settings, exposed, send_buffer);
        let channel = Arc::new(channel);
        let (qp, id) = establish(qp)?;
        addrs.span.connected(addrs.local_addr, qp.qp_num());
        let state = ConnectionState {
            stream,
            qp,
            sends: Queue::new(sends),
            receives: Queue::new(receives),
            channel: Arc::clone(&channel),
            flushed: false,
            memory,
            id,
            waiters: Waiters::new(),
            scratch: Vec::new(),
            limit: USER_TIMEOUT,
            stall_limit: None,
            unsent: VecDeque::new(),
            cause: None,
            check_at: None,
            failed_doorbells: 0,
            exit_phase: ExitPhase::default(),
            start: Instant::now(),
            key: addrs.key,
            span: addrs.span,
            engine: Arc::downgrade(engine),
        };
        Ok(Self {
            shared: Shared::new(state, channel),
            sending: DirectionLock::default(),
            receiving: DirectionLock::default(),
            linger: Mutex::new(Options::default().linger),
            local_addr: addrs.local_addr,
            peer_addr: addrs.peer_addr,
            key: addrs.key,
            engine: Arc::downgrade(engine),
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub(crate) fn peer_addr(&self) -> SocketAddr {
        self.peer_addr
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// The shared state and its waiters.
    pub(crate) fn shared(&self) -> &Shared<ConnectionState, Arc<CompletionChannel>> {
        &self.shared
    }

    pub(crate) fn settings(&self) -> Settings {
        *self.shared.lock().stream.settings()
    }

    /// Grows the receive buffer from its size during the handshake to that in use, and advertises the difference.
    pub(crate) fn grow_receive(&self) {
        let mut state = self.shared.lock();
        if state.stream.want_receive_buffer() {
            // A later call reports a failure.
            drop(state.process());
        }
    }

    /// Number of bytes sent and not yet acknowledged.
    pub(crate) fn unacked(&self) -> io::Result<usize> {
        let mut state = self.shared.lock();
        state.process()?;
        Ok(state.stream.unacked() as usize)
    }

    /// Returns the counters of the stream.
    pub(crate) fn stats(&self) -> StreamStats {
        self.shared.lock().stream.stats()
    }

    /// Returns the path records known to the connection manager.
    pub(crate) fn route(&self) -> Vec<PathRecord> {
        self.shared.lock().id.paths()
    }

    /// Path MTU: maximum payload of a packet, in bytes.
    pub(crate) fn mtu(&self) -> Option<u32> {
        self.shared.lock().qp.query().ok()?.path_mtu.bytes()
    }

    /// Posts an empty write to the peer as a keepalive probe. An unreachable peer fails the connection.
    pub(crate) fn keep_alive(&self) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.stream.keep_alive();
        state.process().map(drop)
    }

    /// Sets the timeouts for unacknowledged data and for data without room of the peer, at least one second.
    pub(crate) fn set_limits(&self, limit: Duration, stall_limit: Option<Duration>) {
        let mut state = self.shared.lock();
        state.limit = limit.max(MIN_USER_TIMEOUT);
        state.stall_limit = stall_limit.map(|limit| limit.max(MIN_USER_TIMEOUT));
        if state.check_at.is_some() || state.stream.waits_for_peer() {
            state.plan_check();
        }
    }

    /// Checks for progress of sent data. Returns the time of the next check. A call whose `planned` time is
    /// no longer current does nothing.
    pub(crate) fn check(&self, planned: Instant) -> Option<Instant> {
        let mut state = self.shared.lock();
        // A later plan has its own timer.
        if state.check_at != Some(planned) {
            return None;
        }
        // Completions count as progress even if no call has polled them.
        state.catch_up();
        state.check()
    }

    /// Whether each side has ended sending, or the connection has failed.
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.lock().stream.is_closed()
    }

    /// Whether the peer has ended sending.
    pub(crate) fn has_peer_ended(&self) -> bool {
        self.shared.lock().stream.has_peer_ended()
    }

    /// The failure of the connection, if any.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.shared.lock().failure()
    }

    /// Maps memory for the peer; see [`Stream::map`].
    pub(crate) fn map(&self, mapping: Mapping) -> Result<u16, MapError> {
        self.shared.lock().stream.map(mapping)
    }

    pub(crate) fn unmap(&self, index: u16) {
        self.shared.lock().stream.unmap(index);
    }

    pub(crate) fn pd(&self) -> verbs::ProtectionDomain {
        self.shared.lock().qp.pd().clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.upgrade() {
            let check_at = self.shared.lock().check_at;
            engine.end_timers(self.key, check_at);
            engine.forget(self.key);
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }
}

impl Pollable for ConnectionState {
    fn readiness(&self) -> Readiness {
        if self.exit_phase.blocks() {
            return Readiness::default();
        }
        self.stream.readiness()
    }

    fn wake(&mut self) {
        // While a thread ends the process, woken calls of others block again.
        if !matches!(self.exit_phase, ExitPhase::Disconnecting) {
            let readiness = self.stream.readiness();
            self.waiters.wake(|interest| interest.is_met(readiness));
        }
    }
}

impl Source for ConnectionState {
    type Interest = Interest;
    type Error = io::Error;

    fn waiters(&mut self) -> &mut Waiters<Interest> {
        &mut self.waiters
    }

    /// Processes completions, then posts pending control messages. Returns whether there was a completion.
    fn process(&mut self) -> io::Result<bool> {
        let Self {
            stream, qp, sends, ..
        } = self;
        let mut sent = false;
        let mut failed = Vec::new();
        for wc in sends.poll()? {
            sent = true;
            match qp.complete(wc) {
                Ok(Completed::Send(done)) => match done.into_work() {
                    Ok(work) => stream.sent(work.context, true),
                    Err(failure) => failed.push((failure.work.context, failure.error)),
                },
                // Unknown completion, of another queue pair.
                Ok(Completed::Receive(_)) | Err(_) => {}
            }
        }
        let mut received = self.receive();
        // Data received before a request failed stays readable.
        while !failed.is_empty() && matches!(received, Ok(true)) {
            received = self.receive();
        }
        for (tag, error) in failed {
            self.stream.sent(tag, false);
            self.note_failed(error);
        }
        let progressed = received? || sent;
        if progressed {
            self.wake();
        }
        self.pump()?;
        Ok(progressed)
    }

    fn drain_events(&mut self) -> io::Result<()> {
        while (self.sends.is_armed() || self.receives.is_armed())
            && let Some(key) = self.channel.try_next()?
        {
            let queue = match key {
                RECEIVES => &mut self.receives,
                _ => &mut self.sends,
            };
            queue.event_taken();
        }
        Ok(())
    }

    fn arm(&mut self) -> io::Result<()> {
        let interests = self.waiters.interests().copied();
        let interest = interests.fold(Interest::default(), Interest::or);
        let mut armed = self.receives.arm();
        if interest.any || self.flushed || self.stream.waits_for_sent(interest.write) {
            armed = armed.and_then(|()| self.sends.arm());
        }
        armed.map_err(|error| {
            // Of a process with other credentials than at the start: for good.
            if error.raw_os_error() == Some(Errno::ACCESS.raw_os_error()) {
                self.fail_by(&error)
            } else {
                error.into()
            }
        })
    }
}

impl ConnectionState {
    /// Processes the completions present at the call. Later ones may remain: a peer can send without end.
    fn catch_up(&mut self) {
        let Settings {
            send_depth,
            recv_depth,
            ..
        } = *self.stream.settings();
        // Each round processes at least one completion. A failed queue has no more.
        let max_rounds = u32::from(send_depth) + u32::from(recv_depth + SPARE_RECEIVES);
        for _ in 0..max_rounds {
            if !matches!(self.process(), Ok(true)) {
                return;
            }
        }
    }

    /// Processes receive completions. Returns whether there was one.
    fn receive(&mut self) -> io::Result<bool> {
        let Self {
            stream,
            qp,
            receives,
            memory,
            ..
        } = self;
        let mut progressed = false;
        let mut violated = false;
        for wc in receives.poll()? {
            progressed = true;
            let (imm_data, len) = (wc.imm_data(), wc.byte_len());
            match qp.complete(wc) {
                Ok(Completed::Receive(done)) => {
                    let Ok(work) = done.into_work() else {
                        self.flushed = true;
                        continue;
                    };
                    let message = match (imm_data, &work) {
                        (Some(imm_data), _) => Some(imm_data),
                        (None, Some(slot)) => {
                            let mut word = [0; MESSAGE];
                            slot.read(0, &mut word);
                            Some(u32::from_ne_bytes(word))
                        }
                        (None, None) => None,
                    };
                    if stream.is_connected() {
                        qp.post_recv(work).map_err(verbs::Error::from)?;
                    }
                    let Some(message) = message.map(Message::decode) else {
                        continue;
                    };
                    // Without immediate data, as with iWARP, a write of its own may have come before.
                    let may_have_target = len > 0 || imm_data.is_none();
                    if may_have_target && matches!(message, Message::Credit(_)) {
                        memory.target_written();
                    }
                    violated |= stream.received(message, memory).is_err();
                }
                // A completion of another queue pair.
                Ok(Completed::Send(_)) | Err(_) => {}
            }
        }
        if violated {
            if let Some(_failure) = self.stream.failure() {
                note!(warn, self.span, failure = %_failure, "peer violates the protocol");
            }
            self.qp.to_error()?;
        }
        Ok(progressed)
    }

    /// Grows the receive buffer if the stream wants a larger one. Without memory for it, the present one stays in
    /// use.
    fn grow_receive(&mut self) {
        let Self {
            stream, memory, qp, ..
        } = self;
        if let Some(size) = stream.larger_receive_buffer() {
            match memory.grow_receive(qp.pd(), size) {
                Some((addr, rkey)) => stream.receive_into(addr, rkey),
                None => stream.keep_receiving(),
            }
        }
        if !stream.uses_old_buffer() {
            memory.end_old_receive();
        }
    }

    /// Grows the send buffer if the stream wants a larger one. Returns whether it has grown: a call without room
    /// tries again at once, because no completion notifies of the new room.
    fn grow_send(&mut self) -> bool {
        let Self {
            stream, memory, qp, ..
        } = self;
        let Some(size) = stream.larger_send_buffer() else {
            return false;
        };
        let grown = memory.grow_send(qp.pd(), size);
        match grown {
            Some(()) => stream.send_from_new(),
            None => stream.keep_sending(),
        }
        grown.is_some()
    }

    /// Posts unsent bytes with room, and pending control messages.
    fn pump(&mut self) -> io::Result<()> {
        self.grow_receive();
        if !self.unsent.is_empty() {
            self.send_unsent()?;
        }
        while let Some(outgoing) = self.stream.control() {
            self.post(outgoing, &[])?;
        }
        Ok(())
    }

    fn recv(&mut self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<Option<usize>> {
        let capacity = bufs.iter().map(|buf| buf.len()).sum();
        if capacity == 0 || self.stream.unread() == 0 {
            if capacity > 0 && self.exit_phase.blocks() {
                return Ok(None);
            }
            return match self.failure() {
                Some(failure) if !self.stream.is_readable() && !self.stream.has_peer_ended() => {
                    Err(failure)
                }
                _ if capacity == 0 || !self.stream.is_readable() => Ok(Some(0)),
                _ => Ok(None),
            };
        }
        let mut len = 0;
        let mut bufs = bufs.iter_mut();
        let mut rest = &mut [][..];
        for piece in self.stream.next_bytes(capacity) {
            let mut at = piece.range.start as usize;
            let end = piece.range.end as usize;
            while at < end {
                if rest.is_empty() {
                    let Some(buf) = bufs.next() else { break };
                    rest = &mut buf[..];
                }
                let (chunk, after) = rest.split_at_mut(rest.len().min(end - at));
                self.memory.read(piece.is_old, at, chunk);
                at += chunk.len();
                len += chunk.len();
                rest = after;
            }
        }
        if !peek {
            self.stream.consume(len);
            self.pump()?;
        }
        Ok(Some(len))
    }

    /// Posts a write, a message or both, with the caller's bytes `user` as payload.
    fn post(&mut self, outgoing: Outgoing, user: &[u8]) -> io::Result<()> {
        let trailer = outgoing.trailer();
        let Outgoing {
            tag,
            message,
            payload,
            addr,
            rkey,
        } = outgoing;
        let (bytes, source) = match &payload {
            Payload::Nothing => (&[][..], None),
            Payload::Data(_, source) => (user, Some(source)),
            Payload::Target(entry, source) => (&entry[..], Some(source)),
            Payload::Mapping(entry, source) => (&entry[..], Some(source)),
        };
        let remote = RemoteToken {
            addr,
            len: bytes.len() as u64,
            rkey,
        };
        let separate = self.stream.settings().framing == Framing::Separate;
        let word = message.map(Message::encode);
        let imm_data = word.filter(|_| !separate);
        let (memory, qp) = (&self.memory, &mut self.qp);
        // An empty write without a message is a keepalive probe.
        if source.is_some() || !separate || message.is_none() {
            let write = |from| {
                let write = op::Write::new(SendWork::new(from, tag), remote);
                match imm_data {
                    Some(imm_data) => write.imm_data(imm_data),
                    None => write,
                }
            };
            let posted = match source {
                Some(PayloadSource::Inline) => qp
                    .post(write(None).inline(bytes))
                    .map_err(verbs::Error::from),
                None => qp.post(write(None)).map_err(verbs::Error::from),
                Some(PayloadSource::Buffer(first, second)) => {
                    let (head, tail) = bytes.split_at(first.len());
                    let head = memory.fill(first.start as usize, head);
                    let tail = (!tail.is_empty()).then(|| memory.fill(second.start as usize, tail));
                    let from = Some((head, tail));
                    qp.post(write(from)).map_err(verbs::Error::from)
                }
                Some(PayloadSource::Slot(slot)) => {
                    let from = Some((memory.fill_slot(*slot, bytes), None));
                    qp.post(write(from)).map_err(verbs::Error::from)
                }
            };
            posted?;
        }
        if let Some(word) = word.filter(|_| separate) {
            let tag = if source.is_some() { trailer } else { tag };
            let send = op::Send::new(With::new(None, tag));
            qp.post(send.inline(&word.to_ne_bytes()))
                .map_err(verbs::Error::from)?;
        }
        if self.check_at.is_none() {
            self.plan_check();
        }
        self.check_doorbell()
    }

    /// Rings the doorbell of a posted request again if it has failed.
    fn check_doorbell(&mut self) -> io::Result<()> {
        match self.qp.take_doorbell_error() {
            Some(error) => self.ring_again(&error),
            None => {
                self.failed_doorbells = 0;
                Ok(())
            }
        }
    }

    /// Checks for progress of the requests in flight, and of data without room. Returns the time of the next check.
    fn check(&mut self) -> Option<Instant> {
        let now = self.start.elapsed();
        let next = self.stream.check(now, self.limit, self.stall_limit);
        let next = next.unwrap_or_else(|_timed_out| {
            note!(warn, self.span, limit = ?self.limit, stall_limit = ?self.stall_limit, "data not taken in time");
            // Flushes the outstanding requests. If the transition fails, the queue pair has already failed.
            drop(self.qp.to_error());
            self.wake();
            None
        });
        self.check_at = next.and_then(|next| self.start.checked_add(next));
        self.check_at
    }

    /// Starts periodic checks by the engine.
    #[cold]
    fn plan_check(&mut self) {
        if let Some(at) = self.check()
            && let Some(engine) = self.engine.upgrade()
        {
            engine.check_at(at, self.key);
        }
    }

    /// The failure of the connection, if any.
    fn failure(&self) -> Option<io::Error> {
        let failure = self.stream.failure()?;
        Some(ConnectionFailure::new(failure, self.cause.clone()).into_io())
    }

    /// Records the cause of a failed request: the first one only, ignoring flushed requests.
    #[cold]
    fn note_failed(&mut self, mut error: WcError) {
        if self.cause.is_some() || error.status == WcStatus::WR_FLUSH_ERR {
            return;
        }
        if error.status.is_end_of_retries()
            && let Ok(attr) = self.qp.query()
        {
            let mut attempts = attr.attempts();
            attempts.peer = self.id.peer_addr();
            error = error.with_attempts(attempts);
        }
        note!(warn, self.span, %error, "request failed");
        self.cause = Some(Cause::Request(error));
    }

    fn is_flushed(&self) -> bool {
        self.stream.is_flushed()
    }
}
