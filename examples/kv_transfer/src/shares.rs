//! A lease at the writer: its pages in groups, one for each lane.

use std::time::Instant;

use super::{
    cause::Cause,
    lane::PageWrite,
    message::{Immediate, Share},
};

/// Progress of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupState {
    /// Pages are written by the group's lane.
    Writing,
    /// The lane has failed. The reader is asked whether the group is in place.
    Uncertain,
    /// The group is in place, or will not be written any more.
    Done,
}

/// The pages of a lease that one lane writes, and the last with immediate data.
#[derive(Debug)]
struct Group {
    lane: usize,
    /// Page of the writer, and page of the reader.
    pages: Vec<(u32, u32)>,
    posted: usize,
    in_flight: usize,
    state: GroupState,
}

/// A lease, from its grant to its end.
#[derive(Debug)]
pub(crate) struct Shares {
    /// The reader's pages.
    pub(crate) targets: Vec<u32>,
    pub(crate) deadline: Instant,
    groups: Vec<Group>,
    pub(crate) ending: Option<Cause>,
}

/// The next write of a lease.
#[derive(Debug)]
pub(crate) struct NextWrite {
    pub(crate) lane: usize,
    pub(crate) source: u32,
    pub(crate) target: u32,
    pub(crate) write: PageWrite,
    pub(crate) immediate: Option<Immediate>,
}

/// Lanes, groups and pages of a lease are few.
fn to_u8(number: usize) -> u8 {
    u8::try_from(number).expect("a lease has at most 24 pages, and a peer 4 lanes")
}

impl Shares {
    pub(crate) fn new(targets: Vec<u32>, deadline: Instant) -> Self {
        Self {
            targets,
            deadline,
            groups: Vec::new(),
            ending: None,
        }
    }

    pub(crate) fn has_sources(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Distributes the pages over the lanes, in turn.
    pub(crate) fn stripe(&mut self, sources: &[u32], lanes: &[usize]) {
        let pairs: Vec<_> = sources
            .iter()
            .copied()
            .zip(self.targets.iter().copied())
            .collect();
        let used = lanes.iter().take(pairs.len()).enumerate();
        let groups = used.map(|(first, lane)| Group {
            lane: *lane,
            pages: pairs
                .iter()
                .copied()
                .skip(first)
                .step_by(lanes.len())
                .collect(),
            posted: 0,
            in_flight: 0,
            state: GroupState::Writing,
        });
        self.groups = groups.collect();
    }

    /// The next write by each lane, for a lease of this number.
    pub(crate) fn next(&self, lease: u32, group: usize) -> Option<NextWrite> {
        let number = to_u8(group);
        let group = self.groups.get(group)?;
        if self.ending.is_some() || group.state != GroupState::Writing {
            return None;
        }
        let (source, target) = *group.pages.get(group.posted)?;
        let last = group.posted + 1 == group.pages.len();
        let immediate = Immediate {
            lease,
            group: number,
            pages: to_u8(group.pages.len()),
        };
        Some(NextWrite {
            lane: group.lane,
            source,
            target,
            write: PageWrite {
                lease,
                group: number,
                last,
            },
            immediate: last.then_some(immediate),
        })
    }

    pub(crate) fn group_count(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn posted(&mut self, group: usize) {
        let group = &mut self.groups[group];
        group.posted += 1;
        group.in_flight += 1;
    }

    /// Handles the completion of a write.
    pub(crate) fn completed(&mut self, write: PageWrite, success: bool) {
        let Some(group) = self.groups.get_mut(usize::from(write.group)) else {
            return;
        };
        group.in_flight -= 1;
        match (success, write.last) {
            (true, true) => group.state = GroupState::Done,
            (true, false) => {}
            (false, _) => group.state = GroupState::Uncertain,
        }
    }

    /// Handles the end of a lane: groups that it has not begun move to `next`, and the others are returned, for a question to the
    /// reader.
    pub(crate) fn lane_ended(&mut self, lease: u32, lane: usize, next: usize) -> Vec<Share> {
        let mut uncertain = Vec::new();
        for (number, group) in self.groups.iter_mut().enumerate() {
            if group.lane != lane || group.state == GroupState::Done {
                continue;
            }
            if group.posted == 0 {
                group.lane = next;
                continue;
            }
            group.state = GroupState::Uncertain;
            let (group, lane) = (to_u8(number), to_u8(lane));
            uncertain.push(Share { lease, group, lane });
        }
        uncertain
    }

    /// Handles the reader's answer about a group. An answer that nothing was asked for is ignored.
    pub(crate) fn answered(&mut self, share: Share, repeat_on: Option<usize>) {
        let Some(group) = self.groups.get_mut(usize::from(share.group)) else {
            return;
        };
        if group.state != GroupState::Uncertain || group.lane != usize::from(share.lane) {
            return;
        }
        match repeat_on {
            None => group.state = GroupState::Done,
            Some(lane) => {
                (group.lane, group.posted) = (lane, 0);
                group.state = GroupState::Writing;
            }
        }
    }

    /// Whether all groups are in place.
    pub(crate) fn is_written(&self) -> bool {
        let mut groups = self.groups.iter();
        self.has_sources() && groups.all(|group| group.state == GroupState::Done)
    }

    /// Whether no write can reach the reader any more: none is in flight, here or in an ended lane's packets.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.all(|group| group.in_flight == 0 && group.state != GroupState::Uncertain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease of three pages on the lanes 0 and 1, with all writes posted.
    fn posted() -> Shares {
        let mut shares = Shares::new(vec![7, 8, 9], Instant::now());
        shares.stripe(&[1, 2, 3], &[0, 1]);
        for group in 0..shares.group_count() {
            while shares.next(5, group).is_some() {
                shares.posted(group);
            }
        }
        shares
    }

    fn write(group: u8, last: bool) -> PageWrite {
        PageWrite {
            lease: 5,
            group,
            last,
        }
    }

    #[test]
    fn stripe_puts_the_immediate_on_the_last_write_of_each_lane() {
        let mut shares = Shares::new(vec![7, 8, 9], Instant::now());
        shares.stripe(&[1, 2, 3], &[0, 1]);
        let first = shares.next(5, 0).unwrap();
        assert_eq!((first.lane, first.source, first.target), (0, 1, 7));
        assert_eq!(first.immediate, None);
        shares.posted(0);
        let last = shares.next(5, 0).unwrap();
        assert_eq!((last.source, last.target), (3, 9));
        assert_eq!(
            last.immediate,
            Some(Immediate {
                lease: 5,
                group: 0,
                pages: 2
            })
        );
        let other = shares.next(5, 1).unwrap();
        assert_eq!(
            other.immediate,
            Some(Immediate {
                lease: 5,
                group: 1,
                pages: 1
            })
        );
    }

    #[test]
    fn cancelled_lease_is_quiet_after_its_last_completion() {
        let mut shares = posted();
        shares.ending = Some(Cause::Cancelled);
        shares.completed(write(0, false), true);
        shares.completed(write(0, true), true);
        assert!(!shares.is_quiet(), "a write is in flight");
        shares.completed(write(1, true), true);
        assert!(shares.is_quiet());
    }

    #[test]
    fn failed_group_is_quiet_after_the_readers_answer() {
        let mut shares = posted();
        shares.completed(write(1, true), true);
        shares.completed(write(0, false), true);
        shares.completed(write(0, true), false);
        assert!(!shares.is_quiet(), "the peer may yet execute the write");
        let lost = Share {
            lease: 5,
            group: 0,
            lane: 0,
        };
        assert_eq!(shares.lane_ended(5, 0, 1), [lost]);
        shares.answered(Share { lane: 1, ..lost }, Some(1));
        assert!(
            shares.next(5, 0).is_none(),
            "the answer is about another lane"
        );
        shares.answered(lost, Some(1));
        let again = shares.next(5, 0).unwrap();
        assert_eq!((again.lane, again.source, again.target), (1, 1, 7));
        shares.answered(lost, None);
        assert!(!shares.is_written(), "a second answer");
    }

    #[test]
    fn group_in_place_at_the_reader_is_not_written_again() {
        let mut shares = posted();
        shares.completed(write(1, true), true);
        shares.completed(write(0, false), true);
        shares.completed(write(0, true), false);
        let lost = shares.lane_ended(5, 0, 1);
        shares.answered(lost[0], None);
        assert!(shares.is_written());
    }
}
