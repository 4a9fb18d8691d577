//! Memory as the engine reaches it: by addresses of the host that a key has allowed.

/// The host's memory.
///
/// The engine calls these only for ranges of a region that is registered at that moment, after the key, the bounds and
/// the access have been checked. Tests implement the trait with memory of their own, and so prove exactly that.
pub trait Memory {
    /// Copies bytes from the host's memory.
    fn read(&mut self, addr: u64, to: &mut [u8]);

    /// Copies bytes to the host's memory.
    fn write(&mut self, addr: u64, from: &[u8]);

    /// Changes the number of 8 bytes at an address that is a multiple of 8, and returns the old one.
    fn atomic(&mut self, addr: u64, operation: Atomic) -> u64;
}

/// An atomic operation on a number in the host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds, and wraps around.
    FetchAdd(u64),
    /// Stores `swap` if the number is `compare`.
    CompareSwap {
        /// The expected number.
        compare: u64,
        /// The new number.
        swap: u64,
    },
}

impl Atomic {
    /// The new number for an old one.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Self::FetchAdd(add) => old.wrapping_add(add),
            Self::CompareSwap { compare, swap } if old == compare => swap,
            Self::CompareSwap { .. } => old,
        }
    }
}
