//! Connections by the IP address of the peer, and the address with the most connections.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use crate::{id::CmId, phases::IdPhase};

/// The peer's IP address; peers of other address families share `None`.
pub(crate) type PeerIp = Option<IpAddr>;

/// The address counted for the connection of an identifier.
pub(crate) fn peer_ip<P: IdPhase>(id: &CmId<P>) -> PeerIp {
    id.peer_addr().map(|addr| addr.ip())
}

/// Number of a connection in the order of insertion.
pub(crate) type Serial = u64;

/// Connections by address, with counts kept up to date: each call takes logarithmic time.
#[derive(Debug)]
pub(crate) struct ByAddress<T> {
    addresses: HashMap<PeerIp, BTreeMap<Serial, T>>,
    /// Number of connections of each address, in ascending order.
    counts: BTreeSet<(usize, PeerIp)>,
    last: Serial,
}

impl<T> ByAddress<T> {
    pub(crate) fn new() -> Self {
        Self {
            addresses: HashMap::new(),
            counts: BTreeSet::new(),
            last: 0,
        }
    }

    /// Number of connections of an address.
    pub(crate) fn count(&self, addr: PeerIp) -> usize {
        self.addresses.get(&addr).map_or(0, BTreeMap::len)
    }

    pub(crate) fn insert(&mut self, addr: PeerIp, connection: T) -> Serial {
        self.last += 1;
        let of_addr = self.addresses.entry(addr).or_default();
        self.counts.remove(&(of_addr.len(), addr));
        of_addr.insert(self.last, connection);
        self.counts.insert((of_addr.len(), addr));
        self.last
    }

    pub(crate) fn remove(&mut self, addr: PeerIp, serial: Serial) -> Option<T> {
        let of_addr = self.addresses.get_mut(&addr)?;
        let before = of_addr.len();
        let removed = of_addr.remove(&serial)?;
        let count = of_addr.len();
        self.counts.remove(&(before, addr));
        if count > 0 {
            self.counts.insert((count, addr));
        } else {
            self.addresses.remove(&addr);
        }
        Some(removed)
    }

    /// An address with the maximum number of connections, and that number.
    pub(crate) fn largest(&self) -> Option<(PeerIp, usize)> {
        self.counts.last().map(|(count, addr)| (*addr, *count))
    }

    /// All connections, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Serial, &T)> {
        let addresses = self.addresses.values().flatten();
        addresses.map(|(serial, connection)| (*serial, connection))
    }

    /// Connections of an address, the oldest first.
    pub(crate) fn of(&self, addr: PeerIp) -> impl Iterator<Item = &T> {
        self.addresses
            .get(&addr)
            .into_iter()
            .flat_map(BTreeMap::values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_address_is_found_after_each_change() {
        let [a, b] = [1, 2].map(|last| Some(IpAddr::from([10, 9, 0, last])));
        let mut all = ByAddress::new();
        assert_eq!(all.largest(), None);
        let first = all.insert(a, "a1");
        let _ = all.insert(b, "b1");
        let _ = all.insert(a, "a2");
        assert_eq!(all.largest(), Some((a, 2)));
        assert_eq!(all.remove(b, first), None, "of another address");
        assert_eq!(all.remove(a, first), Some("a1"));
        assert_eq!(all.remove(a, first), None);
        let _ = all.insert(b, "b2");
        assert_eq!(all.largest(), Some((b, 2)));
        assert_eq!((all.count(a), all.count(None)), (1, 0));
        assert!(all.of(b).eq(&["b1", "b2"]));
    }
}
