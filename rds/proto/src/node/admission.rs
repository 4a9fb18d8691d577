//! Admission of peers: limits on connections, and eviction.
//!
//! A connection request is free for its sender, and the source address can be forged. So a peer
//! without an established connection is forgotten after its attempt; the number of such attempts is
//! limited in total and per address, and the oldest yields. A peer with an established connection
//! is remembered, to distinguish retransmissions from new messages; beyond a limit, the longest idle one
//! is forgotten. Part of each limit is reserved for peers addressed by local programs.

use std::{net::IpAddr, num::NonZero, time::Duration};

use super::{BadRequest, ConnectionId, Node, Route, peers::Peer};
use crate::{
    link::{Demand, Failure},
    wire::{CongestionMap, HostPair},
};

/// Age from which an unknown peer's attempt yields to others. A handshake takes a few round trips,
/// and a lost RTU is repeated sooner.
const YIELD_AFTER: Duration = Duration::from_secs(2);

/// Interval between dialing attempts at the limit of established connections.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// How long requests of a peer are rejected after its connection was closed in favor of others. A
/// kernel redials at once, and would take the place before the other peer, which retries each
/// second.
const RETIRED_TIME: Duration = Duration::from_secs(2);

/// An address may have 1 of this number of pending attempts.
const PENDING_SHARE: usize = 8;

/// 1 of this number of places is reserved for peers addressed by local programs.
const LOCAL_SHARE: usize = 8;

/// Initiator of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A local program.
    Program,
    /// The peer.
    Peer,
}

impl<P, B: AsRef<[u8]>> Node<P, B> {
    /// The connection of a route, created on demand.
    pub(super) fn connection_to(
        &mut self,
        route: Route,
        origin: Origin,
    ) -> Result<ConnectionId, BadRequest> {
        if let Some(&id) = self.routes.get(&route.key()) {
            return Ok(id);
        }
        let hosts = HostPair::new(route.local, route.peer)
            .ok_or(BadRequest::Family(route.local, route.peer))?;
        if origin == Origin::Peer {
            self.check_pending(route.peer)?;
        }
        self.make_room(route.peer, origin)?;
        let peer = Peer::new(route, hosts, &self.settings, self.rng.u64(..), self.latest);
        let count = self.peers.len();
        let id = self.peers.insert(peer);
        let id = id.ok_or(BadRequest::Connections(count))?;
        self.routes.insert(route.key(), id);
        Ok(id)
    }

    /// Checks the limit of established connections for a request. At the limit, an idle connection
    /// is closed to make room for the next request. Places are reserved for peers addressed by
    /// local programs.
    pub(super) fn check_links(&mut self, now: Duration, route: Route) -> Result<(), BadRequest> {
        let known = self.routes.get(&route.key()).copied();
        let peer = known.and_then(|id| self.peers.get(id));
        if peer.is_some_and(|peer| !peer.link.is_down()) {
            return Ok(());
        }
        let wanted = known.is_some_and(|id| self.demand(id) == Demand::Messages);
        let links = self.links();
        if !wanted && peer.is_some_and(|peer| now < peer.retired_until) {
            return Err(BadRequest::Links(links));
        }
        let most = self.settings.max_links;
        let most = if wanted {
            most
        } else {
            most - most / LOCAL_SHARE
        };
        if links >= most {
            self.retire_idle();
            return Err(BadRequest::Links(links));
        }
        Ok(())
    }

    /// Checks the limit of pending requests of unknown peers. At the limit, the oldest attempt is
    /// ended to make room for the next request.
    fn check_pending(&mut self, from: IpAddr) -> Result<(), BadRequest> {
        let most = self.settings.max_pending;
        let unknown = self.peers.iter().filter(|(_, peer)| !peer.is_known);
        let pending =
            unknown.filter_map(|(id, peer)| Some((peer.link.accepting_since()?, id, peer)));
        let (mut all, mut same, mut oldest) = (0, 0, None);
        for (since, id, peer) in pending {
            all += 1;
            same += usize::from(peer.route.peer == from);
            if oldest.is_none_or(|(before, _)| since < before) {
                oldest = Some((since, id));
            }
        }
        if same >= most.div_ceil(PENDING_SHARE) {
            return Err(BadRequest::Pending(same));
        }
        if all < most {
            return Ok(());
        }
        if let Some((since, id)) = oldest
            && since + YIELD_AFTER <= self.latest
            && let Some(peer) = self.peer(id)
            && let Some(attempt) = peer.link.current()
        {
            peer.link.failed(attempt, Failure::Unreachable);
        }
        Err(BadRequest::Pending(all))
    }

    /// Checks the limit of known connections. At the limit, an idle one is forgotten if it is down,
    /// or closed to make room for the next request.
    fn make_room(&mut self, peer: IpAddr, origin: Origin) -> Result<(), BadRequest> {
        let most = self.settings.max_connections;
        let most = match origin {
            Origin::Program => most,
            Origin::Peer => most - most / LOCAL_SHARE,
        };
        let same = self
            .peers
            .iter()
            .filter(|(_, other)| other.route.peer == peer);
        let same = same.count();
        if same >= self.settings.max_connections_per_peer && !self.forget_idle(Some(peer)) {
            return Err(BadRequest::Connections(same));
        }
        let count = self.peers.len();
        if count >= most && !self.forget_idle(None) {
            self.retire_idle();
            return Err(BadRequest::Connections(count));
        }
        Ok(())
    }

    /// Forgets the longest idle connection without a link, optionally only at an address. Returns
    /// whether there was one.
    fn forget_idle(&mut self, at: Option<IpAddr>) -> bool {
        self.retire_acked();
        let idle = self.peers.iter().filter(|(_, peer)| peer.is_forgettable());
        let idle = idle.filter(|(_, peer)| at.is_none_or(|at| peer.route.peer == at));
        let Some((id, _)) = idle.min_by_key(|(_, peer)| peer.used_at) else {
            return false;
        };
        self.counters.evicted += 1;
        self.forget(id);
        true
    }

    /// Closes the longest idle connection with a link, if it has been idle for
    /// [`Settings::idle_after`](super::Settings::idle_after).
    pub(super) fn retire_idle(&mut self) {
        self.retire_acked();
        let (after, now) = (self.settings.idle_after, self.latest);
        let idle = self.peers.iter().filter(|(_, peer)| peer.is_idle());
        let is_due = |used_at: Duration| used_at.saturating_add(after) <= now;
        let idle = idle.filter(|(_, peer)| peer.link.is_up() && is_due(peer.used_at));
        if let Some((id, _)) = idle.min_by_key(|(_, peer)| peer.used_at)
            && let Some(peer) = self.peer(id)
        {
            peer.link.retire();
            peer.retired_until = now + RETIRED_TIME;
        }
    }

    /// Number of connections with pinned memory: established, connecting or closing.
    pub(super) fn links(&self) -> usize {
        self.peers
            .iter()
            .filter(|(_, peer)| !peer.link.is_down())
            .count()
    }

    /// Forgets a peer. The sequence numbers of later connections continue above the forgotten ones,
    /// since the peer may remember them.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.remove(id) else {
            return;
        };
        self.routes.remove(&peer.route.key());
        self.counters.add(peer.connection.stats());
        let next = NonZero::new(peer.connection.next_sequences().0);
        let first = self.settings.first_sequence;
        self.settings.first_sequence = next.map_or(first, |next| next.max(first));
        let host = peer.route.peer;
        if !self.peers.iter().any(|(_, other)| other.route.peer == host) {
            // Without a map, no port of the host is congested.
            if let Some(map) = self.peer_maps.remove(&host.into()) {
                self.ports_released(map.released(&CongestionMap::default()));
            }
        }
    }
}
