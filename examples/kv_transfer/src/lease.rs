//! A lease at the reader: pages that a writer may write until the lease has ended.

use std::time::Instant;

use anyhow::ensure;

use super::{cause::Cause, message::Immediate, page::PageSet, peer::PeerId};

/// A lease of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    pub(crate) peer: PeerId,
    pub(crate) number: u32,
}

impl LeaseId {
    /// The peer of the lease.
    pub fn peer(self) -> PeerId {
        self.peer
    }

    /// The number of the lease: the first of a peer is 1.
    pub fn number(self) -> u32 {
        self.number
    }
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) pages: PageSet,
    pub(crate) deadline: Instant,
    /// Groups in place, one bit each.
    groups: u8,
    /// Number of pages in place.
    arrived: usize,
    /// Why the lease ends, and when the peer must have acknowledged the cancellation.
    pub(crate) ending: Option<(Cause, Instant)>,
}

impl Lease {
    pub(crate) fn new(pages: PageSet, deadline: Instant) -> Self {
        Self {
            pages,
            deadline,
            groups: 0,
            arrived: 0,
            ending: None,
        }
    }

    pub(crate) fn has_group(&self, group: u8) -> bool {
        self.groups & 1 << group != 0
    }

    /// Counts a group, and returns whether all pages are in place.
    pub(crate) fn count(&mut self, immediate: Immediate) -> anyhow::Result<bool> {
        let Immediate {
            lease,
            group,
            pages,
        } = immediate;
        ensure!(
            !self.has_group(group),
            "group {group} of lease {lease} has been counted already"
        );
        let (arrived, all) = (self.arrived + usize::from(pages), self.pages.0.len());
        ensure!(
            arrived <= all,
            "{arrived} pages counted for lease {lease} of {all}"
        );
        self.groups |= 1 << group;
        self.arrived = arrived;
        Ok(arrived == all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_refuses_a_second_immediate_of_a_group_and_too_many_pages() {
        let mut lease = Lease::new(PageSet(vec![4, 5, 6]), Instant::now());
        let immediate = |group, pages| Immediate {
            lease: 1,
            group,
            pages,
        };
        assert!(!lease.count(immediate(0, 1)).unwrap());
        let twice = lease.count(immediate(0, 1)).unwrap_err();
        assert_eq!(
            twice.to_string(),
            "group 0 of lease 1 has been counted already"
        );
        let excess = lease.count(immediate(1, 3)).unwrap_err();
        assert_eq!(excess.to_string(), "4 pages counted for lease 1 of 3");
        assert!(!lease.has_group(1));
        assert!(lease.count(immediate(1, 2)).unwrap());
    }
}
