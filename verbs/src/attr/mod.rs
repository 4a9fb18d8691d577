//! Attributes of devices and ports.

mod caps;
mod clock;
mod device;
mod gid;
mod pkey;
mod port;

pub use caps::{
    AtomicCap, CqModerationCaps, DeviceCaps, OdpCaps, OdpGeneralCaps, OdpTransportCaps,
    PacketPacingCaps, PciAtomicCaps, PciAtomicSizes, QpTypes, RawPacketCaps, RssCaps, RxHashFields,
    RxHashFunctions, TagMatchingCaps, TagMatchingFlags, TsoCaps,
};
pub use device::DeviceAttr;
pub use gid::{GidEntry, GidType};
pub use pkey::Pkey;
pub use port::{
    LinkLayer, LinkSpeed, LinkWidth, PhysState, PortAttr, PortCaps, PortCaps2, PortState,
};
