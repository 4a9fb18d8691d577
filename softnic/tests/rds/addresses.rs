//! The addresses of the host, which it has from the start.

use std::net::IpAddr;

/// All of them: the two that the tests know by environment variables, and those that they add.
pub(crate) const ALL: [&str; 5] = [
    "10.9.0.1",
    "fd00:9::1",
    "10.9.0.77",
    "10.9.0.78",
    "fd00:9::77",
];

/// Stands for adding an address to a guest's interface.
pub(crate) fn add(ip: IpAddr, _prefix: u8) {
    let is_there = ALL.iter().any(|own| own.parse() == Ok(ip));
    assert!(is_there, "{ip} is not one of the host's addresses");
}
