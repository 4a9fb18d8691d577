//! Access of the engine to the host's memory, by host addresses checked against a key.

use super::access::Access;

/// The host's memory.
///
/// The engine calls these methods only for ranges of a currently registered region, after the check of key, bounds and
/// rights. Tests prove this with an implementation of the trait.
pub trait Memory {
    /// Copies bytes from the host's memory. Both sides have one length.
    fn read(&mut self, from: HostRange, to: &mut [u8]);

    /// Copies bytes to the host's memory. Both sides have one length.
    fn write(&mut self, from: &[u8], to: HostRange);

    /// Copies bytes of the host's memory to other, possibly overlapping memory of the same length. Hosts of one process
    /// have one memory.
    fn copy(&mut self, from: HostRange, to: HostRange);

    /// Changes the 8-byte number at an aligned address, and returns the old number.
    fn atomic(&mut self, addr: u64, operation: Atomic) -> u64;
}

/// A range of the host's memory, inside a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostRange {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: usize,
    /// The region, if the program may access the bytes at the same time as the engine.
    pub shared: Shared,
}

/// A region with rights for peers, or shared with the program. The program may access the bytes at any time, by atomic accesses of one size for each
/// byte: the aligned 8-byte words inside the region as words, and the bytes before and behind the words one by one.
///
/// Bytes of any other region belong to the device while a request has them, so the region is empty here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// Address of the first byte.
    pub start: u64,
    /// Address behind the last byte.
    pub end: u64,
}

impl HostRange {
    /// Whether the program may access the bytes at the same time.
    pub(crate) fn is_shared(self) -> bool {
        self.shared.start < self.shared.end
    }

    /// The `len` bytes at `offset` of the range, both at most the length.
    pub(crate) fn part(self, offset: usize, len: usize) -> Self {
        debug_assert!(offset + len <= self.len);
        Self {
            addr: self.addr.wrapping_add(offset as u64),
            len,
            ..self
        }
    }
}

impl Shared {
    /// A region of `len` bytes from `start` on, with these rights.
    pub(crate) fn of(start: u64, len: u64, access: Access) -> Self {
        if !access.intersects(Access::CONCURRENT) {
            return Self::default();
        }
        Self {
            start,
            end: start.saturating_add(len),
        }
    }
}

/// An atomic operation on a number in the host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds with wrap-around.
    FetchAdd(u64),
    /// Stores a number.
    Write(u64),
    /// Stores `swap` if the number equals `compare`.
    CompareSwap {
        /// The expected number.
        compare: u64,
        /// The new number.
        swap: u64,
    },
}

impl Atomic {
    /// The new number for an old number.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Self::FetchAdd(add) => old.wrapping_add(add),
            Self::Write(new) => new,
            Self::CompareSwap { compare, swap } if old == compare => swap,
            Self::CompareSwap { .. } => old,
        }
    }
}
