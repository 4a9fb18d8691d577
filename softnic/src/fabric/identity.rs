//! Seeds and GUIDs of hosts.

use std::net::IpAddr;

use crate::Seed;

/// First byte of the GUIDs: the bit for local administration.
pub(super) const LOCAL_GUID: u64 = 0x02 << 56;

/// The seed of a host with this address.
pub(super) fn of_addr(seed: &Seed, addr: IpAddr) -> Seed {
    let bytes = match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    };
    let (chunks, _) = bytes.as_chunks();
    let parts = chunks.iter().map(|part| u64::from_be_bytes(*part));
    parts.fold(seed.clone(), |seed, part| seed.part(part))
}

/// The GUID of the device at an address: the same in each process there, as the programs of a host have one device.
pub(super) fn guid_of(addr: IpAddr) -> u64 {
    LOCAL_GUID | of_addr(&Seed::from(0), addr).number(0) >> 8
}
