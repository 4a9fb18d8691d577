//! Connections and devices: transport, without scheduling.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use cm::Key;
use rustix::{event::epoll, io::Errno};
use verbs::qp::QpMap;

use super::state::Protocol;
use crate::{
    device::{Armed, Device, OpenDevices, SharedCq},
    ib_connection::{ConnectStage, IbConnection},
    proto::{
        PendingSet, SocketId,
        link::{Attempt, Failure},
        node::ConnectionId,
    },
};

/// Connections and devices of an engine. Posts the requests of the protocol, and passes completions
/// to the protocol; the caller chooses the time.
pub(super) struct Transport {
    pub(super) ib_connections: BTreeMap<ConnectionId, IbConnection>,
    /// Connections by connection manager identifier.
    pub(super) keys: HashMap<Key, ConnectionId>,
    /// Connections by queue pair.
    pub(super) queue_pairs: QpMap<ConnectionId>,
    /// Connections that wait for completions without solicited notifications.
    pub(super) eager: PendingSet<ConnectionId>,
    /// The open devices.
    pub(super) open: OpenDevices,
    /// Removed devices with open connections.
    lost: Vec<Arc<Device>>,
    /// Epoll descriptor over the completion channels of all devices.
    channels: Arc<OwnedFd>,
    /// Exports used by operations of peers, for the caller: owner, key and peer.
    pub(super) used: Vec<(SocketId, u32, IpAddr)>,
    /// Connections without a free slot, for the caller.
    pub(super) starved: Vec<ConnectionId>,
    /// Connections that need more than the initial receives, for the caller.
    pub(super) growing: Vec<ConnectionId>,
    /// The connection last in work, which a panic resets.
    pub(super) in_work: Option<ConnectionId>,
    /// The first call refused for good.
    refusal: Option<Refusal>,
    /// The refusal is new: blocked calls wait in vain.
    pub(super) is_newly_refused: bool,
}

/// A call that the kernel refuses from now on, because the process has other credentials than when it opened the device.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    call: &'static str,
    errno: i32,
}

impl Transport {
    pub(super) fn new(open: OpenDevices, channels: Arc<OwnedFd>) -> Self {
        Self {
            ib_connections: BTreeMap::new(),
            keys: HashMap::new(),
            queue_pairs: QpMap::new(),
            eager: PendingSet::new(),
            open,
            lost: Vec::new(),
            channels,
            used: Vec::new(),
            starved: Vec::new(),
            growing: Vec::new(),
            in_work: None,
            refusal: None,
            is_newly_refused: false,
        }
    }

    /// Records the error of a call that is refused for good; others may succeed with the next connection.
    pub(super) fn note_error(&mut self, error: &verbs::Error) {
        let errno = Errno::ACCESS.raw_os_error();
        if error.raw_os_error() == Some(errno) && self.refusal.is_none() {
            let call = error.call();
            self.refusal = Some(Refusal { call, errno });
            self.is_newly_refused = true;
        }
    }

    /// The error of a call refused for good.
    pub(super) fn refusal(&self) -> Option<verbs::Error> {
        let Refusal { call, errno } = self.refusal?;
        Some(verbs::Error::from_errno(call, errno))
    }

    /// The open devices, and removed devices with open connections.
    fn polled_devices(&self) -> impl Iterator<Item = &Arc<Device>> {
        self.open.devices.iter().chain(&self.lost)
    }

    /// Adds an opened device, unless known or removed.
    pub(super) fn add_device(&mut self, device: &Arc<Device>) {
        if !self
            .polled_devices()
            .any(|other| Arc::ptr_eq(other, device))
        {
            let data = epoll::EventData::new_u64(0);
            // Fails only without memory: then timers poll.
            let _: Result<(), _> =
                epoll::add(&self.channels, &device.channel, data, epoll::EventFlags::IN);
            self.open.devices.push(Arc::clone(device));
        }
    }

    /// Removes a device. Its completion queues are polled until its connections are destroyed.
    pub(super) fn remove_device(&mut self, removed: Arc<Device>) {
        let devices = &mut self.open.devices;
        devices.retain(|device| !Arc::ptr_eq(device, &removed));
        // Fails if the channel was deleted before.
        let _: Result<(), _> = epoll::delete(&self.channels, &removed.channel);
        if !self.lost.iter().any(|device| Arc::ptr_eq(device, &removed)) {
            self.lost.push(removed);
        }
    }

    /// Takes the removed devices without connections.
    pub(super) fn take_released(&mut self) -> Vec<Arc<Device>> {
        let connections = &self.ib_connections;
        let is_released = |device: &mut Arc<Device>| {
            !connections.values().any(|conn| match conn.stage.device() {
                Some(other) => Arc::ptr_eq(other, device),
                None => conn.is_busy(),
            })
        };
        self.lost.extract_if(.., is_released).collect()
    }

    /// Takes the completion events.
    pub(super) fn drain_events(&self) {
        for device in self.polled_devices() {
            if device.take_events().is_err() {
                // The device is removed: its channel stays readable. Fails if the channel was
                // deleted before.
                let _: Result<(), _> = epoll::delete(&self.channels, &device.channel);
            }
        }
    }

    /// Calls `with` for each polled completion queue. After an error, the queue is not polled again,
    /// and its connections fail. Returns whether a call has returned `true` or an error.
    pub(super) fn each_cq(
        &mut self,
        node: &mut Protocol,
        mut with: impl FnMut(&mut Self, &mut Protocol, &Device, &mut SharedCq) -> verbs::Result<bool>,
    ) -> bool {
        let mut any = false;
        let mut failed = false;
        for index in 0..self.open.devices.len() + self.lost.len() {
            let Some(device) = self.polled_devices().nth(index).map(Arc::clone) else {
                break;
            };
            for cq in device.cqs().iter_mut().filter(|cq| !cq.has_failed()) {
                let result = with(self, node, &device, cq);
                any |= *result.as_ref().unwrap_or(&true);
                cq.failed.store(result.is_err(), Relaxed);
                failed |= result.is_err();
                if let Err(error) = result {
                    self.note_error(&error);
                }
            }
        }
        if failed {
            for (&id, conn) in &mut self.ib_connections {
                if conn.has_failed_cq() {
                    node.failed(id, conn.attempt, Failure::Lost);
                }
            }
        }
        any
    }

    /// Arms the completion queues that are not. Returns whether there were any: earlier completions
    /// make no event.
    pub(super) fn arm(&mut self, node: &mut Protocol) -> bool {
        let eager = !self.eager.is_empty();
        self.each_cq(node, |_, _, device, cq| {
            cq.arm(match eager || device.iwarp {
                true => Armed::All,
                false => Armed::Solicited,
            })
        })
    }

    /// Records whether a connection needs a notification of every completion. Without a reason to
    /// see send completions, they are polled along with receives and sends.
    pub(super) fn update_eager(&mut self, node: &Protocol, id: ConnectionId) {
        let is_eager = |conn: &mut IbConnection| {
            let is_closing = conn.closing.is_some();
            let resources = conn.stage.resources();
            resources.is_some_and(|resources| {
                is_closing || node.awaits_device(id) || resources.has_few_receives()
            })
        };
        if self.ib_connections.get_mut(&id).is_some_and(is_eager) {
            self.eager.insert(id);
        } else {
            self.eager.remove(&id);
        }
    }

    /// The next time at which a connection does not wait any longer: for its completions if closing,
    /// else for the RTU.
    pub(super) fn deadline(&self, id: ConnectionId) -> Option<Duration> {
        let conn = self.ib_connections.get(&id)?;
        conn.drain_deadline().or(conn.rtu_deadline())
    }

    /// Adds a connection attempt.
    pub(super) fn insert(&mut self, id: ConnectionId, conn: IbConnection) {
        self.keys.extend(conn.key.map(|key| (key, id)));
        self.ib_connections.insert(id, conn);
    }

    /// Removes a destroyed connection.
    pub(super) fn remove(&mut self, id: ConnectionId) -> Option<IbConnection> {
        let conn = self.ib_connections.remove(&id)?;
        if let Some(key) = conn.key {
            self.keys.remove(&key);
        }
        self.eager.remove(&id);
        Some(conn)
    }

    /// The current attempt of an identifier; `None` for a superseded one.
    pub(super) fn current(&mut self, key: Key) -> Option<(ConnectionId, Attempt)> {
        let id = *self.keys.get(&key)?;
        self.in_work = Some(id);
        let conn = self.ib_connections.get(&id)?;
        let counts = conn.key == Some(key) && conn.closing.is_none();
        counts.then_some((id, conn.attempt))
    }

    /// Takes the resources of a connection, for calls into the kernel without the lock.
    pub(super) fn take_stage(&mut self, id: ConnectionId) -> ConnectStage {
        let conn = self.ib_connections.get_mut(&id);
        conn.map_or(ConnectStage::Gone, |conn| {
            mem::replace(&mut conn.stage, ConnectStage::Busy)
        })
    }

    pub(super) fn put_stage(&mut self, id: ConnectionId, stage: ConnectStage) {
        if let Some(conn) = self.ib_connections.get_mut(&id) {
            conn.stage = stage;
        }
    }
}
