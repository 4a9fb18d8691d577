//! Unresponsive hosts of the device's network, for the device tests of `cm` and `rsocket`.

use std::{fs, net::SocketAddr, process::Command};

use crate::{local, machine::require_guest};

/// The interface of the device.
const INTERFACE: &str = "/sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0";

/// Makes the kernel send ARP requests, three for each unknown host, until dropped. Without ARP, every host of
/// the network counts as reachable.
pub(crate) struct UnresponsiveHosts {
    interface: String,
}

impl UnresponsiveHosts {
    pub(crate) fn new() -> Self {
        require_guest("changes the ARP settings of the device's interface");
        let interface = fs::read_to_string(INTERFACE).unwrap().trim().to_owned();
        set_retransmission_ms(&interface, 100);
        ip(&["link", "set", &interface, "arp", "on"]);
        Self { interface }
    }

    /// Returns the address of an unresponsive host.
    pub(crate) fn host(&self) -> SocketAddr {
        let SocketAddr::V4(local_addr) = local() else {
            unreachable!("an address for IPv6");
        };
        let [a, b, c, _] = local_addr.ip().octets();
        SocketAddr::from(([a, b, c, 199], 9))
    }
}

impl Drop for UnresponsiveHosts {
    fn drop(&mut self) {
        ip(&["link", "set", &self.interface, "arp", "off"]);
        set_retransmission_ms(&self.interface, 1000);
    }
}

/// How long the kernel waits for an answer, in milliseconds.
fn set_retransmission_ms(interface: &str, milliseconds: u32) {
    let file = format!("/proc/sys/net/ipv4/neigh/{interface}/retrans_time_ms");
    fs::write(file, milliseconds.to_string()).unwrap();
}

fn ip(arguments: &[&str]) {
    let ran = Command::new("ip").args(arguments).status().unwrap();
    assert!(ran.success(), "{arguments:?}");
}
