//! Progress of RDMA and atomic operations, for `RDS_BARRIER`.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use crate::proto::SocketId;

/// Maximum number of recorded failures per socket and host; the oldest are forgotten.
const MAX_FAILURES: usize = 1024;

/// Operations of all sockets, by owner and target host.
#[derive(Debug, Default)]
pub(crate) struct Operations(HashMap<SocketId, HashMap<IpAddr, Book>>);

#[derive(Debug, Default)]
struct Book {
    open: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    last: u64,
}

/// Progress of a socket's operations on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All operations up to this number have ended.
    pub(crate) ended: u64,
    /// One of them has failed.
    pub(crate) failed: bool,
}

impl Operations {
    fn get(&mut self, owner: SocketId, peer: IpAddr) -> Option<&mut Book> {
        self.0.get_mut(&owner)?.get_mut(&peer)
    }

    fn book(&mut self, owner: SocketId, peer: IpAddr) -> &mut Book {
        self.0.entry(owner).or_default().entry(peer).or_default()
    }

    /// Records the start of an operation.
    pub(crate) fn begin(&mut self, owner: SocketId, peer: IpAddr, id: u64) {
        let book = self.book(owner, peer);
        book.open.insert(id);
        book.last = book.last.max(id);
    }

    /// Records the end of an operation.
    pub(super) fn end(&mut self, owner: SocketId, peer: IpAddr, id: u64, failed: bool) {
        if let Some(book) = self.get(owner, peer) {
            book.open.remove(&id);
            if failed {
                book.failed.insert(id);
                if book.failed.len() > MAX_FAILURES {
                    // The owner has not asked for a long time.
                    book.failed.pop_first();
                }
            }
        }
    }

    /// Records an operation that completed immediately; returns its number.
    pub(crate) fn at_once(&mut self, owner: SocketId, peer: IpAddr, failed: bool) -> u64 {
        let id = self.book(owner, peer).last + 1;
        self.begin(owner, peer, id);
        self.end(owner, peer, id, failed);
        id
    }

    /// Progress of the operations up to `last`. Reports each failure once.
    pub(crate) fn progress(&mut self, owner: SocketId, peer: IpAddr, last: u64) -> Progress {
        let Some(book) = self.get(owner, peer) else {
            return Progress {
                ended: last,
                failed: false,
            };
        };
        let ended = book.open.first().map_or(book.last, |first| first - 1);
        let failed = ended >= last && book.failed.first().is_some_and(|&id| id <= last);
        if failed {
            book.failed.retain(|&id| id > last);
        }
        Progress { ended, failed }
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, owner: SocketId) {
        self.0.remove(&owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_progress_follows_operation_order() {
        let (owner, peer) = (SocketId(1), IpAddr::from([10, 9, 0, 2]));
        let mut operations = Operations::default();
        for id in [7, 8, 9] {
            operations.begin(owner, peer, id);
        }
        let at = |operations: &mut Operations, last| {
            let Progress { ended, failed } = operations.progress(owner, peer, last);
            (ended, failed)
        };
        assert_eq!(at(&mut operations, 9), (6, false));
        operations.end(owner, peer, 8, true);
        assert_eq!(at(&mut operations, 7), (6, false), "7 has not ended");
        operations.end(owner, peer, 7, false);
        assert_eq!(at(&mut operations, 7), (8, false));
        assert_eq!(at(&mut operations, 8), (8, true));
        assert_eq!(
            at(&mut operations, 8),
            (8, false),
            "the status is returned once"
        );
        operations.end(owner, peer, 9, false);
        assert_eq!(at(&mut operations, 9), (9, false));
        assert_eq!(operations.at_once(owner, peer, true), 10);
        assert_eq!(operations.at_once(owner, peer, false), 11);
        assert_eq!(at(&mut operations, 11), (11, true));
        operations.forget(owner);
        operations.end(owner, peer, 9, true);
        assert_eq!(
            at(&mut operations, 3),
            (3, false),
            "of none, all have ended"
        );
    }
}
