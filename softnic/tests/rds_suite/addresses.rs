//! Addresses of the host, present from the start.

use std::net::IpAddr;

/// All addresses: the two named by environment variables, and the addresses added by tests.
pub(crate) const ALL: [&str; 5] = [
    "10.9.0.1",
    "fd00:9::1",
    "10.9.0.77",
    "10.9.0.78",
    "fd00:9::77",
];

/// Replaces the addition of an address to a guest's interface: checks that the host has the address.
pub(crate) fn add(ip: IpAddr, _prefix: u8) {
    let is_there = ALL.iter().any(|addr| addr.parse() == Ok(ip));
    assert!(is_there, "{ip} is not one of the host's addresses");
}
