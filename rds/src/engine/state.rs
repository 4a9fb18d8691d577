//! State of an engine, protected by one lock.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use cm::{ConnectRequest, EventChannel, Key};
use rustix::event::epoll;
use verbs::{Context, event::EventType, waiting::Waiters};

use super::{
    EngineOptions,
    clock::Clock,
    exports::Exports,
    listening::Listeners,
    operations::Operations,
    reaper::{self, Reaper},
    timers::Timers,
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
    socket::Descriptors,
};

/// How long a closing connection waits for its completions before the queue pair is destroyed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Failed `ibv_destroy_qp` attempts after which the queue pair and its buffers are leaked.
const MAX_DESTROY_ATTEMPTS: u32 = 10;

/// State of an engine, protected by one lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: Node<Payload, Body>,
    pub(super) channel: Arc<EventChannel>,
    pub(super) clock: Arc<Clock>,
    pub(super) options: EngineOptions,
    pub(crate) waiters: Waiters<SocketId>,
    pub(super) timers: Timers<ConnectionId>,
    /// Time of the engine thread's next wake-up: zero while the thread is awake.
    pub(super) thread_wakes_at: Duration,
    pub(super) ib_connections: BTreeMap<ConnectionId, IbConnection>,
    /// Connections by connection manager identifier.
    pub(super) keys: HashMap<Key, ConnectionId>,
    /// Connections by key of their completion queue.
    pub(super) queues: BTreeMap<usize, ConnectionId>,
    pub(super) next_queue: usize,
    /// Connections whose queues are not armed: the next call polls them.
    pub(super) due: PendingSet<ConnectionId>,
    /// Number of armed queues: upper bound of the events to be taken.
    pub(super) armed: usize,
    /// The queues were armed and polled under this lock, so that the next poll takes no events.
    pub(super) has_just_armed: bool,
    pub(super) requests: HashMap<RequestId, ConnectRequest>,
    pub(super) next_request: u64,
    pub(super) listeners: Listeners,
    pub(super) devices: Vec<Arc<Device>>,
    /// Epoll descriptor over the completion channels of all devices.
    pub(super) channels: Arc<OwnedFd>,
    /// Sockets with possible waiters on the descriptor, since no call has blocked on them.
    pub(super) watched: BTreeSet<SocketId>,
    /// Removed devices with open connections.
    lost: Vec<Arc<Device>>,
    pub(crate) sockets: BTreeMap<SocketId, Arc<Descriptors>>,
    /// Exported memory, by owner and key.
    pub(crate) exports: Exports,
    pub(crate) operations: Operations,
    pub(super) reaper: Reaper,
    /// Scope ids of link-local addresses.
    pub(super) scopes: BTreeMap<IpAddr, u32>,
}

impl State {
    pub(super) fn new(
        options: EngineOptions,
        channel: Arc<EventChannel>,
        channels: Arc<OwnedFd>,
        clock: Arc<Clock>,
    ) -> Self {
        Self {
            node: Node::new(options.node),
            channel,
            clock,
            options,
            waiters: Waiters::new(),
            timers: Timers::new(),
            thread_wakes_at: Duration::ZERO,
            ib_connections: BTreeMap::new(),
            keys: HashMap::new(),
            queues: BTreeMap::new(),
            next_queue: 0,
            due: PendingSet::new(),
            armed: 0,
            has_just_armed: false,
            requests: HashMap::new(),
            next_request: 0,
            listeners: Listeners::default(),
            devices: Vec::new(),
            channels,
            watched: BTreeSet::new(),
            lost: Vec::new(),
            sockets: BTreeMap::new(),
            exports: Exports::default(),
            operations: Operations::default(),
            reaper: Reaper::default(),
            scopes: BTreeMap::new(),
        }
    }

    /// Initial busy-poll time of sockets.
    pub(crate) fn busy_poll(&self) -> Duration {
        self.options.busy_poll
    }

    pub(crate) fn devices(&self) -> &[Arc<Device>] {
        &self.devices
    }

    /// The engine's state of a device, created on first use.
    pub(super) fn device(&mut self, ctx: &Context) -> verbs::Result<Arc<Device>> {
        let known = |device: &&Arc<Device>| device.pd.context() == ctx;
        if let Some(device) = self.devices.iter().find(known) {
            return Ok(Arc::clone(device));
        }
        let (sends, receives) = (self.options.sends, self.options.receives);
        let device = Arc::new(Device::new(ctx, sends, receives)?);
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.channels, &device.channel, data, epoll::EventFlags::IN)
            .map_err(|err| verbs::Error::from_errno("epoll_ctl", err.raw_os_error()))?;
        self.devices.push(Arc::clone(&device));
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
        // Fails if the channel was deleted before.
        let _: Result<(), _> = epoll::delete(&self.channels, &lost.channel);
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

    /// The next time at which a connection needs [`advance`](Self::advance).
    fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let conn = self.ib_connections.get(&id);
        let drained = conn.and_then(|conn| Some(conn.closing? + DRAIN_TIMEOUT));
        let rtu = conn.and_then(IbConnection::rtu_deadline);
        let deadlines = self.node.deadline(id).into_iter();
        deadlines.chain(drained).chain(rtu).min()
    }

    /// Runs the protocol of busy connections, and notifies sockets.
    pub(super) fn work(&mut self, now: Duration) {
        while let Some(id) = self.node.busy() {
            self.advance(now, id);
        }
        self.wake_for_timers();
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
    }

    /// Sets the timers of all connections, after a change that affects all.
    pub(crate) fn set_timers(&mut self) {
        let connections: Vec<ConnectionId> = self.node.connections().collect();
        for id in connections {
            self.set_timer(id);
        }
        self.wake_for_timers();
    }

    fn set_timer(&mut self, id: ConnectionId) {
        if let Some(at) = self.deadline(id) {
            self.timers.set(id, at);
        }
    }

    /// Runs the protocol of one connection, and sets its timer.
    pub(super) fn advance(&mut self, now: Duration, id: ConnectionId) {
        if !self.node.is_idle(now, id) {
            self.run_protocol(now, id);
        }
        self.set_timer(id);
    }

    /// Performs the actions of one connection, posts its requests, and ends its closing.
    fn run_protocol(&mut self, now: Duration, id: ConnectionId) {
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
        if let Some(queue) = conn.queue {
            self.queues.remove(&queue);
        }
        self.armed -= usize::from(conn.armed.is_some());
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
        if let Some((name, descriptors)) = payload.name().zip(self.sockets.get(&owner)) {
            descriptors.add_zero_copy_done(name);
            self.wake(owner);
        }
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, id: SocketId) {
        self.sockets.remove(&id);
        self.unwatch(id);
        // Removes abandoned tasks.
        self.waiters.wake_interest(id);
        self.exports.forget(id);
        self.operations.forget(id);
    }

    /// Notifies waiters of a socket.
    fn wake(&mut self, id: SocketId) {
        if let Some(descriptors) = self.sockets.get(&id) {
            descriptors.show_if_watched(&mut self.node);
        }
        self.waiters.wake_interest(id);
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
