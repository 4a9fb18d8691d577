//! The engine thread, which handles disconnects and timers, and the set-up thread, which establishes connections.
//!
//! These two threads serve all sockets of the process. They move no stream data, only the first datagrams to a
//! peer, sent over UDP. Creating a queue pair and registering memory take calls into the kernel, which delay further
//! connections only.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc::SyncSender,
    },
    time::{Duration, Instant},
};

use cm::{ConnectFailure, ConnectRequest, Event, EventChannel, Key};
use rustix::{
    event::{Timespec, epoll},
    process::Pid,
};
use verbs::{Context, fd::wait_any_readable, panics::survive, waiting::EventFd};

use crate::{
    backlog::{Backlog, Closed, HalfOpen, RequestOutcome},
    connecting::Connecting,
    connection::Connection,
    datagram::{DatagramSocket, resolve},
    device::Devices,
    exit::{ExitProgress, ExitRequest},
    setup::{DEFERRED_CHECK, SetUp},
    timers::{Action, TimerId, Timers},
    unsent::Unsent,
};

mod current;

/// Maximum number of datagram sockets served per round for received UDP datagrams.
const MAX_SOCKETS_PER_ROUND: usize = 64;

/// Interval between attempts to find the engines at the exit of the process.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(1);

/// The event channel of all identifiers, and the owners of these identifiers.
#[derive(Debug)]
pub(crate) struct Engine {
    channel: EventChannel,
    devices: Devices,
    owners: Mutex<HashMap<Key, IdOwner>>,
    timers: Mutex<Timers<Key>>,
    unsent: Unsent,
    /// Work of the set-up thread.
    setup: SyncSender<Setup>,
    /// Notified of a new timer.
    event_fd: EventFd,
    /// In place of descriptors that cannot be created.
    always_readable: Arc<EventFd>,
    /// Listeners with deferred requests.
    deferring: Mutex<Vec<Weak<Backlog>>>,
    /// Datagram sockets by their names in `udp`.
    datagram_sockets: Mutex<HashMap<u64, Weak<DatagramSocket>>>,
    next_socket_name: AtomicU64,
    /// `epoll` instance of the UDP sockets.
    udp: verbs::fd::InternalFd,
    exit: ExitRequest,
    process: u64,
    /// Unlike `process`, differs in the child of a `vfork`.
    pid: Pid,
    /// Whether the kernel refuses calls on the channel.
    is_refused: AtomicBool,
    /// Whether the engine has no socket any more, and its threads end.
    has_ended: AtomicBool,
}

/// Work of the set-up thread, in the order of the connection manager's events.
#[derive(Debug)]
pub(crate) enum Setup {
    /// An event of an identifier without an established connection.
    Event(Event),
    /// The deadline of a half-open connection has passed.
    Expire(Key),
    /// There is a place for a deferred request.
    ServeDeferred,
}

/// Owner of an identifier. Weak references: the engine keeps no owner alive.
#[derive(Debug)]
enum IdOwner {
    Connecting(Weak<Connecting>),
    /// With the device, if the listener is bound to one.
    Listening(Weak<Backlog>, Option<Context>),
    /// A deferred request, waiting for a place in the listener's backlog.
    Deferred(Weak<Backlog>),
    /// A half-open connection of a listener, until the peer completes the handshake.
    Accepting(Weak<Backlog>, Box<HalfOpen>),
    Connected(Weak<Connection>),
    /// A local endpoint of a datagram socket.
    Bound(Weak<DatagramSocket>),
    /// A route resolution for a datagram peer.
    Resolving(Weak<DatagramSocket>, SocketAddr),
}

impl Engine {
    /// Has the engine thread disconnect all streams; see [`disconnect_all`](crate::disconnect_all), and with a thread
    /// [`disconnect_at_exit`](crate::disconnect_at_exit).
    pub(crate) fn request_exit(&self, limit: Duration, thread: Option<Pid>) {
        self.exit.make(limit, thread);
        self.event_fd.notify();
    }

    pub(crate) fn exit_request(&self) -> &ExitRequest {
        &self.exit
    }

    /// Returns all connections, those closed by the program among them.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let owners = self.owners();
        let connections = owners.values().filter_map(|owner| match owner {
            IdOwner::Connected(connection) => connection.upgrade(),
            _ => None,
        });
        connections.collect()
    }

    /// Returns all datagram sockets.
    pub(crate) fn all_datagram_sockets(&self) -> Vec<Arc<DatagramSocket>> {
        let sockets = self.datagram_sockets();
        sockets.values().filter_map(Weak::upgrade).collect()
    }

    /// A descriptor for callers to poll without end, when too many files are open for one of their own.
    pub(crate) fn always_readable(&self) -> BorrowedFd<'_> {
        self.always_readable.as_fd()
    }

    pub(crate) fn channel(&self) -> &EventChannel {
        &self.channel
    }

    pub(crate) fn devices(&self) -> &Devices {
        &self.devices
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<Key, IdOwner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timers(&self) -> MutexGuard<'_, Timers<Key>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn register_attempt(&self, key: Key, connecting: &Arc<Connecting>) {
        let owner = IdOwner::Connecting(Arc::downgrade(connecting));
        self.owners().insert(key, owner);
    }

    pub(crate) fn connected(&self, key: Key, connection: &Arc<Connection>) {
        let owner = IdOwner::Connected(Arc::downgrade(connection));
        self.owners().insert(key, owner);
    }

    pub(crate) fn listen(&self, key: Key, backlog: &Arc<Backlog>, device: Option<Context>) {
        let owner = IdOwner::Listening(Arc::downgrade(backlog), device);
        self.owners().insert(key, owner);
    }

    fn datagram_sockets(&self) -> MutexGuard<'_, HashMap<u64, Weak<DatagramSocket>>> {
        self.datagram_sockets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a name for a new datagram socket.
    pub(crate) fn new_socket_name(&self) -> u64 {
        self.next_socket_name.fetch_add(1, Relaxed)
    }

    /// Starts notifying a datagram socket of received UDP datagrams.
    pub(crate) fn watch_udp(
        &self,
        name: u64,
        socket: Weak<DatagramSocket>,
        udp: impl AsFd,
    ) -> io::Result<()> {
        self.datagram_sockets().insert(name, socket);
        let data = epoll::EventData::new_u64(name);
        Ok(epoll::add(&self.udp, udp, data, epoll::EventFlags::IN)?)
    }

    /// Adds or removes notification of free space in the UDP send buffer.
    pub(crate) fn watch_udp_writable(
        &self,
        name: u64,
        udp: impl AsFd,
        is_armed: bool,
    ) -> io::Result<()> {
        let mut events = epoll::EventFlags::IN;
        events.set(epoll::EventFlags::OUT, is_armed);
        let data = epoll::EventData::new_u64(name);
        Ok(epoll::modify(&self.udp, udp, data, events)?)
    }

    /// Stops notifying a datagram socket of UDP events.
    pub(crate) fn unwatch_udp(&self, udp: impl AsFd) {
        // Fails harmlessly if notification was never started.
        let _: rustix::io::Result<()> = epoll::delete(&self.udp, udp);
    }

    pub(crate) fn remove_datagram_socket(&self, name: u64) {
        let socket = self.datagram_sockets().remove(&name);
        drop(socket);
    }

    pub(crate) fn bound(&self, key: Key, socket: Weak<DatagramSocket>) {
        self.owners().insert(key, IdOwner::Bound(socket));
    }

    pub(crate) fn resolving_peer(&self, key: Key, socket: Weak<DatagramSocket>, peer: SocketAddr) {
        self.owners().insert(key, IdOwner::Resolving(socket, peer));
    }

    /// Drops the owner of an identifier. An identifier waiting for an event is destroyed.
    pub(crate) fn forget(&self, key: Key) {
        let owner = self.owners().remove(&key);
        drop(owner);
        self.channel.cancel(key);
    }

    /// Ends a half-open connection and releases its memory.
    pub(crate) fn abandon(&self, key: Key) {
        drop(self.remove_owner(key));
        self.channel.cancel(key);
    }

    /// Wakes the set-up thread to serve deferred requests.
    pub(crate) fn wake_for_deferred(&self) {
        // With other work, the thread serves deferred requests anyway.
        drop(self.setup.try_send(Setup::ServeDeferred));
    }

    fn send_to_setup(&self, work: Setup) {
        // Fails only if the thread has panicked.
        drop(self.setup.send(work));
    }

    fn deferring(&self) -> MutexGuard<'_, Vec<Weak<Backlog>>> {
        self.deferring
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a listener holds a request back.
    fn defer(&self, key: Key, backlog: &Arc<Backlog>) {
        let backlog_ref = Arc::downgrade(backlog);
        let mut deferring = self.deferring();
        if !deferring
            .iter()
            .any(|entry| Weak::ptr_eq(entry, &backlog_ref))
        {
            deferring.push(Weak::clone(&backlog_ref));
        }
        drop(deferring);
        self.owners().insert(key, IdOwner::Deferred(backlog_ref));
    }

    /// Keeps the half-open connection of an accepted request until the handshake completes.
    fn accepting(&self, key: Key, backlog: &Arc<Backlog>, half_open: Box<HalfOpen>) {
        if let Some(deadline) = half_open.deadline {
            self.timers().add((deadline, key, Action::Expire));
        }
        let backlog = Arc::downgrade(backlog);
        let owner = IdOwner::Accepting(backlog, half_open);
        self.owners().insert(key, owner);
    }

    /// Serves one deferred request of a listener. Returns whether others remain.
    fn serve_deferred_of(&self, backlog: &Arc<Backlog>, any_served: &mut bool) -> bool {
        if let Some((key, served)) = backlog.serve_deferred(self) {
            *any_served |= !matches!(served, Ok(RequestOutcome::Deferred));
            match served {
                Ok(RequestOutcome::HalfOpen(half_open)) => self.accepting(key, backlog, half_open),
                // Without memory or an object of the device for the request.
                Ok(RequestOutcome::Deferred) => {}
                Err(_) => drop(self.remove_owner(key)),
            }
        }
        let (expired, more_remain) = backlog.expire_deferred();
        for key in expired {
            drop(self.remove_owner(key));
        }
        more_remain
    }

    /// Sends a keepalive probe every `interval`, replacing an earlier interval. Zero disables the probes.
    pub(crate) fn keep_alive(&self, key: Key, interval: Duration) {
        self.timers().keep_alive(Instant::now(), key, interval);
        self.event_fd.notify();
    }

    fn set_timer(&self, timer: TimerId<Key>) {
        self.timers().add(timer);
        self.event_fd.notify();
    }

    /// Schedules a check for unacknowledged data.
    pub(crate) fn check_at(&self, at: Instant, key: Key) {
        self.set_timer((at, key, Action::Check));
    }

    /// Schedules the end of a connection attempt after `timeout`. Returns the handle for
    /// [`forget_timeout`](Self::forget_timeout), or `None` if the deadline is not representable.
    #[cfg(feature = "tokio")]
    pub(crate) fn time_out_after(&self, timeout: Duration, key: Key) -> Option<TimerId<Key>> {
        let deadline = Instant::now().checked_add(timeout)?;
        let timer = (deadline, key, Action::TimeOut(timeout));
        self.set_timer(timer);
        Some(timer)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn forget_timeout(&self, timer: TimerId<Key>) {
        self.timers().remove(timer);
    }

    /// Keeps a connection until all sent data has been acknowledged, at most until `deadline`.
    pub(crate) fn linger(&self, connection: Arc<Connection>, deadline: Option<Instant>) {
        if let Some(timer) = self.unsent.add_dropped(connection, deadline) {
            self.set_timer(timer);
        }
    }

    /// Ends a connection dropped by the program, for a request from an address that lacks memory, descriptors or objects of the
    /// device. Returns whether there was one.
    pub(crate) fn displace_dropped(&self, addr: IpAddr) -> bool {
        let (is_displaced, timer) = self.unsent.displace(addr);
        if let Some(timer) = timer {
            self.timers().remove(timer);
        }
        is_displaced
    }

    /// Sends the retained data and the shutdown message of a connection as soon as there is room.
    pub(crate) fn deliver_later(&self, key: Key) {
        self.set_timer((Instant::now(), key, Action::Deliver));
    }

    /// Whether the peer of a stream dropped by the program has not acknowledged all data.
    pub(crate) fn has_dropped(&self) -> bool {
        self.unsent.has_dropped()
    }

    /// Ends the timers of a connection.
    pub(crate) fn end_timers(&self, key: Key, check_at: Option<Instant>) {
        self.timers().end(key, check_at);
    }

    fn run(self: Arc<Self>) {
        let mut exit = ExitProgress::default();
        while !self.has_ended.load(SeqCst) {
            survive(|| self.serve_round(&mut exit));
        }
    }

    /// Runs expired timers, waits, and handles the events.
    fn serve_round(&self, exit: &mut ExitProgress) {
        for timer in self.unsent.serve() {
            self.timers().remove(timer);
        }
        let next = [self.run_timers(), exit.serve(self)];
        let next = next.into_iter().flatten().min();
        let fds = [
            self.readable_channel(),
            self.event_fd.as_fd(),
            self.udp.as_fd(),
            self.unsent.as_fd(),
        ];
        let remaining = next.map(|at| at.saturating_duration_since(Instant::now()));
        // An expired timer, and a failure, need the same work as an event.
        drop(wait_any_readable("poll", fds, remaining));
        self.event_fd.drain();
        self.receive_udp();
        self.receive_events();
    }

    /// Handles the end of an established connection. All other events are the set-up thread's, also the end of
    /// a connection whose establishment that thread has not handled yet.
    fn dispatch(&self, event: Event) {
        match event {
            Event::Disconnected { key, cause } if self.connection(key).is_some() => {
                self.ended(key, cause);
            }
            Event::DeviceRemoval(key) if self.connection(key).is_some() => {
                self.ended(key, Some(ConnectFailure::DeviceRemoved));
            }
            event => self.send_to_setup(Setup::Event(event)),
        }
    }

    /// Notifies the datagram sockets with UDP events.
    fn receive_udp(&self) {
        let mut events = Vec::with_capacity(MAX_SOCKETS_PER_ROUND);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        // Only a signal can interrupt the call; the events stay pending.
        let _: rustix::io::Result<usize> =
            epoll::wait(&self.udp, buffer, Some(&Timespec::default()));
        for event in events {
            let socket = self
                .datagram_sockets()
                .get(&event.data.u64())
                .and_then(Weak::upgrade);
            if let Some(socket) = socket {
                socket.udp_ready();
            }
        }
    }

    /// Returns the datagram socket and the peer of a route resolution.
    fn resolving(&self, key: Key) -> Option<(Arc<DatagramSocket>, SocketAddr)> {
        match self.owners().get(&key)? {
            IdOwner::Resolving(socket, peer) => Some((socket.upgrade()?, *peer)),
            _ => None,
        }
    }

    /// Ends a failed route resolution.
    fn resolution_failed(&self, key: Key) {
        if let Some((socket, peer)) = self.resolving(key) {
            self.forget(key);
            socket.path_resolved(peer, None);
        }
    }

    /// Runs the expired timers and returns the time of the next one.
    fn run_timers(&self) -> Option<Instant> {
        let now = Instant::now();
        loop {
            let mut timers = self.timers();
            let Some((at, key, action)) = timers.take_expired(now) else {
                return timers.next();
            };
            // Connections set timers themselves.
            drop(timers);
            self.expired(at, key, action);
        }
    }

    fn expired(&self, at: Instant, key: Key, action: Action) {
        match action {
            Action::KeepAlive => match self.connection(key) {
                // The connection records its own failure.
                Some(connection) => drop(connection.keep_alive()),
                None => self.timers().keep_alive(at, key, Duration::ZERO),
            },
            Action::Check => {
                let next = self.connection(key).and_then(|found| found.check(at));
                if let Some(next) = next {
                    self.timers().add((next, key, Action::Check));
                }
            }
            #[cfg(feature = "tokio")]
            Action::TimeOut(timeout) => {
                if let Some(connecting) = self.connecting(key) {
                    connecting.time_out(timeout);
                }
            }
            Action::Expire => self.send_to_setup(Setup::Expire(key)),
            Action::Deliver => {
                if let Some(connection) = self.connection(key) {
                    self.unsent.add(&connection);
                }
            }
            Action::EndDelivery(name) => self.unsent.end(name),
        }
    }

    /// Ends a half-open connection past its deadline.
    fn expire(&self, key: Key) {
        let listener = match self.owners().get(&key) {
            Some(IdOwner::Accepting(backlog, _)) => backlog.upgrade(),
            // The peer has completed the handshake just in time, or has left.
            _ => return,
        };
        if let Some(listener) = listener {
            listener.timed_out(key);
        }
        self.abandon(key);
    }

    /// Returns the live connection of an identifier.
    fn connection(&self, key: Key) -> Option<Arc<Connection>> {
        match self.owners().get(&key)? {
            IdOwner::Connected(connection) => connection.upgrade(),
            _ => None,
        }
    }

    fn connecting(&self, key: Key) -> Option<Arc<Connecting>> {
        match self.owners().get(&key)? {
            IdOwner::Connecting(connecting) => connecting.upgrade(),
            _ => None,
        }
    }

    /// Handles the failure of a connection attempt, or of the handshake with a peer.
    fn connect_failed(&self, key: Key, failure: ConnectFailure) {
        match self.remove_owner(key) {
            Some(IdOwner::Connecting(connecting)) => self.attempt_failed(&connecting, failure),
            Some(IdOwner::Accepting(backlog, _)) => failed_handshake(&backlog, key),
            _ => {}
        }
    }

    /// Ends a connection attempt. A removed device is released.
    fn attempt_failed(&self, connecting: &Weak<Connecting>, failure: ConnectFailure) {
        let Some(connecting) = connecting.upgrade() else {
            return;
        };
        let removed = failure == ConnectFailure::DeviceRemoved;
        if let Some(ctx) = connecting.device().filter(|_| removed) {
            self.devices.forget(&ctx);
        }
        connecting.failed(failure);
    }

    /// Passes a connection request to its listener.
    fn connect_requested(&self, request: ConnectRequest) {
        let backlog = match self.owners().get(&request.listener()) {
            Some(IdOwner::Listening(backlog, _)) => backlog.upgrade(),
            _ => None,
        };
        let key = request.id().key();
        // A request that cannot be accepted has already been rejected; the listener continues.
        if let Some(backlog) = backlog
            && let Ok(answer) = backlog.requested(self, request)
        {
            match answer {
                RequestOutcome::HalfOpen(half_open) => self.accepting(key, &backlog, half_open),
                RequestOutcome::Deferred => self.defer(key, &backlog),
            }
        }
    }

    /// Handles one event. Dropping an identifier without an owner destroys the identifier.
    fn handle_event(self: &Arc<Self>, event: Event) {
        match event {
            Event::AddrResolved(id) => {
                let key = id.key();
                if let Some(connecting) = self.connecting(key) {
                    connecting.addr_resolved(id);
                } else if self.resolving(key).is_some() && resolve::resolve_route(id).is_err() {
                    self.resolution_failed(key);
                }
            }
            Event::AddrError { id, error } => {
                let key = id.key();
                if let Some(connecting) = self.connecting(key) {
                    connecting.addr_error(id, error);
                } else {
                    self.resolution_failed(key);
                }
            }
            Event::RouteResolved(id) => {
                let key = id.key();
                if let Some(connecting) = self.connecting(key) {
                    connecting.route_resolved(self, id);
                } else if let Some((socket, peer)) = self.resolving(key) {
                    self.forget(key);
                    socket.path_resolved(peer, resolve::peer_path(self, &id).ok());
                }
            }
            Event::RouteError { id, error } => {
                let key = id.key();
                if let Some(connecting) = self.connecting(key) {
                    connecting.route_error(id, error);
                } else {
                    self.resolution_failed(key);
                }
            }
            Event::ConnectResponse(response) => {
                let key = response.id().key();
                if let Some(connecting) = self.connecting(key) {
                    connecting.responded(self, response);
                }
            }
            Event::ConnectFailed { id, failure } => self.connect_failed(id.key(), failure),
            Event::ConnectRequest(request) => self.connect_requested(request),
            Event::Established(id) => self.established(id),
            Event::Disconnected { key, cause } => self.ended(key, cause),
            Event::DeviceRemoval(key) => self.ended(key, Some(ConnectFailure::DeviceRemoved)),
            _ => {}
        }
    }

    /// Handles a disconnect or the removal of a device.
    fn ended(&self, key: Key, cause: Option<ConnectFailure>) {
        let removed = cause == Some(ConnectFailure::DeviceRemoved);
        let connection = match self.remove_owner(key) {
            Some(IdOwner::Connected(connection)) => connection.upgrade(),
            Some(IdOwner::Accepting(backlog, half_open)) => {
                failed_handshake(&backlog, key);
                if removed {
                    self.devices.forget(half_open.context());
                }
                None
            }
            Some(IdOwner::Deferred(backlog)) => {
                if let Some(backlog) = backlog.upgrade() {
                    backlog.withdrawn(key);
                }
                None
            }
            Some(IdOwner::Bound(socket)) => {
                let socket = socket.upgrade();
                if let Some(ctx) = socket.and_then(|socket| socket.device_removed(key)) {
                    self.devices.forget(&ctx);
                }
                None
            }
            Some(IdOwner::Resolving(socket, peer)) => {
                if let Some(socket) = socket.upgrade() {
                    socket.path_resolved(peer, None);
                }
                None
            }
            Some(IdOwner::Listening(backlog, device)) => {
                if let Some(backlog) = backlog.upgrade() {
                    backlog.close(self, Closed::DeviceRemoved);
                }
                if let Some(ctx) = device {
                    self.devices.forget(&ctx);
                }
                None
            }
            // Between two steps of an attempt, no identifier is waiting for an event, so none reports the failure.
            Some(IdOwner::Connecting(connecting)) => {
                let failure = cause.clone().unwrap_or(ConnectFailure::Disconnected);
                self.attempt_failed(&connecting, failure);
                None
            }
            None => None,
        };
        let Some(connection) = connection else {
            return;
        };
        connection.lost(cause);
        if removed {
            self.devices.forget(connection.pd().context());
        }
    }

    /// Establishes a half-open connection whose peer has completed the handshake.
    fn established(self: &Arc<Self>, id: cm::CmId<cm::phases::Connected>) {
        let key = id.key();
        let Some(IdOwner::Accepting(backlog, half_open)) = self.remove_owner(key) else {
            return;
        };
        // Without a listener or memory, dropping the identifier disconnects the peer.
        if let Some(backlog) = backlog.upgrade()
            && let Ok(connection) = backlog.established(self, *half_open, id)
        {
            self.connected(key, &connection);
            backlog.offer(connection);
        }
    }

    /// Removes the owner of an identifier, with the timer of a half-open connection.
    fn remove_owner(&self, key: Key) -> Option<IdOwner> {
        let owner = self.owners().remove(&key)?;
        if let IdOwner::Accepting(_, half_open) = &owner
            && let Some(deadline) = half_open.deadline
        {
            self.timers().remove((deadline, key, Action::Expire));
        }
        Some(owner)
    }
}

impl SetUp for Arc<Engine> {
    type Work = Setup;

    fn handle_first(&self, work: Setup) -> Option<Setup> {
        match work {
            // A deferred request may displace a half-open connection: the handshakes completed meanwhile come first.
            Setup::Event(Event::Established(id)) => {
                self.established(id);
                None
            }
            other => Some(other),
        }
    }

    fn handle(&self, work: Setup) {
        match work {
            Setup::Event(event) => self.handle_event(event),
            Setup::Expire(key) => self.expire(key),
            Setup::ServeDeferred => {}
        }
    }

    fn serve_deferred(&self) -> Option<Instant> {
        // Taken off the list once without deferred requests, so that a panic takes none off.
        let deferring = self.deferring().clone();
        let mut any_served = false;
        for entry in &deferring {
            let backlog = entry.upgrade();
            let more_remain =
                backlog.is_some_and(|backlog| self.serve_deferred_of(&backlog, &mut any_served));
            if !more_remain {
                self.deferring().retain(|other| !Weak::ptr_eq(other, entry));
            }
        }
        let pause = if any_served {
            Duration::ZERO
        } else {
            DEFERRED_CHECK
        };
        (!self.deferring().is_empty()).then(|| Instant::now() + pause)
    }
}

/// Reports the failed handshake of a half-open connection to its listener.
fn failed_handshake(backlog: &Weak<Backlog>, key: Key) {
    if let Some(backlog) = backlog.upgrade() {
        backlog.failed(key);
    }
}
