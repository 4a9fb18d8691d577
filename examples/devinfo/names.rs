//! Names used by `ibv_devinfo` for enumerations.

use verbs::{
    attr::{
        AtomicCap, DeviceCaps, GidType, LinkLayer, LinkSpeed, LinkWidth, Mtu, PhysState, PortState,
    },
    device::TransportType,
};

/// Name of a transport family.
pub fn transport(transport: TransportType) -> &'static str {
    match transport {
        TransportType::IB => "InfiniBand",
        TransportType::IWARP => "iWARP",
        TransportType::USNIC => "usNIC",
        TransportType::USNIC_UDP => "usNIC UDP",
        TransportType::UNSPECIFIED => "unspecified",
        _ => "invalid transport",
    }
}

/// Name of an atomicity guarantee.
pub fn atomic_cap(cap: AtomicCap) -> &'static str {
    match cap {
        AtomicCap::NONE => "ATOMIC_NONE",
        AtomicCap::HCA => "ATOMIC_HCA",
        AtomicCap::GLOB => "ATOMIC_GLOB",
        _ => "invalid atomic capability",
    }
}

/// Name of a port's logical state.
pub fn port_state(state: PortState) -> &'static str {
    match state {
        PortState::DOWN => "PORT_DOWN",
        PortState::INIT => "PORT_INIT",
        PortState::ARMED => "PORT_ARMED",
        PortState::ACTIVE => "PORT_ACTIVE",
        _ => "invalid state",
    }
}

/// Name of a port's physical state, spelled as in the C program.
pub fn phys_state(state: PhysState) -> &'static str {
    match state {
        PhysState::SLEEP => "SLEEP",
        PhysState::POLLING => "POLLING",
        PhysState::DISABLED => "DISABLED",
        PhysState::PORT_CONFIGURATION_TRAINING => "PORT_CONFIGURATION TRAINNING",
        PhysState::LINK_UP => "LINK_UP",
        PhysState::LINK_ERROR_RECOVERY => "LINK_ERROR_RECOVERY",
        PhysState::PHY_TEST => "PHY TEST",
        _ => "invalid physical state",
    }
}

/// Path MTU, in bytes.
pub fn mtu(mtu: Mtu) -> String {
    match mtu.bytes() {
        Some(bytes) => bytes.to_string(),
        None => "invalid MTU".to_owned(),
    }
}

/// Name of a link layer.
pub fn link_layer(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::UNSPECIFIED => "Unspecified",
        LinkLayer::INFINIBAND => "InfiniBand",
        LinkLayer::ETHERNET => "Ethernet",
        _ => "Unknown",
    }
}

/// Number of virtual lanes.
pub fn max_vl_num(code: u8) -> &'static str {
    match code {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
    }
}

/// Number of lanes of a link.
pub fn width(width: LinkWidth) -> String {
    match width.lanes() {
        Some(lanes) => lanes.to_string(),
        None => "invalid width".to_owned(),
    }
}

/// Speed of a lane, rounded as in the C program.
pub fn speed(speed: LinkSpeed) -> &'static str {
    match speed {
        LinkSpeed::SDR => "2.5 Gbps",
        LinkSpeed::DDR => "5.0 Gbps",
        LinkSpeed::QDR | LinkSpeed::FDR10 => "10.0 Gbps",
        LinkSpeed::FDR => "14.0 Gbps",
        LinkSpeed::EDR => "25.0 Gbps",
        LinkSpeed::HDR => "50.0 Gbps",
        LinkSpeed::NDR => "100.0 Gbps",
        LinkSpeed::XDR => "200.0 Gbps",
        _ => "invalid speed",
    }
}

/// Name of the packet format used with a GID on Ethernet.
pub fn gid_type(gid_type: GidType) -> &'static str {
    match gid_type {
        GidType::IB | GidType::ROCE_V1 => "RoCE v1",
        GidType::ROCE_V2 => "RoCE v2",
        _ => "Invalid gid type",
    }
}

/// Splits the 32-bit capability flags of a device into named flags and unnamed bits.
pub fn device_caps(caps: DeviceCaps) -> (Vec<&'static str>, u64) {
    let low = DeviceCaps::from_bits_retain(caps.bits() & u64::from(u32::MAX));
    let names = low.iter_names().map(|(name, _)| name).collect();
    (names, low.difference(DeviceCaps::all()).bits())
}
