//! The connections of an event loop: by queue pair, by identifier and by address, with their time-outs.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    net::SocketAddr,
    time::{Duration, Instant},
};

use verbs::qp::{QpId, QpMap};

use super::{
    displacement::displaced_for,
    peer::Peer,
    protocol::{Protocol, Qp},
    settings::Settings,
};
use crate::{
    Key,
    by_address::{ByAddress, PeerIp},
};

/// The connections of an event loop. The cost of an event or a completion grows with the logarithm of their number. A
/// request at the maximum number compares the connections of one address, or all.
pub(super) struct Peers<P: Protocol> {
    by_qp: QpMap<Peer<P>>,
    by_key: HashMap<Key, QpId>,
    by_addr: ByAddress<QpId>,
    /// One entry for each connection with a deadline, at the deadline or before.
    timers: BTreeSet<(Instant, QpId)>,
    /// Connections that may have ended.
    ended: Vec<QpId>,
}

impl<P: Protocol> Peers<P> {
    pub(super) fn new() -> Self {
        Self {
            by_qp: QpMap::new(),
            by_key: HashMap::new(),
            by_addr: ByAddress::new(),
            timers: BTreeSet::new(),
            ended: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_qp.len()
    }

    pub(super) fn ids(&self) -> Vec<QpId> {
        self.by_qp.iter().map(|(id, _)| id).collect()
    }

    /// Number of connections of an address.
    pub(super) fn count(&self, addr: PeerIp) -> usize {
        self.by_addr.count(addr)
    }

    pub(super) fn insert(&mut self, mut peer: Peer<P>, settings: &Settings) -> QpId {
        let id = peer.qp().id();
        peer.serial = self.by_addr.insert(peer.addr, id);
        self.by_key.insert(peer.key, id);
        self.by_qp.insert(id, peer);
        self.changed(id, settings);
        id
    }

    pub(super) fn remove(&mut self, id: QpId) -> Option<Peer<P>> {
        let mut peer = self.by_qp.remove(id)?;
        if let Some(timer) = peer.timer.take() {
            self.timers.remove(&(timer, id));
        }
        self.by_key.remove(&peer.key);
        self.by_addr.remove(peer.addr, peer.serial);
        Some(peer)
    }

    pub(super) fn get_mut(&mut self, id: QpId) -> Option<&mut Peer<P>> {
        self.by_qp.get_mut(id)
    }

    pub(super) fn find(&self, key: Key) -> Option<QpId> {
        self.by_key.get(&key).copied()
    }

    /// Takes notice of a connection's change: its end, or an earlier deadline.
    pub(super) fn changed(&mut self, id: QpId, settings: &Settings) {
        let Some(peer) = self.by_qp.get_mut(id) else {
            return;
        };
        if peer.has_ended() {
            self.ended.push(id);
        }
        if let Some(deadline) = peer.deadline(settings)
            && peer.timer.is_none_or(|timer| deadline < timer)
        {
            if let Some(timer) = peer.timer.replace(deadline) {
                self.timers.remove(&(timer, id));
            }
            self.timers.insert((deadline, id));
        }
    }

    /// Takes a connection that has ended, with no request in flight.
    pub(super) fn take_gone(&mut self) -> Option<Peer<P>> {
        while let Some(id) = self.ended.pop() {
            if self.by_qp.get(id).is_some_and(Peer::is_gone) {
                return self.remove(id);
            }
        }
        None
    }

    /// Time of the next call of [`expired`](Self::expired).
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A connection whose deadline has passed.
    pub(super) fn expired(&mut self, settings: &Settings, now: Instant) -> Option<QpId> {
        while let Some(&(at, id)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(peer) = self.by_qp.get_mut(id) else {
                continue;
            };
            peer.timer = None;
            match peer.deadline(settings) {
                Some(deadline) if deadline <= now => return Some(id),
                Some(_) => self.changed(id, settings),
                None => {}
            }
        }
        None
    }

    /// The connection that gives way to one of `addr`, at a limit.
    pub(super) fn displaced_for(&self, addr: PeerIp, now: Instant) -> Option<QpId> {
        let used = |id| self.by_qp.get(id).map(|peer| peer.since);
        displaced_for(&self.by_addr, used, addr, now)
    }
}

/// The established connections of an event loop, for [`Protocol::woken`] and [`Protocol::tick`].
pub struct Connections<'a, P: Protocol> {
    pub(super) peers: &'a mut Peers<P>,
    pub(super) settings: &'a Settings,
}

impl<P: Protocol> Connections<'_, P> {
    /// Number of connections, half-open and ending ones included.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The established connections, in no order. The identity of a connection is that of its queue pair
    /// ([`QueuePair::id`](verbs::QueuePair::id)).
    pub fn ids(&self) -> Vec<QpId> {
        let peers = self.peers.by_qp.iter();
        let established = peers.filter(|(_, peer)| peer.is_established());
        established.map(|(id, _)| id).collect()
    }

    /// State and queue pair of an established connection, for posting requests. `None` once the connection ends.
    pub fn get_mut(&mut self, id: QpId) -> Option<(&mut P::State, &mut Qp<P>)> {
        let peer = self.peers.by_qp.get_mut(id)?;
        peer.is_established().then(|| peer.parts_mut())
    }

    /// The peer's address.
    pub fn peer_addr(&self, id: QpId) -> Option<SocketAddr> {
        self.peers.by_qp.get(id)?.peer_addr()
    }

    /// Time since the last completion of an established connection, or since its establishment.
    pub fn idle_time(&self, id: QpId) -> Option<Duration> {
        let peer = self.peers.by_qp.get(id)?;
        peer.is_established().then(|| peer.since.elapsed())
    }

    /// `rdma_disconnect`—Ends a connection, as [`Next::Disconnect`](super::Next::Disconnect) does. Returns false if it
    /// has already ended.
    pub fn disconnect(&mut self, id: QpId) -> bool {
        let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.is_established()) else {
            return false;
        };
        peer.stop();
        self.peers.changed(id, self.settings);
        true
    }

    /// `rdma_disconnect`—Ends a connection with an error, as an error of a callback does. Returns false if it has
    /// already ended.
    pub fn fail(&mut self, id: QpId, error: P::Error) -> bool {
        let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.is_established()) else {
            return false;
        };
        peer.end(Err(error));
        self.peers.changed(id, self.settings);
        true
    }
}

impl<P: Protocol> fmt::Debug for Connections<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
