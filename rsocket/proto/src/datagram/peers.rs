//! Known peers of a datagram socket and their routes.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

/// Maximum number of known peers. Any host can become one by sending a message.
const MAX_PEERS: usize = 4096;
/// Maximum number of concurrent route resolutions.
const MAX_RESOLUTIONS: usize = 64;
/// Maximum age of the last message from a peer before the queue pair number must be confirmed.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// Peers by address: the local endpoint (`L`), and the resolved route to the queue pair (`W`).
#[derive(Debug)]
pub(super) struct Peers<L, W> {
    by_addr: HashMap<SocketAddr, Peer<L, W>>,
    /// Counter of operations, for evicting the least recently used peers.
    uses: u64,
    resolutions: usize,
}

#[derive(Debug)]
struct Peer<L, W> {
    local: L,
    /// Queue pair number advertised by the peer.
    qp_num: Option<u32>,
    /// Another number advertised since, for a route in use.
    candidate: Option<Candidate>,
    path: Option<W>,
    resolving: bool,
    /// Time of the last message from the peer, or of the last confirmation request.
    last_message: Duration,
    last_use: u64,
}

/// An advertised queue pair number that replaces the number of a route in use once an answer of the peer has confirmed
/// the change: the header may be forged.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    qp_num: u32,
    /// A datagram has been sent over UDP since, which the peer answers.
    is_probed: bool,
}

/// Route of a datagram to a peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Route<L, W> {
    /// Over UDP, advertising the queue pair number of this local endpoint.
    Exchange(L),
    /// Between the queue pairs.
    Direct {
        /// Local endpoint.
        local: L,
        /// Resolved route.
        path: W,
        /// Queue pair number of the peer.
        qp_num: u32,
    },
}

impl<L: Copy, W> Peers<L, W> {
    pub(super) fn new() -> Self {
        Self {
            by_addr: HashMap::new(),
            uses: 0,
            resolutions: 0,
        }
    }

    fn find(&mut self, peer: SocketAddr) -> Option<&mut Peer<L, W>> {
        let peer = self.by_addr.get_mut(&peer)?;
        self.uses += 1;
        peer.last_use = self.uses;
        Some(peer)
    }

    pub(super) fn local(&self, peer: SocketAddr) -> Option<L> {
        Some(self.by_addr.get(&peer)?.local)
    }

    pub(super) fn len(&self) -> usize {
        self.by_addr.len()
    }

    /// Adds a peer. At the limit, evicts the least recently used half, except peers with a resolution in
    /// progress.
    pub(super) fn add(&mut self, peer: SocketAddr, local: L, now: Duration) {
        if self.by_addr.len() >= MAX_PEERS {
            let mut uses: Vec<u64> = self.by_addr.values().map(|peer| peer.last_use).collect();
            let middle = uses.len() / 2;
            let (_, &mut middle, _) = uses.select_nth_unstable(middle);
            self.by_addr
                .retain(|_, peer| peer.last_use >= middle || peer.resolving);
        }
        self.uses += 1;
        self.by_addr.insert(
            peer,
            Peer {
                local,
                qp_num: None,
                candidate: None,
                path: None,
                resolving: false,
                last_message: now,
                last_use: self.uses,
            },
        );
    }

    /// Returns the route of the next datagram to a known peer.
    ///
    /// After a second of silence, one datagram is sent over UDP to make the peer answer: a restarted peer has
    /// another queue pair. After another number has been advertised, all are, until the answer.
    pub(super) fn route(&mut self, peer: SocketAddr, now: Duration) -> Option<Route<L, &W>> {
        let peer = self.find(peer)?;
        if let Some(candidate) = &mut peer.candidate {
            candidate.is_probed = true;
            return Some(Route::Exchange(peer.local));
        }
        Some(match (&peer.path, peer.qp_num) {
            (Some(_), Some(_)) if now.saturating_sub(peer.last_message) > CONFIRM_AFTER => {
                peer.last_message = now;
                Route::Exchange(peer.local)
            }
            (Some(path), Some(qp_num)) => Route::Direct {
                local: peer.local,
                path,
                qp_num,
            },
            _ => Route::Exchange(peer.local),
        })
    }

    /// Records a message from a peer between the queue pairs.
    pub(super) fn message_received(&mut self, peer: SocketAddr, now: Duration) {
        if let Some(peer) = self.find(peer) {
            peer.last_message = now;
        }
    }

    /// Records an advertised queue pair number. Returns whether to resolve the route.
    ///
    /// The number of a route in use is replaced only by an answer to a datagram sent since the first header with the new
    /// number, and not if the peer has answered with the number in use meanwhile.
    pub(super) fn qp_num_received(
        &mut self,
        peer: SocketAddr,
        qp_num: u32,
        is_answer: bool,
        now: Duration,
    ) -> bool {
        let may_resolve = self.resolutions < MAX_RESOLUTIONS;
        let Some(peer) = self.find(peer) else {
            return false;
        };
        if peer.path.is_some() && peer.qp_num != Some(qp_num) {
            let candidate = peer.candidate.filter(|other| other.qp_num == qp_num);
            if !is_answer || !candidate.is_some_and(|candidate| candidate.is_probed) {
                peer.candidate = candidate.or(Some(Candidate {
                    qp_num,
                    is_probed: false,
                }));
                return false;
            }
        }
        peer.last_message = now;
        peer.candidate = None;
        if peer.qp_num != Some(qp_num) {
            peer.qp_num = Some(qp_num);
            peer.path = None;
        }
        let resolve = peer.path.is_none() && !peer.resolving && may_resolve;
        peer.resolving |= resolve;
        self.resolutions += usize::from(resolve);
        resolve
    }

    /// Records the end of a resolution, successful or not.
    pub(super) fn path_resolved(&mut self, peer: SocketAddr, path: Option<W>, now: Duration) {
        let Some(peer) = self.find(peer).filter(|peer| peer.resolving) else {
            return;
        };
        peer.resolving = false;
        peer.last_message = now;
        peer.path = path;
        self.resolutions -= 1;
    }

    /// Removes the peers of a removed local endpoint.
    pub(super) fn remove_local(&mut self, is_removed: impl Fn(L) -> bool) {
        let resolutions = &mut self.resolutions;
        self.by_addr.retain(|_, peer| {
            let removed = is_removed(peer.local);
            *resolutions -= usize::from(removed && peer.resolving);
            !removed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(number: u16) -> SocketAddr {
        ([10, 9, number.to_be_bytes()[0], number.to_be_bytes()[1]], 1).into()
    }

    const START: Duration = Duration::ZERO;

    #[test]
    fn peer_path_is_resolved_once_for_each_queue_pair() {
        let mut peers = Peers::new();
        peers.add(addr(1), (), START);
        assert_eq!(peers.route(addr(1), START), Some(Route::Exchange(())));
        assert!(peers.qp_num_received(addr(1), 7, true, START));
        assert!(!peers.qp_num_received(addr(1), 7, true, START));
        peers.path_resolved(addr(1), Some('a'), START);
        let direct = |path, qp_num| {
            Some(Route::Direct {
                local: (),
                path,
                qp_num,
            })
        };
        assert_eq!(peers.route(addr(1), START), direct(&'a', 7));
        assert!(!peers.qp_num_received(addr(1), 7, true, START));
        // Another number, confirmed by the answer to the next datagram.
        assert!(!peers.qp_num_received(addr(1), 8, false, START));
        assert_eq!(peers.route(addr(1), START), Some(Route::Exchange(())));
        assert!(peers.qp_num_received(addr(1), 8, true, START));
        assert_eq!(peers.route(addr(1), START), Some(Route::Exchange(())));
        // The number changes again during the resolution; the route is valid for both.
        assert!(!peers.qp_num_received(addr(1), 9, true, START));
        peers.path_resolved(addr(1), Some('b'), START);
        assert_eq!(peers.route(addr(1), START), direct(&'b', 9));
        // A result without a resolution is ignored.
        peers.path_resolved(addr(1), None, START);
        assert_eq!(peers.route(addr(1), START), direct(&'b', 9));
    }

    /// A forged header once a second, against a peer that answers each datagram sent over UDP.
    #[test]
    fn forged_queue_pair_number_does_not_redirect_datagrams() {
        let mut peers = Peers::new();
        peers.add(addr(1), (), START);
        assert!(peers.qp_num_received(addr(1), 7, true, START));
        peers.path_resolved(addr(1), Some(()), START);
        let (mut direct, mut by_udp) = (0, 0);
        for tenth in 0..1000 {
            let now = Duration::from_millis(tenth * 100);
            if tenth % 10 == 0 {
                let is_answer = tenth % 20 == 0;
                assert!(!peers.qp_num_received(addr(1), 666, is_answer, now));
            }
            match peers.route(addr(1), now) {
                Some(Route::Exchange(())) => {
                    by_udp += 1;
                    assert!(!peers.qp_num_received(addr(1), 7, true, now));
                }
                Some(Route::Direct { qp_num: 7, .. }) => direct += 1,
                other => unreachable!("{other:?} at {now:?}"),
            }
        }
        assert_eq!((direct, by_udp), (900, 100));
    }

    /// A restarted peer advertises its queue pair with each datagram, and answers.
    #[test]
    fn number_of_restarted_peer_replaces_the_route_once_confirmed() {
        let mut peers = Peers::new();
        peers.add(addr(1), (), START);
        assert!(peers.qp_num_received(addr(1), 7, true, START));
        peers.path_resolved(addr(1), Some(()), START);
        for _ in 0..3 {
            assert!(!peers.qp_num_received(addr(1), 8, false, START));
        }
        // The answer to an earlier datagram is no confirmation.
        assert!(!peers.qp_num_received(addr(1), 8, true, START));
        assert_eq!(peers.route(addr(1), START), Some(Route::Exchange(())));
        assert!(!peers.qp_num_received(addr(1), 8, false, START));
        assert!(peers.qp_num_received(addr(1), 8, true, START));
        peers.path_resolved(addr(1), Some(()), START);
        let direct = Route::Direct {
            local: (),
            path: &(),
            qp_num: 8,
        };
        assert_eq!(peers.route(addr(1), START), Some(direct));
    }

    /// A peer may have restarted.
    #[test]
    fn silent_peer_is_probed_by_udp_periodically() {
        let mut peers = Peers::new();
        peers.add(addr(1), (), START);
        peers.qp_num_received(addr(1), 7, true, START);
        peers.path_resolved(addr(1), Some(()), START);
        let mut by_udp = 0;
        for tenth in 0..100 {
            let now = Duration::from_millis(tenth * 100);
            by_udp += u32::from(peers.route(addr(1), now) == Some(Route::Exchange(())));
        }
        assert!((8..=9).contains(&by_udp), "{by_udp}");
        peers.message_received(addr(1), Duration::from_secs(20));
        let soon = Duration::from_millis(20_900);
        assert!(matches!(
            peers.route(addr(1), soon),
            Some(Route::Direct { .. })
        ));
    }

    #[test]
    fn unknown_peers_beyond_the_limit_are_evicted() {
        let mut peers = Peers::<(), ()>::new();
        let used = addr(0);
        peers.add(used, (), START);
        for unknown in 1..20_000 {
            peers.add(addr(unknown), (), START);
            peers.qp_num_received(addr(unknown), 1, true, START);
            assert!(peers.len() <= MAX_PEERS);
            assert!(peers.resolutions <= MAX_RESOLUTIONS);
            assert_eq!(peers.route(used, START), Some(Route::Exchange(())));
        }
    }

    /// Otherwise the places of their resolutions would leak, and no route would be resolved any more.
    #[test]
    fn unknown_peers_do_not_evict_peers_being_resolved() {
        let mut peers = Peers::<(), ()>::new();
        let resolved_later = |number| addr(30_000 + number);
        let max = u16::try_from(MAX_RESOLUTIONS).unwrap();
        for number in 0..max {
            peers.add(resolved_later(number), (), START);
            assert!(peers.qp_num_received(resolved_later(number), 7, true, START));
        }
        for unknown in 0..20_000 {
            peers.add(addr(unknown), (), START);
            assert!(peers.len() <= MAX_PEERS);
        }
        peers.add(addr(40_000), (), START);
        assert!(
            !peers.qp_num_received(addr(40_000), 7, true, START),
            "all places are taken"
        );
        for number in 0..max {
            peers.path_resolved(resolved_later(number), Some(()), START);
        }
        assert_eq!(peers.resolutions, 0);
        assert!(peers.qp_num_received(addr(40_000), 7, true, START));
    }

    #[test]
    fn removed_local_endpoint_forgets_its_peers() {
        let mut peers = Peers::<u8, ()>::new();
        for number in 0..10 {
            peers.add(addr(number), u8::from(number % 2 == 0), START);
            assert!(peers.qp_num_received(addr(number), 1, true, START));
        }
        peers.remove_local(|local| local == 1);
        assert_eq!((peers.len(), peers.resolutions), (5, 5));
        assert_eq!(peers.local(addr(0)), None);
        peers.path_resolved(addr(0), Some(()), START);
        peers.path_resolved(addr(1), Some(()), START);
        assert_eq!(peers.resolutions, 4);
    }
}
