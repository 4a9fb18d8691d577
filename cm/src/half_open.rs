//! The rules for half-open connections: a limited number, and a limited time.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use crate::{
    by_address::{ByAddress, PeerIp, Serial},
    registry::Key,
};

/// Default maximum time from accepting a request to the peer's end of the handshake: a handshake takes milliseconds, or
/// some seconds if its messages are lost and retransmitted.
pub(crate) const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Default maximum time from requesting a connection to the peer's answer. Linux retransmits a request for 68 s, and
/// longer only if the peer asks for more time, of up to many hours.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);

/// Connections accepted by this side whose peers have not completed the handshake, in the order of their requests.
///
/// A peer can request connections and complete none; the connection manager keeps each for the time chosen by the peer, of
/// up to many hours. So their number is bounded, and each new request is served: beyond the bound, the oldest of the address
/// with the most of them gives way, or the oldest of all if no address has two.
#[derive(Debug)]
pub(crate) struct HalfOpen<T> {
    entries: HashMap<Key, HalfOpenEntry<T>>,
    by_addr: ByAddress<Key>,
    by_age: BTreeMap<Serial, Key>,
}

#[derive(Debug)]
struct HalfOpenEntry<T> {
    addr: PeerIp,
    serial: Serial,
    since: Instant,
    connection: T,
}

impl<T> HalfOpen<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashMap::new(),
            by_addr: ByAddress::new(),
            by_age: BTreeMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn add(&mut self, key: Key, addr: PeerIp, connection: T) {
        let serial = self.by_addr.insert(addr, key);
        self.by_age.insert(serial, key);
        let entry = HalfOpenEntry {
            addr,
            serial,
            since: Instant::now(),
            connection,
        };
        self.entries.insert(key, entry);
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.entries
            .get_mut(&key)
            .map(|entry| &mut entry.connection)
    }

    /// Takes a connection whose handshake has ended.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.remove(&key)?;
        self.by_addr.remove(entry.addr, entry.serial);
        self.by_age.remove(&entry.serial);
        Some(entry.connection)
    }

    /// Takes the connection that gives way to a new request.
    pub(crate) fn displace(&mut self) -> Option<(Key, T)> {
        let (key, _) = self.next_displaced()?;
        self.remove(key).map(|connection| (key, connection))
    }

    /// The connection that gives way to a new request, and its address.
    pub(crate) fn next_displaced(&self) -> Option<(Key, PeerIp)> {
        let (addr, count) = self.by_addr.largest()?;
        let key = if count > 1 {
            self.by_addr.of(addr).next().copied()
        } else {
            self.by_age.first_key_value().map(|(_, key)| *key)
        }?;
        self.entries.get(&key).map(|entry| (key, entry.addr))
    }

    /// Takes the oldest connection of an address.
    pub(crate) fn displace_of(&mut self, addr: PeerIp) -> Option<(Key, T)> {
        let key = self.by_addr.of(addr).next().copied()?;
        self.remove(key).map(|connection| (key, connection))
    }

    /// Time at which the oldest connection has been half-open for `timeout`.
    pub(crate) fn next_expiry(&self, timeout: Duration) -> Option<Instant> {
        let (_, key) = self.by_age.first_key_value()?;
        self.entries.get(key)?.since.checked_add(timeout)
    }

    /// Takes a connection that has been half-open for `timeout` at the time `now`.
    pub(crate) fn expired(&mut self, timeout: Duration, now: Instant) -> Option<(Key, T)> {
        if self.next_expiry(timeout)? > now {
            return None;
        }
        let key = *self.by_age.first_key_value()?.1;
        self.remove(key).map(|connection| (key, connection))
    }

    /// Takes the oldest connection.
    pub(crate) fn oldest(&mut self) -> Option<(Key, T)> {
        let key = *self.by_age.first_key_value()?.1;
        self.remove(key).map(|connection| (key, connection))
    }
}
