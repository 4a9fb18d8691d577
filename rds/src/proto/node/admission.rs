//! How many peers a node has state for, and which of them give way to others.
//!
//! A request costs its sender nothing, and any address can be written into it. So a peer that has only asked is
//! forgotten when its attempt is over; there are few such attempts at a time, few of them from one address, and the
//! oldest gives way. A peer that has been connected is remembered, since that tells messages that come again from new
//! ones; where there are too many, the one that has been idle for longest is forgotten. Some room is kept for the
//! peers that programs here send to.

use std::{net::IpAddr, num::NonZero, time::Duration};

use super::{BadRequest, ConnectionId, Node, Route, peers::Peer};
use crate::proto::{
    link::{Demand, Failure},
    wire::HostPair,
};

/// Time after which an attempt of a stranger gives way to those of others: a handshake takes a few round trips, and a
/// peer whose last word is lost repeats it sooner.
const YIELD_AFTER: Duration = Duration::from_secs(2);

/// Interval between attempts to dial while as many connections are up as may be.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Time in which a peer whose connection was closed for the sake of others may not ask again: a kernel does so at once,
/// and would have the place before the peer that it was made for, which asks every second.
const RETIRED_TIME: Duration = Duration::from_secs(2);

/// One of how many attempts of strangers at a time may come from one address.
const PENDING_SHARE: usize = 8;

/// One of how many places is kept for peers that programs here send to.
const LOCAL_SHARE: usize = 8;

/// For whose sake there is to be a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A program here sends to the peer.
    Program,
    /// The peer asks for it.
    Peer,
}

impl<P, B: AsRef<[u8]>> Node<P, B> {
    /// The connection for a route, made if need be.
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

    /// Whether a request may lead to a connection, as far as those are concerned that are up. An idle one gives way for
    /// the next request, if need be. Some are kept for peers that programs here send to.
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

    /// Whether one more stranger may ask. If not, the attempt that has taken longest gives way, for the next request.
    fn check_pending(&mut self, from: IpAddr) -> Result<(), BadRequest> {
        let most = self.settings.max_pending;
        let strangers = self.peers.iter().filter(|(_, peer)| !peer.is_known);
        let asking =
            strangers.filter_map(|(id, peer)| Some((peer.link.accepting_since()?, id, peer)));
        let (mut all, mut same, mut oldest) = (0, 0, None);
        for (since, id, peer) in asking {
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

    /// Whether there is room for one more connection. An idle one gives way, if need be: at once if it is down, and
    /// for the next request if it has to be closed first.
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

    /// Forgets the peer that is down, is owed nothing, and has been so for longest; one at that address, if it is
    /// given. Returns whether there was one.
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

    /// Closes the connection that has been idle for longest, if any has been for long enough.
    pub(super) fn retire_idle(&mut self) {
        self.retire_acked();
        let (after, now) = (self.settings.idle_after, self.latest);
        let idle = self.peers.iter().filter(|(_, peer)| peer.is_idle());
        let idle = idle.filter(|(_, peer)| peer.link.is_up() && peer.used_at + after <= now);
        if let Some((id, _)) = idle.min_by_key(|(_, peer)| peer.used_at)
            && let Some(peer) = self.peer(id)
        {
            peer.link.retire();
            peer.retired_until = now + RETIRED_TIME;
        }
    }

    /// Number of connections that are up, or in between: each has memory that is pinned.
    pub(super) fn links(&self) -> usize {
        self.peers
            .iter()
            .filter(|(_, peer)| !peer.link.is_down())
            .count()
    }

    /// Forgets a peer. A connection to it that is made later counts its messages from where this one has ended, or
    /// higher: the peer may remember.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let Some(peer) = self.peers.remove(id) else {
            return;
        };
        self.routes.remove(&peer.route.key());
        let next = NonZero::new(peer.connection.next_sequences().0);
        let first = self.settings.first_sequence;
        self.settings.first_sequence = next.map_or(first, |next| next.max(first));
        let host = peer.route.peer;
        if !self.peers.iter().any(|(_, other)| other.route.peer == host) {
            self.peer_maps.remove(&host.into());
        }
    }
}
