//! Which operations are under way, for those who wait for their ends.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use crate::proto::SocketId;

/// So many failures are remembered.
const MAX_FAILURES: usize = 1024;

/// The operations of all sockets, by the hosts that they are on.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    books: HashMap<(SocketId, IpAddr), Book>,
}

#[derive(Debug, Default)]
struct Book {
    open: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    last: u64,
}

/// How far a socket's operations on a host's memory have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// All up to this one have ended.
    pub(crate) ended: u64,
    /// One of those has failed.
    pub(crate) failed: bool,
}

impl Operations {
    /// An operation has begun.
    pub(crate) fn begin(&mut self, owner: SocketId, peer: IpAddr, id: u64) {
        let book = self.books.entry((owner, peer)).or_default();
        book.open.insert(id);
        book.last = book.last.max(id);
    }

    /// An operation has ended.
    pub(super) fn end(&mut self, owner: SocketId, peer: IpAddr, id: u64, failed: bool) {
        if let Some(book) = self.books.get_mut(&(owner, peer)) {
            book.open.remove(&id);
            if failed {
                book.failed.insert(id);
                if book.failed.len() > MAX_FAILURES {
                    // Nobody has asked for long.
                    book.failed.pop_first();
                }
            }
        }
    }

    /// An operation has ended as soon as it began; returns its number.
    pub(crate) fn at_once(&mut self, owner: SocketId, peer: IpAddr, failed: bool) -> u64 {
        let book = self.books.entry((owner, peer)).or_default();
        let id = book.last + 1;
        self.begin(owner, peer, id);
        self.end(owner, peer, id, failed);
        id
    }

    /// How far the operations up to `wanted` have come. A failure is told once.
    pub(crate) fn progress(&mut self, owner: SocketId, peer: IpAddr, wanted: u64) -> Progress {
        let Some(book) = self.books.get_mut(&(owner, peer)) else {
            return Progress {
                ended: wanted,
                failed: false,
            };
        };
        let ended = book.open.first().map_or(book.last, |first| first - 1);
        let failed = ended >= wanted && book.failed.first().is_some_and(|&id| id <= wanted);
        if failed {
            book.failed.retain(|&id| id > wanted);
        }
        Progress { ended, failed }
    }

    /// A socket is closed.
    pub(crate) fn forget(&mut self, owner: SocketId) {
        self.books.retain(|(of, _), _| *of != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of L-R13.
    #[test]
    fn operations_end_in_order_for_who_waits() {
        let (owner, peer) = (SocketId(1), IpAddr::from([10, 9, 0, 2]));
        let mut operations = Operations::default();
        for id in [7, 8, 9] {
            operations.begin(owner, peer, id);
        }
        let at = |operations: &mut Operations, wanted| {
            let Progress { ended, failed } = operations.progress(owner, peer, wanted);
            (ended, failed)
        };
        assert_eq!(at(&mut operations, 9), (6, false));
        operations.end(owner, peer, 8, true);
        assert_eq!(at(&mut operations, 7), (6, false), "7 has not ended");
        operations.end(owner, peer, 7, false);
        assert_eq!(at(&mut operations, 7), (8, false));
        assert_eq!(at(&mut operations, 8), (8, true));
        assert_eq!(at(&mut operations, 8), (8, false), "it is told once");
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
