//! Path MTUs.

use std::fmt;

use ibverbs_sys::ibv_mtu;

/// `ibv_mtu`—The maximum payload of a packet: 256, 512, 1024, 2048 or 4096 bytes.
///
/// ```
/// use verbs::attr::Mtu;
/// assert_eq!(Mtu::from_bytes(1024), Some(Mtu::B1024));
/// assert_eq!(Mtu::from_bytes(1500), None);
/// assert_eq!(Mtu::B4096.bytes(), Some(4096));
/// ```
#[doc(alias = "ibv_mtu")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Mtu(
    /// C's number for the value.
    pub u32,
);

impl Mtu {
    /// 256 bytes.
    #[doc(alias = "IBV_MTU_256")]
    pub const B256: Self = Self(ibv_mtu::IBV_MTU_256.0);
    /// 512 bytes.
    #[doc(alias = "IBV_MTU_512")]
    pub const B512: Self = Self(ibv_mtu::IBV_MTU_512.0);
    /// 1024 bytes.
    #[doc(alias = "IBV_MTU_1024")]
    pub const B1024: Self = Self(ibv_mtu::IBV_MTU_1024.0);
    /// 2048 bytes.
    #[doc(alias = "IBV_MTU_2048")]
    pub const B2048: Self = Self(ibv_mtu::IBV_MTU_2048.0);
    /// 4096 bytes.
    #[doc(alias = "IBV_MTU_4096")]
    pub const B4096: Self = Self(ibv_mtu::IBV_MTU_4096.0);

    /// The number of bytes, if the value is known to this crate.
    pub fn bytes(self) -> Option<u32> {
        (Self::B256..=Self::B4096)
            .contains(&self)
            .then(|| 128 << self.0)
    }

    /// The MTU of exactly `bytes` bytes.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        [
            Self::B256,
            Self::B512,
            Self::B1024,
            Self::B2048,
            Self::B4096,
        ]
        .into_iter()
        .find(|mtu| mtu.bytes() == Some(bytes))
    }
}

impl From<Mtu> for ibv_mtu {
    fn from(mtu: Mtu) -> Self {
        Self(mtu.0)
    }
}

impl fmt::Debug for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => write!(f, "Mtu({bytes} bytes)"),
            None => write!(f, "Mtu(value {})", self.0),
        }
    }
}
