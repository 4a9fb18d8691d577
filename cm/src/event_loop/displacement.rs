//! Choice of the connection of an event loop that gives way to a new one.

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use crate::by_address::{ByAddress, PeerIp};

/// Minimum time without completions after which a connection gives way to a new one, at the maximum number of
/// connections with as many of each address.
const IDLE_DISPLACED: Duration = Duration::from_secs(30);

/// The youngest 1 of this number of connections give way to addresses without a connection.
const NEWCOMER_FRACTION: usize = 8;

/// Minimum number of these: as many requests of others can come before a newcomer has used its connection.
const NEWCOMER_MIN: usize = 8;

/// The connection that gives way to one of `addr`; `used` returns the time of a connection's last use:
///
/// 1. of the address with the most connections, unless the newcomer's would have as many then;
/// 2. of any address, if unused for 30 s;
/// 3. for an address without a connection, of the youngest eighth, at least 8: so old connections in use stay, and addresses
///    without one are served beside any number of others.
///
/// Of several, the connection unused for longest. Takes time linear in their number.
pub(super) fn displaced_for<T: Copy + Ord>(
    connections: &ByAddress<T>,
    used: impl Fn(T) -> Option<Instant>,
    addr: PeerIp,
    now: Instant,
) -> Option<T> {
    let unused_for_longest = |ids: &mut dyn Iterator<Item = T>| {
        let with_times = ids.filter_map(|id| used(id).map(|at| (at, id)));
        with_times.min()
    };
    let (largest, count) = connections.largest()?;
    if count > connections.count(addr) + 1 {
        let found = unused_for_longest(&mut connections.of(largest).copied());
        return found.map(|(_, id)| id);
    }
    let mut all: Vec<_> = connections.iter().collect();
    let (at, id) = unused_for_longest(&mut all.iter().map(|(_, id)| **id))?;
    if now.saturating_duration_since(at) >= IDLE_DISPLACED {
        return Some(id);
    }
    if connections.count(addr) > 0 {
        return None;
    }
    let youngest = all.len().div_ceil(NEWCOMER_FRACTION);
    let youngest = youngest.max(NEWCOMER_MIN).min(all.len());
    all.select_nth_unstable_by_key(youngest - 1, |(serial, _)| Reverse(*serial));
    let found = unused_for_longest(&mut all.iter().take(youngest).map(|(_, id)| **id));
    found.map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, net::IpAddr};

    use super::*;

    fn addr(number: u32) -> PeerIp {
        Some(IpAddr::from((0x0a09_0000 + number).to_be_bytes()))
    }

    /// Connections by their order, each with the time of its last use.
    struct Table {
        by_addr: ByAddress<u32>,
        used: HashMap<u32, (PeerIp, u64, Instant)>,
        start: Instant,
        next: u32,
    }

    impl Table {
        fn new() -> Self {
            Self {
                by_addr: ByAddress::new(),
                used: HashMap::new(),
                start: Instant::now(),
                next: 0,
            }
        }

        fn at(&self, seconds: u32) -> Instant {
            self.start + Duration::from_secs(seconds.into())
        }

        /// A new connection, last used at `seconds`.
        fn insert(&mut self, host: u32, seconds: u32) -> u32 {
            let id = self.next;
            self.next += 1;
            let serial = self.by_addr.insert(addr(host), id);
            self.used.insert(id, (addr(host), serial, self.at(seconds)));
            id
        }

        fn remove(&mut self, id: u32) {
            let (addr, serial, _) = self.used.remove(&id).unwrap();
            assert_eq!(self.by_addr.remove(addr, serial), Some(id));
        }

        fn is_open(&self, id: u32) -> bool {
            self.used.contains_key(&id)
        }

        fn displaced_for(&self, host: u32, seconds: u32) -> Option<u32> {
            let used = |id| self.used.get(&id).map(|(.., at)| *at);
            displaced_for(&self.by_addr, used, addr(host), self.at(seconds))
        }
    }

    #[test]
    fn longest_unused_of_the_largest_address_gives_way_at_once() {
        let mut table = Table::new();
        assert_eq!(table.displaced_for(9, 0), None, "no connection");
        let _of_another = table.insert(2, 0);
        let [_, unused, _] = [3, 1, 2].map(|used| table.insert(1, used));
        assert_eq!(table.displaced_for(9, 3), Some(unused));
        assert_eq!(table.displaced_for(2, 3), Some(unused));
        table.insert(2, 3);
        // The difference would only be reversed.
        assert_eq!(table.displaced_for(2, 3), None);
        assert_eq!(table.displaced_for(1, 3), None);
    }

    #[test]
    fn connection_unused_for_30_seconds_gives_way_to_any_address() {
        let mut table = Table::new();
        let ids = [5, 3, 4].map(|used| table.insert(used, used));
        for host in [4, 5] {
            assert_eq!(table.displaced_for(host, 32), None, "not for 30 s yet");
            assert_eq!(table.displaced_for(host, 33), Some(ids[1]));
        }
        for newer in 6..13 {
            table.insert(newer, 30);
        }
        // A newcomer does not end an old connection in use.
        assert_eq!(table.displaced_for(99, 32), Some(ids[2]));
        assert_eq!(table.displaced_for(99, 33), Some(ids[1]));
    }

    /// Any number of addresses with one connection each, all in use, keep no newcomer out, and newcomers end only connections as
    /// young as their own.
    #[test]
    fn newcomers_have_an_eighth_of_the_connections() {
        let mut table = Table::new();
        let old: Vec<u32> = (0..64).map(|host| table.insert(host, 10)).collect();
        let mut displaced = Vec::new();
        for newcomer in 100..200 {
            let id = table.displaced_for(newcomer, 11).unwrap();
            table.remove(id);
            displaced.push(id);
            table.insert(newcomer, 11);
        }
        assert!(old[..56].iter().all(|&id| table.is_open(id)));
        // Each stays until an eighth of all have come after it.
        let expected = (56..64).chain(64..156);
        assert!(displaced.iter().copied().eq(expected), "{displaced:?}");
    }

    /// A newcomer in use stays while others in its share are not used.
    #[test]
    fn newcomer_in_use_outlasts_unused_ones() {
        let mut table = Table::new();
        for host in 0..56 {
            table.insert(host, 20);
        }
        let honest = table.insert(99, 10);
        for host in 56..63 {
            table.insert(host, 5);
        }
        for newcomer in 100..107 {
            let id = table.displaced_for(newcomer, 20).unwrap();
            assert_ne!(id, honest);
            table.remove(id);
            table.insert(newcomer, 20);
        }
        assert_eq!(table.displaced_for(107, 20), Some(honest));
    }
}
