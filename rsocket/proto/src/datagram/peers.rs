//! Known peers of a datagram socket and their routes.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

/// Maximum number of known peers. Any host can become one by sending a message.
const MOST: usize = 4096;
/// Maximum number of concurrent route resolutions.
const MOST_SEARCHES: usize = 64;
/// Maximum age of the last message from a peer before the queue pair number must be confirmed.
const TRUST: Duration = Duration::from_secs(1);

/// Peers by address: the local endpoint (`L`), and the resolved route to the queue pair (`W`).
#[derive(Debug)]
pub(super) struct Peers<L, W> {
    known: HashMap<SocketAddr, Peer<L, W>>,
    /// Counter of operations, for evicting the least recently used peers.
    turn: u64,
    searches: usize,
}

#[derive(Debug)]
struct Peer<L, W> {
    local: L,
    /// Queue pair number announced by the peer.
    qp_num: Option<u32>,
    way: Option<W>,
    searching: bool,
    /// Time of the last message from the peer, or of the last confirmation request.
    heard: Duration,
    turn: u64,
}

/// Route of a datagram to a peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Route<L, W> {
    /// Over UDP, announcing the queue pair number of this local endpoint.
    Exchange(L),
    /// Between the queue pairs.
    Direct {
        /// Local endpoint.
        local: L,
        /// Resolved route.
        way: W,
        /// Queue pair number of the peer.
        qp_num: u32,
    },
}

impl<L: Copy, W> Peers<L, W> {
    pub(super) fn new() -> Self {
        Self {
            known: HashMap::new(),
            turn: 0,
            searches: 0,
        }
    }

    fn find(&mut self, peer: SocketAddr) -> Option<&mut Peer<L, W>> {
        let peer = self.known.get_mut(&peer)?;
        self.turn += 1;
        peer.turn = self.turn;
        Some(peer)
    }

    pub(super) fn local(&self, peer: SocketAddr) -> Option<L> {
        Some(self.known.get(&peer)?.local)
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Adds a peer. At the limit, evicts the least recently used half, except peers with a resolution in
    /// progress.
    pub(super) fn meet(&mut self, peer: SocketAddr, local: L, now: Duration) {
        if self.known.len() >= MOST {
            let mut turns: Vec<u64> = self.known.values().map(|peer| peer.turn).collect();
            let middle = turns.len() / 2;
            let (_, &mut middle, _) = turns.select_nth_unstable(middle);
            self.known
                .retain(|_, peer| peer.turn >= middle || peer.searching);
        }
        self.turn += 1;
        self.known.insert(
            peer,
            Peer {
                local,
                qp_num: None,
                way: None,
                searching: false,
                heard: now,
                turn: self.turn,
            },
        );
    }

    /// Returns the route of the next datagram to a known peer.
    ///
    /// After a second of silence, one datagram is sent over UDP to make the peer answer: a restarted peer has
    /// another queue pair.
    pub(super) fn route(&mut self, peer: SocketAddr, now: Duration) -> Option<Route<L, &W>> {
        let peer = self.find(peer)?;
        Some(match (&peer.way, peer.qp_num) {
            (Some(_), Some(_)) if now.saturating_sub(peer.heard) > TRUST => {
                peer.heard = now;
                Route::Exchange(peer.local)
            }
            (Some(way), Some(qp_num)) => Route::Direct {
                local: peer.local,
                way,
                qp_num,
            },
            _ => Route::Exchange(peer.local),
        })
    }

    /// Records a message from a peer between the queue pairs.
    pub(super) fn heard(&mut self, peer: SocketAddr, now: Duration) {
        if let Some(peer) = self.find(peer) {
            peer.heard = now;
        }
    }

    /// Records an announced queue pair number. Returns whether to resolve the route.
    pub(super) fn told(&mut self, peer: SocketAddr, qp_num: u32, now: Duration) -> bool {
        let may_search = self.searches < MOST_SEARCHES;
        let Some(peer) = self.find(peer) else {
            return false;
        };
        peer.heard = now;
        if peer.qp_num != Some(qp_num) {
            peer.qp_num = Some(qp_num);
            peer.way = None;
        }
        let search = peer.way.is_none() && !peer.searching && may_search;
        peer.searching |= search;
        self.searches += usize::from(search);
        search
    }

    /// Records the end of a resolution, successful or not.
    pub(super) fn found(&mut self, peer: SocketAddr, way: Option<W>, now: Duration) {
        let Some(peer) = self.find(peer).filter(|peer| peer.searching) else {
            return;
        };
        peer.searching = false;
        peer.heard = now;
        peer.way = way;
        self.searches -= 1;
    }

    /// Removes the peers of a removed local endpoint.
    pub(super) fn forget(&mut self, is_gone: impl Fn(L) -> bool) {
        let searches = &mut self.searches;
        self.known.retain(|_, peer| {
            let gone = is_gone(peer.local);
            *searches -= usize::from(gone && peer.searching);
            !gone
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
        peers.meet(addr(1), (), START);
        assert_eq!(peers.route(addr(1), START), Some(Route::Exchange(())));
        assert!(peers.told(addr(1), 7, START));
        assert!(!peers.told(addr(1), 7, START));
        peers.found(addr(1), Some('a'), START);
        let direct = |way, qp_num| {
            Some(Route::Direct {
                local: (),
                way,
                qp_num,
            })
        };
        assert_eq!(peers.route(addr(1), START), direct(&'a', 7));
        assert!(!peers.told(addr(1), 7, START));
        assert!(peers.told(addr(1), 8, START));
        assert_eq!(peers.route(addr(1), START), Some(Route::Exchange(())));
        // The number changes again during the resolution; the route is valid for both.
        assert!(!peers.told(addr(1), 9, START));
        peers.found(addr(1), Some('b'), START);
        assert_eq!(peers.route(addr(1), START), direct(&'b', 9));
        // A result without a resolution is ignored.
        peers.found(addr(1), None, START);
        assert_eq!(peers.route(addr(1), START), direct(&'b', 9));
    }

    /// P32: a peer may have restarted.
    #[test]
    fn silent_peer_is_probed_by_udp_periodically() {
        let mut peers = Peers::new();
        peers.meet(addr(1), (), START);
        peers.told(addr(1), 7, START);
        peers.found(addr(1), Some(()), START);
        let mut by_udp = 0;
        for tenth in 0..100 {
            let now = Duration::from_millis(tenth * 100);
            by_udp += u32::from(peers.route(addr(1), now) == Some(Route::Exchange(())));
        }
        assert!((8..=9).contains(&by_udp), "{by_udp}");
        peers.heard(addr(1), Duration::from_secs(20));
        let soon = Duration::from_millis(20_900);
        assert!(matches!(
            peers.route(addr(1), soon),
            Some(Route::Direct { .. })
        ));
    }

    #[test]
    fn unknown_peers_beyond_the_limit_are_evicted() {
        let mut peers = Peers::<(), ()>::new();
        let friend = addr(0);
        peers.meet(friend, (), START);
        for stranger in 1..20_000 {
            peers.meet(addr(stranger), (), START);
            peers.told(addr(stranger), 1, START);
            assert!(peers.len() <= MOST);
            assert!(peers.searches <= MOST_SEARCHES);
            assert_eq!(peers.route(friend, START), Some(Route::Exchange(())));
        }
    }

    /// Otherwise the places of their resolutions would leak, and no route would be resolved any more.
    #[test]
    fn unknown_peers_do_not_evict_peers_being_resolved() {
        let mut peers = Peers::<(), ()>::new();
        let searched = |number| addr(30_000 + number);
        let most = u16::try_from(MOST_SEARCHES).unwrap();
        for number in 0..most {
            peers.meet(searched(number), (), START);
            assert!(peers.told(searched(number), 7, START));
        }
        for stranger in 0..20_000 {
            peers.meet(addr(stranger), (), START);
            assert!(peers.len() <= MOST);
        }
        peers.meet(addr(40_000), (), START);
        assert!(!peers.told(addr(40_000), 7, START), "all places are taken");
        for number in 0..most {
            peers.found(searched(number), Some(()), START);
        }
        assert_eq!(peers.searches, 0);
        assert!(peers.told(addr(40_000), 7, START));
    }

    #[test]
    fn removed_local_endpoint_forgets_its_peers() {
        let mut peers = Peers::<u8, ()>::new();
        for number in 0..10 {
            peers.meet(addr(number), u8::from(number % 2 == 0), START);
            assert!(peers.told(addr(number), 1, START));
        }
        peers.forget(|local| local == 1);
        assert_eq!((peers.len(), peers.searches), (5, 5));
        assert_eq!(peers.local(addr(0)), None);
        peers.found(addr(0), Some(()), START);
        peers.found(addr(1), Some(()), START);
        assert_eq!(peers.searches, 4);
    }
}
