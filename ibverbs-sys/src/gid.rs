//! `union ibv_gid`: 16 bytes that identify a port.
//!
//! Hand-written, because a generated union lacks `Debug` and `Eq`, and every struct with a GID would lack them too.

use crate::__be64;
use core::fmt;
use core::hash::{Hash, Hasher};

/// The two halves of a GID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ibv_gid_global {
    /// The subnet's half.
    pub subnet_prefix: __be64,
    /// The port's half.
    pub interface_id: __be64,
}

/// A global identifier: for RoCE an IPv6 address, or an IPv4 one mapped into it.
#[derive(Clone, Copy)]
#[repr(C)]
pub union ibv_gid {
    /// All 16 bytes, in network order.
    pub raw: [u8; 16],
    /// The same bytes as two halves.
    pub global: ibv_gid_global,
}

const _: () = assert!(size_of::<ibv_gid>() == 16 && align_of::<ibv_gid>() == 8);

impl ibv_gid {
    /// Creates a GID from its bytes, in network order.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: [u8; 16]) -> Self {
        Self { raw }
    }

    /// All 16 bytes, in network order.
    #[inline]
    #[must_use]
    pub const fn to_raw(self) -> [u8; 16] {
        // SAFETY: both fields are plain bytes without padding, so every value is valid for both.
        unsafe { self.raw }
    }
}

impl Default for ibv_gid {
    #[inline]
    fn default() -> Self {
        Self::from_raw([0; 16])
    }
}

impl PartialEq for ibv_gid {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.to_raw() == other.to_raw()
    }
}

impl Eq for ibv_gid {}

impl Hash for ibv_gid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_raw().hash(state);
    }
}

impl fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", core::net::Ipv6Addr::from(self.to_raw()))
    }
}
