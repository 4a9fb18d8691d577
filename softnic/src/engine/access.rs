//! Rights to memory, as flags.

use std::ops::BitOr;

/// Rights of a region, a window or a queue pair; the values of `ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(
    /// The flags.
    pub u32,
);

impl Access {
    /// The region's own host may write.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may change numbers atomically.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Atomic operations of peers are allowed.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses count from the start of the region or window.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Peers may flush for global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// Peers may flush for persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);

    /// Writes of a queue pair to the region have no order; in the optional range of `ibv_access_flags`.
    pub const RELAXED_ORDERING: Self = Self(1 << 20);

    /// The program may access the memory at the same time as the engine, by atomic accesses; in the optional range of
    /// `ibv_access_flags`, and set by `verbs::mr::RemoteRegion`.
    pub const SHARED_WITH_PROGRAM: Self = Self(1 << 29);

    /// Rights by which the program may access the memory at any time: those of peers, directly or through windows, and
    /// the program's own.
    pub(super) const CONCURRENT: Self = Self(0x31e | Self::SHARED_WITH_PROGRAM.0);

    /// Rights of peers, by the remote key of a region.
    pub(crate) const REMOTE: Self = Self(0x30e);

    /// All known rights of regions, windows and queue pairs.
    pub(crate) const ALL: Self = Self(0x33f);

    /// Whether all of `other`'s flags are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other`'s flags is set.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
