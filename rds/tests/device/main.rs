//! Sockets over a real device.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod sockets;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    process::Command,
    sync::Once,
};

/// The address of the guest's RDMA device.
fn local() -> Ipv4Addr {
    let address = std::env::var("A").expect("these tests run in the guest: `cargo xtask test`");
    address.parse().unwrap()
}

/// The same with any port.
fn any() -> SocketAddr {
    SocketAddr::new(local().into(), 0)
}

/// Another address of the same device, which is another host to RDS.
fn other() -> SocketAddr {
    static ADDED: Once = Once::new();
    let [a, b, c, _] = local().octets();
    let other = IpAddr::from([a, b, c, 77]);
    ADDED.call_once(|| {
        let script = format!(
            "device=$(ip -o -4 address show to {} | cut -d' ' -f2) && \
             ip address add {other}/24 dev $device && \
             for i in $(seq 100); do \
             grep -qis $(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x4d' {a} {b} {c}) \
             /sys/class/infiniband/*/ports/1/gids/* && exit 0; sleep 0.1; done; exit 1",
            local(),
        );
        let status = Command::new("sh").args(["-c", &script]).status().unwrap();
        assert!(status.success(), "{other} cannot be added");
    });
    SocketAddr::new(other, 0)
}
