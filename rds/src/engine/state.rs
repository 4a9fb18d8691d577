//! Everything that an engine has, under one lock.

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
use verbs::{Context, EventType};

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

/// How long the device has to let go of a connection that ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a device may refuse to let go, before what it has is given up.
const MAX_DESTROY_ATTEMPTS: u32 = 10;

/// So often what has come in the meantime is handled before others get their turn.
const MAX_ROUNDS: u32 = 4;

/// Everything that an engine has.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: Node<Payload, Body>,
    pub(super) channel: Arc<EventChannel>,
    pub(super) clock: Arc<Clock>,
    pub(super) schedule: Arc<WakeupSchedule>,
    pub(super) options: EngineOptions,
    pub(super) ib_connections: BTreeMap<ConnectionId, IbConnection>,
    /// The identifiers of attempts, with the names of their connections.
    pub(super) keys: HashMap<Key, ConnectionId>,
    /// The same by the names of completion queues.
    pub(super) queues: BTreeMap<usize, ConnectionId>,
    pub(super) next_queue: usize,
    /// Connections whose completions have to be looked at, and which announce none until then.
    pub(super) due: PendingSet<ConnectionId>,
    pub(super) requests: HashMap<RequestId, ConnectRequest>,
    pub(super) next_request: u64,
    pub(super) listeners: Listeners,
    devices: Vec<Arc<Device>>,
    /// Tells the thread of completions.
    pub(super) poller: Arc<OwnedFd>,
    pub(super) leader: Option<Leader>,
    pub(super) watch: Watch,
    /// The last call that has led was woken for something that is not by a device.
    pub(super) was_notified: bool,
    /// There may be events that the last call that led has left where they are.
    pub(super) has_events: bool,
    /// The last call that has led was told of completions, and has handled those of all connections.
    pub(super) has_looked: bool,
    /// The last call that has sent found nothing everywhere.
    pub(super) looked_in_vain: bool,
    /// What is sent next may answer what has just been received.
    pub(super) answers: bool,
    /// When a call that waited has looked last.
    pub(crate) looked_at: Duration,
    /// How often a call that would have waited has found something.
    pub(super) found: u32,
    /// How many messages wait for others, to be posted with them.
    pub(super) delayed: u32,
    /// Sockets that somebody may wait for by the descriptor, or in a task, since no call has.
    pub(super) observed: BTreeSet<SocketId>,
    /// The socket of which a call is about to receive: its descriptor shows what that leaves.
    pub(super) receiving: Option<SocketId>,
    /// Devices that are gone, but still have connections.
    lost: Vec<Arc<Device>>,
    pub(crate) sockets: BTreeMap<SocketId, Arc<Waiters>>,
    /// Memory that peers can use, by its owner and its key.
    pub(crate) exports: Exports,
    pub(crate) operations: Operations,
    pub(super) reaper: Reaper,
    /// To be woken by the thread when nothing is locked.
    pub(super) tasks: Vec<Waker>,
    /// The links that addresses here are on, where that has to be said.
    pub(super) scopes: BTreeMap<IpAddr, u32>,
    /// When the thread has been asked to wake up, in a call. It does so even if there is nothing to be done any more:
    /// there will be again, and to be asked is dearer.
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

    /// How long calls of a new socket look before they sleep.
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

    /// Whether there is nothing to be done but what comes from outside.
    pub(super) fn is_quiet(&self) -> bool {
        self.node.is_quiet() && !self.has_due() && self.tasks.is_empty()
    }

    /// Whether some connection has to be looked at now: while nobody is told of completions, that is
    /// for whoever comes next.
    fn has_due(&self) -> bool {
        !self.due.is_empty() && self.is_watched()
    }

    /// What the engine has of a device, which it may not have used before.
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
        // It knows which there were.
        self.stop_leader();
        Ok(device)
    }

    /// The device of a socket's address; `None` where it is the host's own, or the device is gone.
    ///
    /// # Errors
    /// The socket has no address.
    pub(crate) fn device_of(&self, id: SocketId) -> Result<Option<&Arc<Device>>, SocketError> {
        let (local, _) = self.node.names(id)?;
        let local = local.ok_or(SocketError::NotConnected)?;
        Ok(self.listeners.device(local.ip()))
    }

    /// A device is gone: it is opened anew when it is back. Peers reach no memory by it any more, and
    /// its connections end.
    pub(super) fn device_lost(&mut self, lost: Arc<Device>) {
        self.listeners.forget_device(&lost);
        self.devices.retain(|device| !Arc::ptr_eq(device, &lost));
        // It fails if it has been done before.
        let _: Result<(), _> = epoll::delete(&self.poller, &lost.channel);
        self.stop_leader();
        self.exports.leave(&lost.pd);
        if !self.lost.iter().any(|device| Arc::ptr_eq(device, &lost)) {
            self.lost.push(lost);
        }
    }

    /// Lets go of devices that are gone, whose connections have ended: the kernel waits for that.
    /// What is not sent, or not received, is kept elsewhere, and operations on their memory are
    /// given up.
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

    /// Does what is due, and sets the schedule. Returns when the thread is to see whether calls still come.
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

    /// When which connections have to be looked at.
    fn deadlines(&self) -> impl Iterator<Item = (Duration, ConnectionId)> {
        let connections = self.node.connections();
        connections.filter_map(|id| Some((self.deadline(id)?, id)))
    }

    /// When a connection has to be looked at, if nothing happens before.
    fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let conn = self.ib_connections.get(&id);
        let drained = conn.and_then(|conn| Some(conn.closing? + DRAIN_TIMEOUT));
        let rtu = conn.and_then(IbConnection::rtu_deadline);
        let deadlines = self.node.deadline(id).into_iter();
        deadlines.chain(drained).chain(rtu).min()
    }

    /// Does what the protocol wants, and tells sockets. Returns whether the thread has to wake up
    /// earlier than it means to.
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

    /// Has the thread wake up at that time, at the latest. Returns whether it has to be rung for.
    pub(super) fn wake_at(&mut self, at: Duration) -> bool {
        if !self.schedule.is_earlier(at) {
            return false;
        }
        self.asked_at = Some(at);
        self.schedule.ask(at)
    }

    /// Does what a connection wants.
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
            // It fails if the connection manager has that word now.
            drop(self.channel.notify(conn.key, EventType::COMM_EST));
        }
        if let Some(since) = conn.closing
            && (conn.is_drained() || since + DRAIN_TIMEOUT <= now)
        {
            self.close(now, id);
        }
    }

    /// Ends a connection whose requests have completed, or never will.
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
                // The device does not let go: so it is tried again.
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
            // What the device has never comes back.
            self.node.give_up(id, |payload| payload.is_lent());
        }
    }

    /// A message needs its memory no more.
    pub(crate) fn over(&mut self, owner: SocketId, payload: &Payload) {
        if let Some((name, waiters)) = payload.name().zip(self.sockets.get(&owner)) {
            waiters.add_zero_copy_done(name);
            waiters.show_if_watched(&mut self.node);
            waiters.wake(&mut self.tasks);
            self.call_leader(owner);
        }
    }

    /// A socket is closed.
    pub(crate) fn forget(&mut self, id: SocketId) {
        self.sockets.remove(&id);
        self.observed.remove(&id);
        self.exports.forget(id);
        self.operations.forget(id);
    }

    /// Tells those who wait for a socket.
    fn wake(&mut self, id: SocketId) {
        if let Some(waiters) = self.sockets.get(&id) {
            if self.receiving != Some(id) {
                waiters.show_if_watched(&mut self.node);
            }
            waiters.wake(&mut self.tasks);
            self.call_leader(id);
        }
    }

    /// Ends everything.
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
            // What is not destroyed here is when it is dropped.
            conn.destroy(&mut self.reaper);
        }
        self.reaper.wait(reaper::SHUTDOWN_TIMEOUT);
    }
}
