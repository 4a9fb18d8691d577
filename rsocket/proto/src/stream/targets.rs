//! Targets granted by the peer in this side's table.

use super::{TARGETS, Table};
use crate::{ByteOrder, Target};

/// Unused targets in order. Adjacent targets are merged.
#[derive(Debug)]
pub(super) struct Targets {
    unused: [Target; TARGETS as usize],
    /// Index of the first target, and their number.
    first: usize,
    count: usize,
    /// Next table entry to be written by the peer.
    entry: u32,
    /// Size of the peer's first target: half of its buffer.
    half: u32,
}

impl Targets {
    pub(super) fn new(first: Target) -> Self {
        let mut unused = [Target::default(); TARGETS as usize];
        unused[0] = first;
        Self {
            unused,
            first: 0,
            count: 1,
            entry: 1,
            half: first.len,
        }
    }

    /// Maximum size of the next message.
    pub(super) fn window(&self) -> u32 {
        self.unused[self.first].len
    }

    /// Takes the next `len` bytes, at most [`window`](Self::window). Returns their start.
    pub(super) fn use_up(&mut self, len: u32) -> Target {
        let target = &mut self.unused[self.first];
        let begin = *target;
        target.addr = begin.addr.wrapping_add(len.into());
        target.len -= len;
        if target.len == 0 && self.count > 1 {
            self.first = self.nth(1);
            self.count -= 1;
        }
        begin
    }

    /// Takes the targets written by the peer.
    pub(super) fn take(&mut self, table: &mut impl Table, order: ByteOrder) {
        for _ in 0..TARGETS {
            let written = Target::decode(&table.target(self.entry), order);
            // With iWARP the next entry may be partially written: a length that no target has is incomplete. Such
            // an entry must not be cleared, because the store could overwrite the device's concurrent write.
            if !self.is_part(written.len) || !self.add(written) {
                return;
            }
            table.clear_target(self.entry);
            self.entry = (self.entry + 1) % TARGETS;
        }
    }

    /// Whether a target may have this length: the half, doubled or halved any number of times. A partially
    /// written length cannot equal another valid one, since all have the same number of set bits.
    fn is_part(&self, len: u32) -> bool {
        let odd = |len: u32| len.checked_shr(len.trailing_zeros());
        len > 0 && odd(len) == odd(self.half)
    }

    /// Appends a target. Returns whether there was room.
    fn add(&mut self, target: Target) -> bool {
        let last = &mut self.unused[(self.first + self.count - 1) % TARGETS as usize];
        if last.len == 0 {
            *last = target;
            return true;
        }
        let is_adjacent =
            last.rkey == target.rkey && last.addr.wrapping_add(last.len.into()) == target.addr;
        if let Some(len) = last.len.checked_add(target.len).filter(|_| is_adjacent) {
            last.len = len;
            return true;
        }
        if self.count == self.unused.len() {
            return false;
        }
        self.unused[self.nth(self.count)] = target;
        self.count += 1;
        true
    }

    fn nth(&self, n: usize) -> usize {
        (self.first + n) % self.unused.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;

    const FIRST: Target = Target {
        addr: 0x1000,
        rkey: 5,
        len: 64 << 10,
    };

    /// A table, and the peer's next entry.
    #[derive(Default)]
    struct Written {
        entries: [Target; TARGETS as usize],
        next: usize,
        reads: usize,
    }

    impl Written {
        fn new() -> Self {
            Self {
                next: 1,
                ..Self::default()
            }
        }

        fn write(&mut self, target: Target) {
            self.entries[self.next] = target;
            self.next = (self.next + 1) % self.entries.len();
        }
    }

    impl Table for Written {
        fn target(&mut self, index: u32) -> [u8; Target::SIZE] {
            self.reads += 1;
            self.entries[index as usize].encode(ByteOrder::Little)
        }

        fn clear_target(&mut self, index: u32) {
            self.entries[index as usize].len = 0;
        }

        fn mapping(&mut self, _index: u16) -> [u8; Mapping::SIZE] {
            unreachable!("no mapping is read")
        }
    }

    /// Uses all room in messages of maximum size.
    fn use_up(targets: &mut Targets) -> Vec<(u64, u32, u32)> {
        let mut messages = vec![];
        while targets.window() > 0 {
            let len = targets.window();
            let Target { addr, rkey, .. } = targets.use_up(len);
            messages.push((addr, rkey, len));
        }
        messages
    }

    #[test]
    fn adjacent_targets_are_merged() {
        let mut targets = Targets::new(FIRST);
        let mut table = Written::new();
        let part = |addr, len| Target { addr, len, ..FIRST };
        table.write(part(0x1_1000, 32 << 10));
        table.write(part(0x1_9000, 16 << 10));
        table.write(part(0x1_d000, 16 << 10));
        // The start of the buffer, then an unrelated target.
        table.write(part(0x1000, 16 << 10));
        table.write(Target {
            rkey: 6,
            ..part(0x5000, 16 << 10)
        });
        targets.take(&mut table, ByteOrder::Little);
        assert_eq!(targets.use_up(0x800).addr, 0x1000);
        let expected = [
            (0x1800, 5, (128 << 10) - 0x800),
            (0x1000, 5, 16 << 10),
            (0x5000, 6, 16 << 10),
        ];
        assert_eq!(use_up(&mut targets), expected);
        assert_eq!(targets.window(), 0);
        table.write(part(0x5000, 16 << 10));
        targets.take(&mut table, ByteOrder::Little);
        assert_eq!(use_up(&mut targets), [(0x5000, 5, 16 << 10)]);
    }

    #[test]
    fn target_entries_are_taken_in_turn() {
        let mut targets = Targets::new(FIRST);
        let mut table = Written::new();
        for round in 0..3 * TARGETS {
            let target = Target {
                addr: 0x10_0000 * u64::from(round),
                ..FIRST
            };
            table.write(target);
            targets.take(&mut table, ByteOrder::Little);
            let messages = use_up(&mut targets);
            assert_eq!(messages.last(), Some(&(target.addr, 5, 64 << 10)));
        }
    }

    /// Targets beyond the capacity stay in the table.
    #[test]
    fn target_entries_beyond_the_table_are_ignored() {
        let mut targets = Targets::new(FIRST);
        let mut table = Written::new();
        for round in 1..=u64::from(TARGETS) {
            table.write(Target {
                addr: 0x10_0000 * round,
                ..FIRST
            });
        }
        targets.take(&mut table, ByteOrder::Little);
        let lengths: Vec<u32> = table.entries.iter().map(|entry| entry.len).collect();
        assert_eq!(lengths, [64 << 10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(use_up(&mut targets).len(), 8);
        targets.take(&mut table, ByteOrder::Little);
        assert_eq!(use_up(&mut targets), [(0x80_0000, 5, 64 << 10)]);
        // The number of reads is bounded.
        let mut endless = Written::new();
        endless.entries = [Target::default(); TARGETS as usize].map(|_| FIRST);
        targets.take(&mut endless, ByteOrder::Little);
        assert!(endless.reads <= TARGETS as usize);
    }

    #[test]
    fn target_sizes_are_the_first_doubled_or_halved() {
        let is_part = |half, len| Targets::new(Target { len: half, ..FIRST }).is_part(len);
        let parts = |half: u32| {
            (0..=4 * half)
                .filter(|&len| is_part(half, len))
                .collect::<Vec<_>>()
        };
        let powers: Vec<u32> = (0..=18).map(|shift| 1 << shift).collect();
        assert_eq!(parts(64 << 10), powers);
        assert_eq!(parts(6), [3, 6, 12, 24]);
        assert_eq!(parts(7), [7, 14, 28]);
        // No partial write equals a valid length.
        let [half, part] = [0x0101_8000_u32, 0x0101_8000 / 4].map(u32::to_le_bytes);
        for written in 1..15_u8 {
            let torn = |bytes: [u8; 4]| {
                let byte = |at: usize| if written & 1 << at == 0 { 0 } else { bytes[at] };
                u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
            };
            for bytes in [half, part] {
                let is_whole = torn(bytes) == u32::from_le_bytes(bytes);
                assert_eq!(is_part(0x0101_8000, torn(bytes)), is_whole);
            }
        }
    }
}
