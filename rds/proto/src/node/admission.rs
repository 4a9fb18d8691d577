//! Admission of peers: limits on connections, and the connections that yield to others.
//!
//! A connection request is free for its sender, and the source address can be forged. So a peer
//! without an established connection is forgotten after its attempt. A peer with an established
//! connection is remembered, to distinguish retransmissions from new messages.
//!
//! At each limit, a connection of the address with most of them yields, all types of service counted
//! together, and the request is held until its resources are released. Part of each limit is
//! reserved for peers addressed by local programs.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr, num::NonZero, time::Duration};

use super::{BadRequest, ConnectionId, Node, Route, peers::Peer};
use crate::{
    Host,
    link::{Attempt, Demand, RequestId},
    wire::{CongestionMap, HostPair},
};

/// Age from which a pending attempt yields to another of the same address. A handshake takes a few
/// round trips, and a lost RTU is repeated sooner.
const YIELD_AFTER: Duration = Duration::from_secs(2);

/// How long messages of local programs protect the connection of a peer that has never acknowledged one.
const FIRST_ACK: Duration = Duration::from_secs(2);

/// Interval between dialing attempts at the limit of posted receives.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// How long requests of a peer are rejected after its connection was closed in favor of others. A
/// kernel redials at once, and would displace another connection in turn.
const RETIRED_TIME: Duration = Duration::from_secs(2);

/// An address may have 1 of this number of pending attempts.
const PENDING_SHARE: usize = 8;

/// Pending attempts may have 1 of this number of receives.
const PENDING_RECEIVES: u64 = 4;

/// 1 of this number of connections and receives is reserved for peers addressed by local programs.
const LOCAL_SHARE: u32 = 8;

/// 1 of this number of receives is reserved for the initial receives of connections.
const INITIAL_SHARE: u64 = 4;

/// Initiator of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A local program.
    Program,
    /// The peer.
    Peer,
}

/// Use of a connection, in the order in which connections of an address yield.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// The handshake is not complete.
    Pending,
    /// The peer has neither delivered nor acknowledged a message.
    Unproven,
    /// The peer has delivered or acknowledged a message.
    Proven,
    /// Messages of local programs are in progress.
    Busy,
}

/// Receives of all connections, in frames.
#[derive(Clone, Copy, Debug, Default)]
struct Receives {
    /// Posted, those of closing connections included.
    posted: u64,
    /// Posted once closing connections have ended and held requests are accepted.
    committed: u64,
    /// Posted beyond the initial ones of each connection.
    grown: u64,
}

impl<P, B: AsRef<[u8]>> Node<P, B> {
    /// The connection of a route, created on demand for a message of a local program.
    pub(super) fn connection_to(&mut self, route: Route) -> Result<ConnectionId, BadRequest> {
        if let Some(&id) = self.routes.get(&route.key()) {
            return Ok(id);
        }
        if self.has_entry(route.peer, Origin::Program)? || self.displace(route.peer, None) {
            return self.insert(route);
        }
        Err(BadRequest::Connections(self.peers.len()))
    }

    /// The connection of a route for a request of the peer, created on demand. At a limit, another
    /// connection yields, or the request is refused.
    pub(super) fn admit_request(
        &mut self,
        now: Duration,
        route: Route,
    ) -> Result<ConnectionId, BadRequest> {
        let existing = self.routes.get(&route.key()).copied();
        let peer = existing.and_then(|id| self.peers.get(id));
        if peer.is_some_and(|peer| !peer.link.is_down()) {
            // The request replaces the connection.
            return existing.ok_or(BadRequest::Connections(0));
        }
        let retired = peer.is_some_and(|peer| now < peer.retired_until);
        let origin = match existing.map(|id| self.demand(id)) {
            Some(Demand::Messages) => Origin::Program,
            _ => Origin::Peer,
        };
        if retired && origin == Origin::Peer {
            return Err(BadRequest::Receives(self.receives().committed));
        }
        if !peer.is_some_and(|peer| peer.is_proven) {
            self.check_pending(route.peer)?;
        }
        let has_entry = existing.is_some() || self.has_entry(route.peer, Origin::Peer)?;
        let fits = self.fits(self.receives().committed, origin);
        if !(has_entry && fits || self.displace(route.peer, existing)) {
            return Err(match has_entry {
                true => BadRequest::Receives(self.receives().committed),
                false => BadRequest::Connections(self.peers.len()),
            });
        }
        existing.map_or_else(|| self.insert(route), Ok)
    }

    fn insert(&mut self, route: Route) -> Result<ConnectionId, BadRequest> {
        let hosts = HostPair::new(route.local, route.peer)
            .ok_or(BadRequest::Family(route.local, route.peer))?;
        let mut peer = Peer::new(route, hosts, &self.settings, self.rng.u64(..), self.latest);
        peer.connection.count_pongs_in(&self.pongs);
        let count = self.peers.len();
        let id = self.peers.insert(peer);
        let id = id.ok_or(BadRequest::Connections(count))?;
        self.routes.insert(route.key(), id);
        Ok(id)
    }

    /// Memory of a connection without growth, in receives.
    fn link_receives(&self) -> u64 {
        u64::from(self.settings.initial_receives) + u64::from(self.settings.queues)
    }

    /// Receives of all connections.
    fn receives(&self) -> Receives {
        let (queues, initial) = (u64::from(self.settings.queues), self.link_receives());
        let mut all = Receives::default();
        for (_, peer) in self.peers.iter() {
            let receives = match peer.receives {
                0 => 0,
                receives => u64::from(receives) + queues,
            };
            all.posted += receives;
            all.grown += receives.saturating_sub(initial);
            all.committed += match &peer.link {
                link if link.is_down() || link.is_ending() => 0,
                link if link.is_active() && !link.is_held() => receives,
                _ => initial,
            };
        }
        all
    }

    /// Whether a connection fits into the limit of receives, beside `committed`.
    fn fits(&self, committed: u64, origin: Origin) -> bool {
        let initial = self.link_receives();
        let max = self.settings.max_receives;
        let max = match origin {
            Origin::Program => max,
            Origin::Peer => max - max / u64::from(LOCAL_SHARE),
        };
        // Without any connection, nothing could be sent.
        committed + initial <= max.max(initial)
    }

    /// Accepts the held request of a peer if there are resources for a connection.
    pub(super) fn admit_held(&mut self, now: Duration, id: ConnectionId) {
        if !self.peers.get(id).is_some_and(|peer| peer.link.is_held()) {
            return;
        }
        let origin = match self.demand(id) {
            Demand::Messages => Origin::Program,
            _ => Origin::Peer,
        };
        if !self.is_exhausted
            && self.fits(self.receives().posted, origin)
            && let Some(peer) = self.peers.get_mut(id)
        {
            peer.link.admit(now);
            peer.begin_link(now, self.settings.initial_receives);
        }
    }

    /// Delays the dialing of a connection without resources. Another connection yields, if it may.
    pub(super) fn postpone_dial(&mut self, now: Duration, id: ConnectionId) {
        let all = self.receives();
        let Some((host, retired)) = self
            .peers
            .get(id)
            .map(|peer| (peer.route.peer, peer.retired_until))
        else {
            return;
        };
        let has_share = self.fits(all.committed, Origin::Program);
        let mut until = retired;
        if self.is_exhausted || !has_share || !self.fits(all.posted, Origin::Program) {
            until = until.max(now + RETRY_INTERVAL);
            if !has_share && retired <= now {
                self.displace(host, Some(id));
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            peer.link.postpone(until);
        }
    }

    /// Handles the lack of memory, descriptors or objects for a connection attempt. Another connection
    /// yields, once for each request. The request is then held until a connection has ended; without
    /// another connection, it is rejected. Returns `false` if the caller has to report
    /// [`failed`](Self::failed): this host has dialed, or the attempt is no longer the current one.
    pub fn exhausted(
        &mut self,
        now: Duration,
        id: ConnectionId,
        attempt: Attempt,
        request: Option<RequestId>,
    ) -> bool {
        self.latest = now;
        let Some(peer) = self.peer(id) else {
            return false;
        };
        let host = peer.route.peer;
        let Some(request) = request else {
            self.displace(host, Some(id));
            return false;
        };
        if !peer.link.defer(now, attempt, request) {
            return false;
        }
        peer.receives = 0;
        let is_first = peer.exhausted_by.replace(request) != Some(request);
        if is_first && self.displace(host, Some(id)) {
            self.is_exhausted = true;
        } else {
            self.refused();
            if let Some(peer) = self.peer(id) {
                peer.link.retire(now);
            }
        }
        true
    }

    /// Number of receives to post in addition, once the peer has proven itself: as many as
    /// configured, but at most half of the receives that are free for growth, and of which no connection has any.
    pub fn grow(&mut self, id: ConnectionId) -> u32 {
        let max = self.settings.max_receives;
        let all = self.receives();
        let of_peers = max - max / u64::from(LOCAL_SHARE);
        let unused = of_peers.saturating_sub(all.posted.max(all.committed));
        let free = (max - max / INITIAL_SHARE)
            .saturating_sub(all.grown)
            .min(unused);
        let (initial, full) = (self.settings.initial_receives, self.settings.receives);
        let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.link.is_up()) else {
            return 0;
        };
        let more = u64::from(full.saturating_sub(peer.receives)).min(free / 2);
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if more < initial {
            return 0;
        }
        peer.receives += more;
        more
    }

    /// Checks the limit of pending attempts of unknown peers: half-open connections and held requests.
    /// At the limit, the oldest of the address with most of them yields.
    fn check_pending(&mut self, from: IpAddr) -> Result<(), BadRequest> {
        let initial = self.link_receives().max(1);
        let fitting = self.settings.max_receives / PENDING_RECEIVES / initial;
        let max = usize::try_from(fitting).unwrap_or(usize::MAX);
        let max = max.min(self.settings.max_pending).max(1);
        let mut all = 0;
        let mut hosts: HashMap<Host, (usize, Duration, ConnectionId)> = HashMap::new();
        for (id, peer) in self.peers.iter().filter(|(_, peer)| !peer.is_proven) {
            if let Some(since) = peer.link.pending_since() {
                all += 1;
                let host = hosts
                    .entry(peer.route.peer.into())
                    .or_insert((0, since, id));
                host.0 += 1;
                if since < host.1 {
                    (host.1, host.2) = (since, id);
                }
            }
        }
        let of_host = hosts.get(&from.into()).copied();
        let (same, since, oldest) = match of_host {
            Some((same, since, oldest)) => (same, since, Some(oldest)),
            None => (0, self.latest, None),
        };
        let victim = if same >= max.div_ceil(PENDING_SHARE) {
            oldest.filter(|_| since + YIELD_AFTER <= self.latest)
        } else if all >= max {
            let largest = hosts
                .values()
                .max_by_key(|&&(count, since, id)| (count, Reverse((since, id))));
            largest
                .filter(|&&(count, ..)| count > same)
                .map(|&(.., id)| id)
        } else {
            return Ok(());
        };
        let victim = victim.ok_or(BadRequest::Pending(all))?;
        self.counters.evicted += 1;
        let now = self.latest;
        if let Some(peer) = self.peer(victim) {
            peer.link.retire(now);
        }
        Ok(())
    }

    /// Whether the table has an entry for another connection, or an idle one without a link is
    /// forgotten, or an attempt without messages ended. Entries whose connection is closing are not counted.
    fn has_entry(&mut self, peer: IpAddr, origin: Origin) -> Result<bool, BadRequest> {
        let max = self.settings.max_connections;
        let max = match origin {
            Origin::Program => max,
            Origin::Peer => max - max / LOCAL_SHARE as usize,
        };
        let lasting = self.peers.iter().filter(|(_, other)| !other.is_ending());
        let same = lasting.filter(|(_, other)| other.route.peer == peer);
        let same = same.count();
        if same >= self.settings.max_connections_per_peer
            && !self.forget_idle(Some(peer))
            && !self.end_optional(Some(peer))
        {
            return Err(BadRequest::Connections(same));
        }
        let ending = self.peers.iter().filter(|(_, other)| other.is_ending());
        let ending = ending.count();
        // Connections that have yielded earlier may have ended meanwhile.
        while self.peers.len() - ending >= max {
            if !self.forget_idle(None) {
                return Ok(self.end_optional(None));
            }
        }
        Ok(true)
    }

    /// Ends an attempt of this host without messages, optionally only at an address: a request needs the entry, and
    /// the peer of the attempt may connect as before. Returns whether there was one.
    fn end_optional(&mut self, at: Option<IpAddr>) -> bool {
        let Some(id) = self.least_used(at, Peer::is_optional) else {
            return false;
        };
        self.counters.evicted += 1;
        let now = self.latest;
        if let Some(peer) = self.peer(id) {
            peer.link.retire(now);
        }
        true
    }

    /// Forgets an idle connection without a link, optionally only at an address. Returns whether there was one.
    fn forget_idle(&mut self, at: Option<IpAddr>) -> bool {
        let Some(id) = self.least_used(at, Peer::is_forgettable) else {
            return false;
        };
        self.counters.evicted += 1;
        self.forget(id);
        true
    }

    /// One of these connections, optionally only at an address: first without received messages, then of the address with
    /// most connections, then the longest idle one.
    fn least_used(
        &mut self,
        at: Option<IpAddr>,
        which: impl Fn(&Peer<P, B>) -> bool,
    ) -> Option<ConnectionId> {
        self.retire_acked();
        let hosts = self.count_by_host(|_, _| true);
        let chosen = self.peers.iter().filter(|(_, peer)| which(peer));
        let chosen = chosen.filter(|(_, peer)| at.is_none_or(|at| peer.route.peer == at));
        let order = |peer: &Peer<P, B>| {
            let has_received = peer.connection.next_sequences().1 != 0;
            let count = hosts.get(&peer.route.peer.into()).copied();
            (has_received, Reverse(count), peer.used_at)
        };
        let least = chosen.min_by_key(|(_, peer)| order(peer));
        least.map(|(id, _)| id)
    }

    /// Number of connections of each address.
    fn count_by_host(
        &self,
        counts: impl Fn(ConnectionId, &Peer<P, B>) -> bool,
    ) -> HashMap<Host, usize> {
        let mut hosts = HashMap::new();
        for (_, peer) in self.peers.iter().filter(|&(id, peer)| counts(id, peer)) {
            *hosts.entry(Host::from(peer.route.peer)).or_default() += 1;
        }
        hosts
    }

    /// Closes a connection in favor of one more of the address `to`: the least used one of the
    /// address with most of them. Returns whether there was one.
    fn displace(&mut self, to: IpAddr, except: Option<ConnectionId>) -> bool {
        self.retire_acked();
        let now = self.latest;
        let Some(id) = self.yielding(to, except) else {
            return false;
        };
        self.counters.evicted += 1;
        if let Some(peer) = self.peer(id) {
            peer.link.retire(now);
            peer.retired_until = now + RETIRED_TIME;
        }
        true
    }

    /// The connection that yields to one more of the address `to`, not counting `except`. An address
    /// keeps its last connection while messages of local programs are in progress on it.
    fn yielding(&self, to: IpAddr, except: Option<ConnectionId>) -> Option<ConnectionId> {
        let hosts = self.count_by_host(|id, peer| peer.link.is_active() && Some(id) != except);
        let count = |host: IpAddr| hosts.get(&host.into()).copied().unwrap_or(0);
        let same = count(to);
        let active = self.peers.iter().filter(|&(id, peer)| {
            peer.link.is_active() && !peer.link.is_held() && Some(id) != except
        });
        let yielding = active.filter_map(|(id, peer)| {
            let count = count(peer.route.peer);
            let (rank, since) = self.rank(peer);
            let yields = count > same + 1 || count == same + 1 && rank != Rank::Busy;
            yields.then_some(((Reverse(count), rank, since), id))
        });
        yielding.min_by_key(|&(order, _)| order).map(|(_, id)| id)
    }

    /// Use of a connection, and the time of its last use of this kind.
    fn rank(&self, peer: &Peer<P, B>) -> (Rank, Duration) {
        let last = peer.proven_at.unwrap_or(peer.linked_at);
        if !peer.is_idle() {
            // Neither a new link nor a delivered message of the peer extends the time.
            let since = peer.pending_since.unwrap_or(self.latest);
            let protected = match peer.has_acked {
                true => self.settings.idle_after,
                false => FIRST_ACK,
            };
            return match since.saturating_add(protected) > self.latest {
                true => (Rank::Busy, last),
                false => (Rank::Unproven, since),
            };
        }
        let rank = match peer.proven_at {
            Some(_) => Rank::Proven,
            None if peer.link.is_up() => Rank::Unproven,
            None => Rank::Pending,
        };
        (rank, last)
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
