//! Attributes of devices and ports.
//!
//! | query | returns |
//! |---|---|
//! | [`Context::query_device`] | [`DeviceAttr`]: limits, [`DeviceCaps`], and optional features, such as [`OdpCaps`] |
//! | [`Context::query_port`] | [`PortAttr`]: [`PortState`], [`LinkLayer`], [`Mtu`], speed and width of the link |
//! | [`Context::query_gid_ex`] | [`GidEntry`]: an address of a port, and its [`GidType`] |
//! | [`Context::routes_to`] | [`Routes`]: the GID for sending to an address, and the reasons against the others |
//! | [`Context::query_pkey`] | [`Pkey`]: a partition of a port |
//!
//! # References
//! [ibv_query_device(3)](https://man7.org/linux/man-pages/man3/ibv_query_device.3.html),
//! [ibv_query_device_ex(3)](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html),
//! [ibv_query_port(3)](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html),
//! [ibv_query_gid(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid.3.html),
//! [ibv_query_pkey(3)](https://man7.org/linux/man-pages/man3/ibv_query_pkey.3.html)
//!
//! [`Context::query_device`]: crate::Context::query_device
//! [`Context::query_port`]: crate::Context::query_port
//! [`Context::query_gid_ex`]: crate::Context::query_gid_ex
//! [`Context::routes_to`]: crate::Context::routes_to
//! [`Context::query_pkey`]: crate::Context::query_pkey

mod caps;
mod clock;
mod device;
mod gid;
mod pkey;
mod port;
mod route;

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
pub use route::{NotTaken, Route, Routes};

pub use crate::mtu::Mtu;
