//! The rule for half-open connections: a new request displaces the oldest.

use crate::registry::Key;

/// Connections accepted by this side whose peers have not completed the handshake, in the order of their requests.
///
/// A peer can request connections and complete none; the connection manager keeps each for the time chosen by the peer, of
/// up to many hours. So their number is bounded, and each new request is served: beyond the bound it displaces the oldest. An
/// honest handshake takes milliseconds, so it ends before as many requests have come as the bound permits.
#[derive(Debug)]
pub(crate) struct HalfOpen<T>(Vec<(Key, T)>);

impl<T> HalfOpen<T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, key: Key, connection: T) {
        self.0.push((key, connection));
    }

    /// Takes a connection whose handshake has ended.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let found = self.0.iter().position(|(of, _)| *of == key)?;
        Some(self.0.remove(found).1)
    }

    /// Takes the oldest connection if there are more than `limit`, which is at least 1.
    pub(crate) fn displaced(&mut self, limit: usize) -> Option<(Key, T)> {
        (self.0.len() > limit.max(1)).then(|| self.0.remove(0))
    }

    /// Takes the oldest connection.
    pub(crate) fn oldest(&mut self) -> Option<(Key, T)> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }
}
