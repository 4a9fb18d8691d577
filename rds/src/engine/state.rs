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
use verbs::{event::EventType, qp::QpId, waiting::Waiters};

use super::{
    EngineOptions, Reaper,
    clock::Clock,
    exports::{Exported, Exports},
    jobs::Jobs,
    listening::Listeners,
    operations::Operations,
    timers::Timers,
};
use crate::{
    device::{Device, KnownDevices},
    ib_connection::{IbConnection, Stage},
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
    /// Connections by queue pair.
    pub(super) queue_pairs: HashMap<QpId, ConnectionId>,
    /// Connections that wait for completions without solicited notifications.
    pub(super) eager: PendingSet<ConnectionId>,
    pub(super) requests: HashMap<RequestId, ConnectRequest>,
    pub(super) next_request: u64,
    pub(super) listeners: Listeners,
    pub(super) devices: Vec<Arc<Device>>,
    /// Epoll descriptor over the completion channels of all devices.
    pub(super) channels: Arc<OwnedFd>,
    /// Sockets with possible waiters on the descriptor, since no call has blocked on them.
    pub(super) watched: BTreeSet<SocketId>,
    /// Removed devices with open connections.
    pub(super) lost: Vec<Arc<Device>>,
    pub(crate) sockets: BTreeMap<SocketId, Arc<Descriptors>>,
    /// Exported memory, by owner and key.
    pub(crate) exports: Exports,
    pub(crate) operations: Operations,
    /// Calls into the kernel, made by the engine thread without the lock.
    pub(super) jobs: Jobs,
    /// Too many identifiers wait for their destruction: connection requests are rejected.
    pub(super) reaper_overloaded: bool,
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
            queue_pairs: HashMap::new(),
            eager: PendingSet::new(),
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
            jobs: Jobs::default(),
            reaper_overloaded: false,
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

    /// Adds an opened device, unless known or removed.
    pub(super) fn add_device(&mut self, device: &Arc<Device>) {
        let mut known = self.devices.iter().chain(&self.lost);
        if !known.any(|known| Arc::ptr_eq(known, device)) {
            let data = epoll::EventData::new_u64(0);
            // Fails only without memory: then timers poll.
            let _: Result<(), _> =
                epoll::add(&self.channels, &device.channel, data, epoll::EventFlags::IN);
            self.devices.push(Arc::clone(device));
        }
    }

    /// The open devices, for opening another one without the lock.
    pub(super) fn known_devices(&self) -> KnownDevices {
        KnownDevices {
            devices: self.devices.clone(),
            sends: self.options.sends,
            receives: self.options.receives,
        }
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
        let exports = self.exports.leave(&lost.pd);
        self.reap(exports);
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
            let mut connections = self.ib_connections.values();
            connections.any(|conn| match conn.stage.device() {
                Some(other) => Arc::ptr_eq(other, device),
                None => conn.is_busy(),
            })
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
            // Destroys the completion queues.
            self.call_unlocked(|_| drop(device));
        }
    }

    /// The next time at which a connection needs [`advance`](Self::advance).
    fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let conn = self.ib_connections.get(&id);
        let drained = conn.and_then(IbConnection::drain_deadline);
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
        if self.node.is_idle(now, id) {
            self.eager.remove(&id);
        } else {
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
        self.update_eager(id);
        let Some(conn) = self.ib_connections.get_mut(&id) else {
            return;
        };
        if conn.take_rtu_timeout(now) {
            let (channel, key) = (Arc::clone(&self.channel), conn.key);
            // Fails if the RTU has arrived meanwhile.
            self.call_unlocked(move |_| {
                drop(key.map(|key| channel.notify(key, EventType::COMM_EST)));
            });
        } else if let Some(until) = conn.drain_deadline()
            && (conn.is_drained() || until <= now)
        {
            self.destroy(id);
        }
    }

    /// Reports the completion of a zero-copy message to its socket.
    pub(crate) fn over(&mut self, owner: SocketId, payload: &Payload) {
        if let Some((name, descriptors)) = payload.name().zip(self.sockets.get(&owner)) {
            descriptors.add_zero_copy_done(name);
            self.wake(owner);
        }
    }

    /// Forgets a closed socket. Returns its exports, to be deregistered without the lock.
    #[must_use]
    pub(crate) fn forget(&mut self, id: SocketId) -> Vec<Exported> {
        self.sockets.remove(&id);
        self.unwatch(id);
        // Removes abandoned tasks.
        self.waiters.wake_interest(id);
        let exports = self.exports.forget(id);
        self.operations.forget(id);
        exports
    }

    /// Notifies waiters of a socket.
    fn wake(&mut self, id: SocketId) {
        if let Some(descriptors) = self.sockets.get(&id) {
            descriptors.show_if_watched(&mut self.node);
        }
        self.waiters.wake_interest(id);
    }

    /// Closes and destroys all connections. Enters the kernel; no other thread uses the engine.
    pub(super) fn end(&mut self, reaper: &mut Reaper) {
        self.requests.clear();
        self.listeners = Listeners::default();
        let connections = std::mem::take(&mut self.ib_connections);
        let stages: Vec<Stage> = connections
            .into_values()
            .map(|mut conn| {
                let ending = conn.stage.begin_end();
                ending.run(reaper, &self.channel, conn.key);
                conn.stage
            })
            .collect();
        for stage in stages {
            // Dropping a stage destroys the rest.
            drop(stage.destroy(reaper));
        }
    }
}
