//! A receive buffer: a ring written by the peer.

use std::ops::Range;

use crate::Target;

/// Minimum target size in bytes for subdivided targets.
const MIN_PART: u32 = 16 << 10;

#[derive(Debug)]
pub(super) struct Ring {
    addr: u64,
    rkey: u32,
    size: u32,
    /// Maximum size of a target: half of the buffer.
    pub(super) half: u32,
    /// Minimum number of bytes granted to the peer at once.
    pub(super) part: u32,
    /// Number of unread bytes, and their start.
    pub(super) unread: u32,
    at: u32,
    /// Number of bytes the peer may write, and their start.
    pub(super) granted: u32,
    granted_at: u32,
    /// Number of bytes not granted to the peer, and their start.
    pub(super) free: u32,
    free_at: u32,
    /// Number of targets granted so far.
    pub(super) grants: u32,
}

/// Returns the target size with which the given number of entries covers the whole buffer.
fn part(size: u32, half: u32, entries: u32) -> u32 {
    let mut part = half;
    while part.is_multiple_of(2) && part > MIN_PART && size / (part / 2) <= entries {
        part /= 2;
    }
    part
}

impl Ring {
    /// Creates a ring with all bytes free, for a peer with the given number of table entries.
    pub(super) fn new((addr, rkey): (u64, u32), size: u32, entries: u32) -> Self {
        let half = size / 2;
        Self {
            addr,
            rkey,
            size,
            half,
            part: part(size, half, entries),
            unread: 0,
            at: 0,
            granted: 0,
            granted_at: 0,
            free: size,
            free_at: 0,
            grants: 0,
        }
    }

    /// Handles `len` bytes written by the peer. `None` without room.
    pub(super) fn write(&mut self, len: u32) -> Option<()> {
        // A message does not wrap around.
        if len > self.granted.min(self.size - self.granted_at) {
            return None;
        }
        self.granted -= len;
        self.granted_at = (self.granted_at + len) % self.size;
        self.unread += len;
        Some(())
    }

    /// Returns the ranges of the next `len` bytes, or of all unread bytes if fewer; the second starts after
    /// the wrap.
    pub(super) fn next(&self, len: u32) -> [Range<u32>; 2] {
        let len = len.min(self.unread);
        let first = len.min(self.size - self.at);
        [self.at..self.at + first, 0..len - first]
    }

    /// Consumes up to `len` unread bytes. Returns their number.
    pub(super) fn consume(&mut self, len: u32) -> u32 {
        let len = len.min(self.unread);
        self.unread -= len;
        self.at = (self.at + len) % self.size;
        self.free += len;
        len
    }

    /// Grants the next `len` free bytes to the peer, or the largest available fraction by halving.
    pub(super) fn grant(&mut self, len: u32) -> Target {
        let contiguous = self.free.min(self.size - self.free_at);
        let mut len = len;
        while len > contiguous {
            len /= 2;
        }
        let target = Target {
            addr: self.addr.wrapping_add(self.free_at.into()),
            rkey: self.rkey,
            len,
        };
        self.free -= len;
        self.free_at = (self.free_at + len) % self.size;
        self.granted += len;
        self.grants = self.grants.saturating_add(1);
        target
    }

    /// Returns the maximum number of table entries covered by the granted room. A target has one or several
    /// parts and ends at the end of one; the peer may have used up the beginning of the first.
    pub(super) fn entries(&self) -> u32 {
        self.granted.div_ceil(self.part)
    }

    /// Whether the peer has used all granted room, and all data has been read.
    pub(super) fn is_unused(&self) -> bool {
        self.granted == 0 && self.unread == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use fastrand::Rng;

    use super::*;

    const ADDR: u64 = 0x1000;

    /// The ring's bound holds for any sequence of writes and reads, and is exact for targets of one part
    /// each.
    #[test]
    fn ring_entries_bound_the_targets_of_the_peer() {
        let mut rng = Rng::with_seed(31);
        for (size, entries) in [
            (128 << 10, 8),
            (256 << 10, 8),
            (96 << 10, 8),
            (128 << 10, 2),
            (6, 8),
        ] {
            let mut ring = Ring::new((ADDR, 1), size, entries);
            let mut targets: VecDeque<u32> = VecDeque::new();
            for _ in 0..10_000 {
                if ring.free >= ring.part {
                    targets.push_back(ring.grant(size / 2).len);
                }
                let parts: u32 = targets.iter().map(|len| len.div_ceil(ring.part)).sum();
                assert!(targets.len() <= ring.entries() as usize);
                assert_eq!(ring.entries(), parts, "{targets:?}");
                let len = rng.u32(0..=targets[0]);
                ring.write(len).expect("there is room");
                targets[0] -= len;
                targets.retain(|&len| len > 0);
                ring.consume(rng.u32(0..=size));
                if targets.is_empty() {
                    ring.consume(size);
                }
            }
        }
    }
}
