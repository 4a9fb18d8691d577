//! Access of the engine to the host's memory, by host addresses checked against a key.

/// The host's memory.
///
/// The engine calls these methods only for ranges of a currently registered region, after the check of key, bounds and
/// rights. Tests prove this with an implementation of the trait.
pub trait Memory {
    /// Copies bytes from the host's memory.
    fn read(&mut self, addr: u64, to: &mut [u8]);

    /// Copies bytes to the host's memory.
    fn write(&mut self, addr: u64, from: &[u8]);

    /// Copies bytes of the host's memory to other, possibly overlapping memory. Hosts of one process have one memory.
    fn copy(&mut self, from: u64, to: u64, len: usize);

    /// Changes the 8-byte number at an aligned address, and returns the old number.
    fn atomic(&mut self, addr: u64, operation: Atomic) -> u64;
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
