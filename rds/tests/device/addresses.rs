//! Addresses that are added to the device.

use std::{net::IpAddr, process::Command};

use crate::{machine::require_guest, support::local};

/// Adds an address to the device.
pub(crate) fn add(ip: IpAddr, prefix: u8) {
    require_guest(
        "adds an address to the device's interface; variables A2 and A3 name addresses that it has",
    );
    let gid = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let gid: Vec<String> = gid.segments().map(|part| format!("{part:04x}")).into();
    let script = format!(
        "device=$(ip -o -4 address show to {} | cut -d' ' -f2) && \
         ip address add {ip}/{prefix} dev $device && \
         for i in $(seq 100); do \
         grep -qis {} /sys/class/infiniband/*/ports/1/gids/* && exit 0; sleep 0.1; done; exit 1",
        local(),
        gid.join(":"),
    );
    let status = Command::new("sh").args(["-c", &script]).status().unwrap();
    assert!(status.success(), "{ip} cannot be added");
}
