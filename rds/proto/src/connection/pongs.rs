//! Queued answers to pings, of a connection and of all connections of a node.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Maximum number of queued pongs of all connections of a node, about 2 MiB, beside [`SHARE`].
const MAX_ALL: usize = 16_384;

/// Number of queued pongs that a connection may have in any case: a ping of an honest host is answered beside hosts that
/// acknowledge no pongs.
const SHARE: usize = 4;

/// Number of queued pongs of all connections of a node.
pub(crate) type AllPongs = Arc<AtomicUsize>;

/// Number of queued pongs of a connection, counted for all connections too.
#[derive(Debug, Default)]
pub(super) struct Pongs {
    of_connection: usize,
    all: AllPongs,
}

impl Pongs {
    /// Counts in `all` from now on.
    pub(super) fn count_in(&mut self, all: &AllPongs) {
        *self = Self {
            of_connection: 0,
            all: Arc::clone(all),
        };
    }

    /// Whether another pong may be queued, with at most `max` of this connection.
    pub(super) fn may_add(&self, max: usize) -> bool {
        self.of_connection < max && (self.of_connection < SHARE || self.all.load(Relaxed) < MAX_ALL)
    }

    /// Number of queued pongs of the connection.
    pub(super) fn count(&self) -> usize {
        self.of_connection
    }

    pub(super) fn add(&mut self) {
        self.of_connection += 1;
        self.all.fetch_add(1, Relaxed);
    }

    pub(super) fn remove(&mut self) {
        self.of_connection -= 1;
        self.all.fetch_sub(1, Relaxed);
    }
}

impl Drop for Pongs {
    fn drop(&mut self) {
        self.all.fetch_sub(self.of_connection, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pongs_of_all_connections_are_bounded_beside_a_share_of_each() {
        let all = AllPongs::default();
        let new = || {
            let mut pongs = Pongs::default();
            pongs.count_in(&all);
            pongs
        };
        let fill = |pongs: &mut Pongs| {
            while pongs.may_add(1024) {
                pongs.add();
            }
            pongs.of_connection
        };
        let mut hostile: Vec<Pongs> = (0..17).map(|_| new()).collect();
        let queued: Vec<usize> = hostile.iter_mut().map(fill).collect();
        assert_eq!(queued, [vec![1024; 16], vec![SHARE]].concat());
        let mut honest = new();
        assert_eq!(fill(&mut honest), SHARE);
        honest.remove();
        assert_eq!(fill(&mut honest), SHARE);
        // The end of a connection releases its pongs.
        hostile.truncate(1);
        assert_eq!(all.load(Relaxed), 1024 + SHARE);
        assert_eq!(fill(&mut honest), 1024);
        drop((hostile, honest));
        assert_eq!(all.load(Relaxed), 0);
    }
}
