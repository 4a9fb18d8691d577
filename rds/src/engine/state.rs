//! State of an engine, protected by one lock.

use std::{
    collections::{BTreeMap, HashMap},
    io, mem,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use cm::{ConnectRequest, EventChannel, Reaper};
use verbs::event::EventType;

use super::{
    EngineOptions,
    exports::{Exported, Exports},
    listening::Listeners,
    operations::Operations,
    schedule::Schedule,
    transport::Transport,
};
use crate::{
    device::Device,
    ib_connection::{ConnectStage, IbConnection, RecvWork},
    outbound::{Operands, Payload},
    proto::{
        SocketId,
        connection::MessageOutcome,
        link::{Attempt, Failure, RequestId},
        node::{ConnectionId, Node, SocketError},
        wire::FRAGMENT,
    },
    slots::FrameBody,
    socket::Descriptors,
};

/// Interval between attempts to register slots for a connection. Slots of other messages may become
/// free meanwhile.
const SLOT_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The protocol, with the payloads and bodies of this crate.
pub(crate) type Protocol = Node<Payload, FrameBody>;

/// State of an engine, protected by one lock: the protocol, with the times of its work and its
/// connections over devices.
pub(crate) struct EngineState {
    pub(crate) node: Protocol,
    pub(crate) schedule: Schedule<ConnectionId>,
    pub(super) transport: Transport,
    pub(super) epoch: Instant,
    pub(crate) options: EngineOptions,
    pub(super) requests: HashMap<RequestId, ConnectRequest>,
    pub(super) next_request: u64,
    pub(super) listeners: Listeners,
    pub(crate) sockets: BTreeMap<SocketId, Arc<Descriptors>>,
    /// Exported memory, by owner and key.
    pub(crate) exports: Exports,
    pub(crate) operations: Operations,
    pub(super) reaper: Reaper,
    /// Scope ids of link-local addresses.
    pub(super) scopes: BTreeMap<IpAddr, u32>,
}

impl EngineState {
    pub(super) fn new(
        options: EngineOptions,
        transport: Transport,
        epoch: Instant,
        reaper: Reaper,
    ) -> Self {
        Self {
            node: Node::new(options.node),
            schedule: Schedule::new(),
            transport,
            epoch,
            options,
            requests: HashMap::new(),
            next_request: 0,
            listeners: Listeners::default(),
            sockets: BTreeMap::new(),
            exports: Exports::default(),
            operations: Operations::default(),
            reaper,
            scopes: BTreeMap::new(),
        }
    }

    pub(crate) fn devices(&self) -> &[Arc<Device>] {
        &self.transport.open.devices
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
        let exports = self.exports.remove_device(&lost.pd);
        self.reap(exports);
        self.transport.remove_device(lost);
    }

    /// Releases removed devices without connections, because the kernel waits for their file
    /// descriptors. Queued messages move to the heap; operations on memory of these devices fail
    /// with `Dropped`.
    fn release_devices(&mut self) {
        for device in self.transport.take_released() {
            let connections: Vec<ConnectionId> = self.node.connections().collect();
            for id in connections {
                self.node.give_up(id, |payload| payload.needs(&device.pd));
                self.node
                    .payloads(id, |payload| payload.copy_off_device(&device.pd));
            }
            for body in self.node.bodies_mut() {
                body.copy_off_device(&device.pd);
            }
            // Destroys the completion queues.
            self.unlocked(|_| drop(device));
        }
    }

    /// Polls the completion queues. Returns whether there were completions.
    pub(crate) fn complete(&mut self) -> bool {
        // After a panic, completions may remain.
        self.survive(Self::complete_all).unwrap_or(true)
    }

    fn complete_all(&mut self) -> bool {
        let any = self.transport.complete(&mut self.node, self.epoch);
        while let Some((owner, rkey, peer)) = self.transport.used.pop() {
            self.export_used(owner, rkey, peer);
        }
        any
    }

    /// Fails once the kernel refuses the calls of this process.
    pub(crate) fn check_refusal(&self) -> io::Result<()> {
        self.transport
            .refusal()
            .map_or(Ok(()), |error| Err(error.into()))
    }

    /// Runs the protocol of busy connections, and notifies sockets.
    pub(super) fn work(&mut self, now: Duration) {
        self.survive(|state| state.work_all(now));
    }

    fn work_all(&mut self, now: Duration) {
        while let Some(id) = self.node.busy() {
            self.advance(now, id);
        }
        self.schedule.wake_for_timers();
        while let Some(id) = self.transport.starved.pop() {
            self.add_slots(id);
        }
        while let Some(id) = self.transport.growing.pop() {
            self.add_receives(id);
        }
        self.release_devices();
        if mem::take(&mut self.transport.is_newly_refused) {
            self.schedule.waiters.wake(|_| true);
        }
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
            self.report_zero_copy_done(owner, &payload);
            if payload.has_regions() {
                self.schedule.waiters.drop_unlocked(payload);
            }
        }
        while let Some(id) = self.node.woken() {
            self.wake(id);
        }
    }

    /// Has the engine thread register slots for a connection without free ones, which then
    /// continues.
    #[cold]
    fn add_slots(&mut self, id: ConnectionId) {
        let Some(conn) = self.transport.ib_connections.get_mut(&id) else {
            return;
        };
        let Some(device) = conn.stage.device().cloned() else {
            conn.is_starved = false;
            return;
        };
        self.unlocked(move |shared| {
            // The slot becomes free.
            let is_free = device.slot(FRAGMENT as usize).is_ok();
            shared.change(|state, now| {
                if let Some(conn) = state.transport.ib_connections.get_mut(&id) {
                    conn.is_starved = false;
                    let wait = if is_free {
                        Duration::ZERO
                    } else {
                        SLOT_RETRY_INTERVAL
                    };
                    state.schedule.set_timer(id, now + wait);
                }
            });
        });
    }

    /// Has the engine thread post more receives for a connection whose peer has proven itself.
    #[cold]
    fn add_receives(&mut self, id: ConnectionId) {
        let Some(conn) = self.transport.ib_connections.get_mut(&id) else {
            return;
        };
        let (Some(device), attempt) = (conn.stage.device().cloned(), conn.attempt) else {
            return;
        };
        let more = match device.initial_receives < device.receives {
            true => self.node.grow(id),
            false => 0,
        };
        if more == 0 {
            return;
        }
        self.unlocked(move |shared| {
            let slots = (0..more).map_while(|_| device.slot(FRAGMENT as usize).ok());
            let slots: Vec<RecvWork> = slots.collect();
            shared.change(|state, _| state.post_receives(id, attempt, slots));
        });
    }

    /// Posts more receives for a connection, unless another link has begun.
    fn post_receives(&mut self, id: ConnectionId, attempt: Attempt, slots: Vec<RecvWork>) {
        let conn = self.transport.ib_connections.get_mut(&id);
        let conn = conn.filter(|conn| conn.attempt == attempt && conn.closing.is_none());
        let Some((conn, resources)) =
            conn.and_then(|conn| Some((&mut conn.grow_at, conn.stage.resources()?)))
        else {
            return;
        };
        for slot in slots {
            if resources.qp.post_recv(slot).is_err() {
                self.node.failed(id, attempt, Failure::Lost);
                return;
            }
            resources.receives += 1;
        }
        if resources.receives >= resources.device.receives {
            *conn = None;
        }
        self.node.count_receives(id, resources.receives);
        self.transport.update_eager(&self.node, id);
    }

    /// Sets the timers of all connections, after a change that affects all.
    pub(crate) fn set_timers(&mut self) {
        let connections: Vec<ConnectionId> = self.node.connections().collect();
        for id in connections {
            self.set_timer(id);
        }
        self.schedule.wake_for_timers();
    }

    fn set_timer(&mut self, id: ConnectionId) {
        let deadlines = [self.node.deadline(id), self.transport.deadline(id)];
        if let Some(at) = deadlines.into_iter().flatten().min() {
            self.schedule.set_timer(id, at);
        }
    }

    /// Runs the protocol of one connection, and sets its timer.
    pub(super) fn advance(&mut self, now: Duration, id: ConnectionId) {
        self.transport.in_work = Some(id);
        if !self.node.is_idle(now, id) {
            self.run_protocol(now, id);
        }
        self.transport.update_eager(&self.node, id);
        self.set_timer(id);
    }

    /// Performs the actions of one connection, posts its requests, and ends its closing.
    fn run_protocol(&mut self, now: Duration, id: ConnectionId) {
        while let Some(action) = self.node.poll(now, id) {
            self.act(now, id, action);
        }
        self.transport.post(&mut self.node, now, id);
        let Some(conn) = self.transport.ib_connections.get_mut(&id) else {
            return;
        };
        if conn.take_rtu_timeout(now) {
            let key = conn.key;
            // Fails if the RTU has arrived meanwhile.
            self.unlocked(move |shared| {
                drop(key.map(|key| shared.channel.notify(key, EventType::COMM_EST)));
            });
        } else if let Some(until) = conn.drain_deadline()
            && (conn.is_drained() || until <= now)
        {
            self.destroy(id);
        }
    }

    /// Reports the completion of a zero-copy message to its socket.
    pub(crate) fn report_zero_copy_done(&mut self, owner: SocketId, payload: &Payload) {
        if let Some((name, descriptors)) = payload.name().zip(self.sockets.get(&owner)) {
            descriptors.add_zero_copy_done(name);
            self.wake(owner);
        }
    }

    /// Forgets a closed socket. Returns its exports, to be deregistered without the lock.
    #[must_use]
    pub(crate) fn forget(&mut self, id: SocketId) -> HashMap<u32, Exported> {
        self.sockets.remove(&id);
        self.schedule.unwatch(id);
        // Removes abandoned tasks.
        self.schedule.waiters.wake_interest(id);
        let exports = self.exports.forget(id);
        self.operations.forget(id);
        exports
    }

    /// Notifies waiters of a socket.
    fn wake(&mut self, id: SocketId) {
        if let Some(descriptors) = self.sockets.get(&id) {
            descriptors.show_if_watched(&mut self.node);
        }
        self.schedule.waiters.wake_interest(id);
    }

    /// Closes and destroys all connections. Enters the kernel; no other thread uses the engine.
    pub(super) fn end(&mut self, channel: &Arc<EventChannel>) {
        self.requests.clear();
        self.listeners = Listeners::default();
        let connections = mem::take(&mut self.transport.ib_connections);
        let end = |mut conn: IbConnection| {
            conn.stage.begin_end().run(&self.reaper, channel, conn.key);
            conn.stage
        };
        let stages: Vec<ConnectStage> = connections.into_values().map(end).collect();
        for stage in stages {
            drop(stage.destroy(&self.reaper));
        }
    }
}
