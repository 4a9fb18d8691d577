//! A receive buffer: a ring that the peer writes to.

use std::ops::Range;

use crate::proto::Target;

/// No target is less than this, of what could be more.
const LEAST_PART: u32 = 16 << 10;

#[derive(Debug)]
pub(super) struct Ring {
    addr: u64,
    rkey: u32,
    size: u32,
    /// The least that the peer is told of at once.
    pub(super) part: u32,
    /// Bytes that have arrived and have not been read, and where these begin.
    pub(super) unread: u32,
    at: u32,
    /// What the peer may still write, and where that begins.
    pub(super) room: u32,
    room_at: u32,
    /// Bytes whose room the peer does not know of, and where these begin.
    pub(super) free: u32,
    free_at: u32,
}

/// The least that a peer with so many entries is told of at once: they last for the whole buffer.
fn part(size: u32, half: u32, entries: u32) -> u32 {
    let mut part = half;
    while part.is_multiple_of(2) && part > LEAST_PART && size / (part / 2) <= entries {
        part /= 2;
    }
    part
}

impl Ring {
    /// One that the peer knows nothing of, which has a table of so many entries.
    pub(super) fn new((addr, rkey): (u64, u32), size: u32, half: u32, entries: u32) -> Self {
        Self {
            addr,
            rkey,
            size,
            part: part(size, half, entries),
            unread: 0,
            at: 0,
            room: 0,
            room_at: 0,
            free: size,
            free_at: 0,
        }
    }

    /// The peer has written so many bytes. `None` if there is no room for them.
    pub(super) fn write(&mut self, len: u32) -> Option<()> {
        // A message does not go on at the buffer's beginning.
        if len > self.room.min(self.size - self.room_at) {
            return None;
        }
        self.room -= len;
        self.room_at = (self.room_at + len) % self.size;
        self.unread += len;
        Some(())
    }

    /// Where the next `len` bytes are, or as many as there are: first here, and then there.
    pub(super) fn next(&self, len: u32) -> [Range<u32>; 2] {
        let len = len.min(self.unread);
        let first = len.min(self.size - self.at);
        [self.at..self.at + first, 0..len - first]
    }

    /// The next `len` bytes have been read, or as many as there are. Returns how many those were.
    pub(super) fn consume(&mut self, len: u32) -> u32 {
        let len = len.min(self.unread);
        self.unread -= len;
        self.at = (self.at + len) % self.size;
        self.free += len;
        len
    }

    /// The peer is told of the next `len` bytes that are free, or of half of that, and so on.
    pub(super) fn tell(&mut self, len: u32) -> Target {
        let most = self.free.min(self.size - self.free_at);
        let mut len = len;
        while len > most {
            len /= 2;
        }
        let target = Target {
            addr: self.addr.wrapping_add(self.free_at.into()),
            rkey: self.rkey,
            len,
        };
        self.free -= len;
        self.free_at = (self.free_at + len) % self.size;
        self.room += len;
        target
    }

    /// Returns the maximum number of entries of the peer's table that its room can be in. A target is one part or
    /// several, and ends where a part does; the peer may have used up the beginning of the first one.
    pub(super) fn entries(&self) -> u32 {
        self.room.div_ceil(self.part)
    }

    /// Whether the peer writes nothing more to it of what it knows of, and all it has written is read.
    pub(super) fn is_over(&self) -> bool {
        self.room == 0 && self.unread == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use fastrand::Rng;

    use super::*;

    const ADDR: u64 = 0x1000;

    /// Whatever the peer writes and the program reads, the peer's targets are never more than the ring says, and as many
    /// if each is one part.
    #[test]
    fn entries_bound_the_targets_that_the_peer_has_left() {
        let mut rng = Rng::with_seed(31);
        for (size, entries) in [
            (128 << 10, 8),
            (256 << 10, 8),
            (96 << 10, 8),
            (128 << 10, 2),
            (6, 8),
        ] {
            let mut ring = Ring::new((ADDR, 1), size, size / 2, entries);
            let mut targets: VecDeque<u32> = VecDeque::new();
            for _ in 0..10_000 {
                if ring.free >= ring.part {
                    targets.push_back(ring.tell(size / 2).len);
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
