//! Connections by the numbers of their peers. As on Linux, a peer is a device with a GUID, at any address: several
//! processes can share an address.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::id::IdNum;

/// Maximum number of ended connections remembered; the oldest is forgotten first.
const MAX_ENDED: usize = 1 << 16;

/// GUID of the peer's device, and a communication id or the number of a queue pair there.
pub(super) type Remote = (u64, u32);

/// Identifiers by the numbers of their peers.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    by_id: HashMap<Remote, IdNum>,
    by_qp: HashMap<Remote, IdNum>,
    /// Communication ids of ended passive connections, the oldest first, with the time until which the peer may send
    /// copies of its request.
    ended: VecDeque<(Remote, Duration)>,
    ended_until: HashMap<Remote, Duration>,
}

impl Remotes {
    /// The identifier of a peer's communication id, possibly of an ended connection.
    pub(super) fn with_id(&self, remote: Remote) -> Option<IdNum> {
        self.by_id.get(&remote).copied()
    }

    /// The identifier of a peer's queue pair, possibly of an ended connection.
    pub(super) fn with_qp(&self, remote: Remote) -> Option<IdNum> {
        self.by_qp.get(&remote).copied()
    }

    /// Adds a connection of a device by communication id and queue pair, in place of ended connections.
    pub(super) fn insert(&mut self, guid: u64, (id, qp): (u32, u32), num: IdNum) {
        self.by_id.insert((guid, id), num);
        self.by_qp.insert((guid, qp), num);
    }

    /// Removes an identifier, unless another one has taken the numbers over.
    pub(super) fn remove(&mut self, guid: u64, (id, qp): (u32, u32), num: IdNum) {
        if self.with_id((guid, id)) == Some(num) {
            self.by_id.remove(&(guid, id));
        }
        if self.with_qp((guid, qp)) == Some(num) {
            self.by_qp.remove(&(guid, qp));
        }
    }

    /// Remembers the communication id of an ended passive connection.
    pub(super) fn end(&mut self, remote: Remote, until: Duration) {
        self.ended_until.insert(remote, until);
        self.ended.push_back((remote, until));
        if self.ended.len() > MAX_ENDED
            && let Some((oldest, until)) = self.ended.pop_front()
            && self.ended_until.get(&oldest) == Some(&until)
        {
            self.ended_until.remove(&oldest);
        }
    }

    /// Whether the passive connection of a communication id has recently ended.
    pub(super) fn has_ended(&self, remote: Remote, now: Duration) -> bool {
        self.ended_until
            .get(&remote)
            .is_some_and(|until| now < *until)
    }
}
