//! State of an engine, protected by one lock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    os::fd::OwnedFd,
    sync::Arc,
    task::Waker,
    time::Duration,
};

use cm::{ConnectRequest, EventChannel, Key};
use rustix::event::epoll;
use smallvec::SmallVec;
use verbs::{Context, event::EventType};

use super::{
    EngineOptions, INLINE_DEVICES,
    clock::Clock,
    exports::Exports,
    leading::{Leader, Watch},
    listening::Listeners,
    operations::Operations,
    reaper::{self, Reaper},
    wakeup_schedule::WakeupSchedule,
};
use crate::{
    device::Device,
    ib_connection::IbConnection,
    outbound::{Operands, Payload},
    proto::{
        PendingSet, SocketId,
        connection::MessageOutcome,
        link::RequestId,
        node::{ConnectionId, Node, SocketError},
    },
    slots::Body,
    socket::Waiters,
};

/// How long a closing connection waits for its completions before the queue pair is destroyed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Failed `ibv_destroy_qp` attempts after which the queue pair and its buffers are leaked.
const MAX_DESTROY_ATTEMPTS: u32 = 10;

/// Rounds of arming and polling in one [`State::work`] before the lock is released.
const MAX_ROUNDS: u32 = 4;

/// State of an engine, protected by one lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: Node<Payload, Body>,
    pub(super) channel: Arc<EventChannel>,
    pub(super) clock: Arc<Clock>,
    pub(super) schedule: Arc<WakeupSchedule>,
    pub(super) options: EngineOptions,
    pub(super) ib_connections: BTreeMap<ConnectionId, IbConnection>,
    /// Connections by connection manager identifier.
    pub(super) keys: HashMap<Key, ConnectionId>,
    /// Connections by key of their completion queue.
    pub(super) queues: BTreeMap<usize, ConnectionId>,
    pub(super) next_queue: usize,
    /// Connections with unhandled completions. Their notifications are not armed.
    pub(super) due: PendingSet<ConnectionId>,
    pub(super) requests: HashMap<RequestId, ConnectRequest>,
    pub(super) next_request: u64,
    pub(super) listeners: Listeners,
    devices: Vec<Arc<Device>>,
    /// Epoll descriptor through which the engine thread waits for completion events.
    pub(super) poller: Arc<OwnedFd>,
    pub(super) leader: Option<Leader>,
    pub(super) watch: Watch,
    /// The last leader was woken by another thread instead of a completion.
    pub(super) was_notified: bool,
    /// Completion events may be unread, left by the last leader.
    pub(super) has_events: bool,
    /// The last leader was woken by a completion, and has polled every connection.
    pub(super) has_looked: bool,
    /// The last send has polled every connection and found no completion.
    pub(super) looked_in_vain: bool,
    /// The next send may be a reply to a message just received.
    pub(super) answers: bool,
    /// Time of the last poll by a blocked call.
    pub(crate) looked_at: Duration,
    /// Number of waits satisfied without sleeping.
    pub(super) found: u32,
    /// Number of messages queued without a doorbell, to be posted with later ones.
    pub(super) delayed: u32,
    /// Sockets with possible waiters on the descriptor or in tasks, since no call has blocked on
    /// them.
    pub(super) observed: BTreeSet<SocketId>,
    /// The socket of the call about to receive. Its descriptor is updated after the receive.
    pub(super) receiving: Option<SocketId>,
    /// Removed devices with open connections.
    lost: Vec<Arc<Device>>,
    pub(crate) sockets: BTreeMap<SocketId, Arc<Waiters>>,
    /// Exported memory, by owner and key.
    pub(crate) exports: Exports,
    pub(crate) operations: Operations,
    pub(super) reaper: Reaper,
    /// Tasks to be woken by the engine thread without holding the lock.
    pub(super) tasks: Vec<Waker>,
    /// Scope ids of link-local addresses.
    pub(super) scopes: BTreeMap<IpAddr, u32>,
    /// Wake-up time requested from the engine thread by a call. Kept even if the work is done
    /// earlier, because there will be more, and another request would be a system call.
    asked_at: Option<Duration>,
}

impl State {
    pub(super) fn new(
        options: EngineOptions,
        channel: Arc<EventChannel>,
        poller: Arc<OwnedFd>,
        clock: Arc<Clock>,
        schedule: Arc<WakeupSchedule>,
    ) -> Self {
        Self {
            node: Node::new(options.node),
            channel,
            clock,
            schedule,
            options,
            ib_connections: BTreeMap::new(),
            keys: HashMap::new(),
            queues: BTreeMap::new(),
            next_queue: 0,
            due: PendingSet::new(),
            requests: HashMap::new(),
            next_request: 0,
            listeners: Listeners::default(),
            devices: Vec::new(),
            poller,
            leader: None,
            watch: Watch::Thread,
            was_notified: false,
            has_events: false,
            has_looked: false,
            looked_in_vain: false,
            answers: false,
            looked_at: Duration::ZERO,
            found: 0,
            delayed: 0,
            observed: BTreeSet::new(),
            receiving: None,
            lost: Vec::new(),
            sockets: BTreeMap::new(),
            exports: Exports::default(),
            operations: Operations::default(),
            reaper: Reaper::default(),
            tasks: Vec::new(),
            scopes: BTreeMap::new(),
            asked_at: None,
        }
    }

    /// Initial busy-poll time of sockets.
    pub(crate) fn busy_poll(&self) -> Duration {
        self.options.busy_poll
    }

    pub(super) fn devices(&self) -> SmallVec<[Arc<Device>; INLINE_DEVICES]> {
        let mut devices = SmallVec::new();
        for device in &self.devices {
            devices.push(Arc::clone(device));
        }
        devices
    }

    pub(crate) fn devices_here(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// Whether no work is left for the current call.
    pub(super) fn is_quiet(&self) -> bool {
        self.node.is_quiet() && !self.has_due() && self.tasks.is_empty()
    }

    /// Whether completions are unhandled although notifications are in use. Without notifications,
    /// the next call polls.
    fn has_due(&self) -> bool {
        !self.due.is_empty() && self.is_watched()
    }

    /// The engine's state of a device, created on first use.
    pub(super) fn device(&mut self, ctx: &Context) -> verbs::Result<Arc<Device>> {
        let known = |device: &&Arc<Device>| device.pd.context() == ctx;
        if let Some(device) = self.devices.iter().find(known) {
            return Ok(Arc::clone(device));
        }
        let (sends, receives) = (self.options.sends, self.options.receives);
        let device = Arc::new(Device::new(ctx, sends, receives)?);
        if self.watch == Watch::Thread {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&self.poller, &device.channel, data, epoll::EventFlags::IN)
                .map_err(|err| verbs::Error::from_errno("epoll_ctl", err.raw_os_error()))?;
        }
        self.devices.push(Arc::clone(&device));
        // The leader waits on the devices known before.
        self.stop_leader();
        Ok(device)
    }

    /// The device of a socket's address; `None` for a loopback address or a removed device.
    ///
    /// # Errors
    /// The socket is unbound.
    pub(crate) fn device_of(&self, id: SocketId) -> Result<Option<&Arc<Device>>, SocketError> {
        let (local, _) = self.node.names(id)?;
        let local = local.ok_or(SocketError::NotConnected)?;
        Ok(self.listeners.device(local.ip()))
    }

    /// Handles the removal of a device: exports end, and its connections close. The device is
    /// opened again when it returns.
    pub(super) fn device_lost(&mut self, lost: Arc<Device>) {
        self.listeners.forget_device(&lost);
        self.devices.retain(|device| !Arc::ptr_eq(device, &lost));
        // Fails if the channel was removed from the poller before.
        let _: Result<(), _> = epoll::delete(&self.poller, &lost.channel);
        self.stop_leader();
        self.exports.leave(&lost.pd);
        if !self.lost.iter().any(|device| Arc::ptr_eq(device, &lost)) {
            self.lost.push(lost);
        }
    }

    /// Releases removed devices without connections, because the kernel waits for their file
    /// descriptors. Queued messages move to the heap; operations on memory of these devices fail
    /// with `Dropped`.
    fn leave_lost(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let (used, left): (Vec<_>, Vec<_>) = self.lost.drain(..).partition(|device| {
            let mut used = self
                .ib_connections
                .values()
                .filter_map(IbConnection::device);
            used.any(|other| Arc::ptr_eq(other, device))
        });
        self.lost = used;
        for device in left {
            let connections: Vec<ConnectionId> = self.node.connections().collect();
            for id in connections {
                self.node.give_up(id, |payload| payload.needs(&device.pd));
                self.node.payloads(id, |payload| payload.leave(&device.pd));
            }
            for body in self.node.bodies_mut() {
                body.leave(&device.pd);
            }
        }
    }

    /// Performs overdue work and schedules the next wake-up. Returns the time to check whether
    /// calls still handle completions.
    pub(super) fn prepare(&mut self, now: Duration) -> Option<Duration> {
        let overdue = self.deadlines().filter(|&(at, _)| at <= now);
        let overdue: Vec<ConnectionId> = overdue.map(|(_, id)| id).collect();
        for id in overdue {
            self.advance(now, id);
        }
        self.listeners_due(now);
        self.relieve(now);
        self.node.retire_acked();
        self.work(now);
        self.asked_at = self.asked_at.filter(|&at| at > now);
        let deadlines = self.deadlines().map(|(at, _)| at);
        let others = self.listeners.deadline().into_iter().chain(self.asked_at);
        let at = deadlines.chain(others).min();
        self.schedule
            .set(if self.has_due() { Some(now) } else { at });
        self.relief()
    }

    /// Deadlines of all connections.
    fn deadlines(&self) -> impl Iterator<Item = (Duration, ConnectionId)> {
        let connections = self.node.connections();
        connections.filter_map(|id| Some((self.deadline(id)?, id)))
    }

    /// The next time at which a connection needs [`advance`](Self::advance).
    fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let conn = self.ib_connections.get(&id);
        let drained = conn.and_then(|conn| Some(conn.closing? + DRAIN_TIMEOUT));
        let rtu = conn.and_then(IbConnection::rtu_deadline);
        let deadlines = self.node.deadline(id).into_iter();
        deadlines.chain(drained).chain(rtu).min()
    }

    /// Runs the protocol of busy connections, and notifies sockets. Returns whether the engine
    /// thread has to wake up earlier than scheduled.
    pub(super) fn work(&mut self, now: Duration) -> bool {
        let mut earlier = false;
        self.end_delay();
        for rounds in (0..MAX_ROUNDS).rev() {
            while let Some(id) = self.node.busy() {
                self.advance(now, id);
                let at = self.deadline(id);
                earlier |= at.is_some_and(|at| self.wake_at(at));
            }
            if rounds == 0 || !self.is_watched() || !self.arm(now) {
                break;
            }
        }
        self.leave_lost();
        if self.node.retire_due() {
            self.node.retire_acked();
        }
        while let Some(finished) = self.node.finished() {
            let owner = finished.message.owner;
            let payload = finished.message.draft.payload;
            if let Some(&Operands { peer, .. }) = payload.operands() {
                let failed = finished.outcome != MessageOutcome::Done || finished.failed.is_some();
                self.operations.end(owner, peer, finished.sequence, failed);
            }
            self.over(owner, &payload);
        }
        while let Some(id) = self.node.woken() {
            self.wake(id);
        }
        earlier || self.has_due() || !self.tasks.is_empty()
    }

    /// Requests a wake-up of the engine thread by `at`. Returns whether the thread must be
    /// notified.
    pub(super) fn wake_at(&mut self, at: Duration) -> bool {
        if !self.schedule.is_earlier(at) {
            return false;
        }
        self.asked_at = Some(at);
        self.schedule.add(at)
    }

    /// Runs the protocol of one connection: actions, posting, closing.
    fn advance(&mut self, now: Duration, id: ConnectionId) {
        if self.node.is_idle(now, id) {
            return;
        }
        while let Some(action) = self.node.poll(now, id) {
            self.act(now, id, action);
        }
        self.post(now, id);
        self.rearm_if_needed(id);
        let Some(conn) = self.ib_connections.get_mut(&id) else {
            return;
        };
        if conn.take_rtu_timeout(now) {
            // Fails if the RTU has arrived meanwhile.
            drop(self.channel.notify(conn.key, EventType::COMM_EST));
        }
        if let Some(since) = conn.closing
            && (conn.is_drained() || since + DRAIN_TIMEOUT <= now)
        {
            self.close(now, id);
        }
    }

    /// Destroys a connection after its completions, or after [`DRAIN_TIMEOUT`].
    #[cold]
    fn close(&mut self, now: Duration, id: ConnectionId) {
        let Some(conn) = self.ib_connections.get_mut(&id) else {
            return;
        };
        let may_have_lost_rx = conn.may_have_lost_rx();
        let is_destroyed = conn.destroy(&mut self.reaper);
        if !is_destroyed {
            conn.destroy_attempts += 1;
            if conn.destroy_attempts < MAX_DESTROY_ATTEMPTS {
                // Retry later, since the device has not released the queue pair.
                conn.closing = Some(now);
                return;
            }
        }
        let attempt = conn.attempt;
        self.keys.remove(&conn.key);
        self.queues.retain(|_, connection| *connection != id);
        self.ib_connections.remove(&id);
        if may_have_lost_rx {
            self.node.mark_rx_lost(id);
        }
        self.node.closed(now, id, attempt);
        if !is_destroyed {
            // Messages with leaked buffers cannot be sent again.
            self.node.give_up(id, |payload| payload.is_posted());
        }
    }

    /// Reports the completion of a zero-copy message to its socket.
    pub(crate) fn over(&mut self, owner: SocketId, payload: &Payload) {
        if let Some((name, waiters)) = payload.name().zip(self.sockets.get(&owner)) {
            waiters.add_zero_copy_done(name);
            waiters.show_if_watched(&mut self.node);
            waiters.wake(&mut self.tasks);
            self.call_leader(owner);
        }
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, id: SocketId) {
        self.sockets.remove(&id);
        self.observed.remove(&id);
        self.exports.forget(id);
        self.operations.forget(id);
    }

    /// Notifies waiters of a socket.
    fn wake(&mut self, id: SocketId) {
        if let Some(waiters) = self.sockets.get(&id) {
            if self.receiving != Some(id) {
                waiters.show_if_watched(&mut self.node);
            }
            waiters.wake(&mut self.tasks);
            self.call_leader(id);
        }
    }

    /// Closes and destroys all connections.
    pub(super) fn end(&mut self) {
        self.requests.clear();
        self.listeners = Listeners::default();
        let now = Duration::ZERO;
        for conn in self.ib_connections.values_mut() {
            if conn.close(now) {
                self.reaper.cancel(&self.channel, conn.key);
            }
        }
        for (_, mut conn) in std::mem::take(&mut self.ib_connections) {
            // Dropping the connection destroys the rest.
            conn.destroy(&mut self.reaper);
        }
        self.reaper.wait(reaper::SHUTDOWN_TIMEOUT);
    }
}
