//! Hosts of the device's own network that do not answer; for the device tests of `cm` and `rsocket`.

use std::{fs, net::SocketAddr, process::Command};

use crate::local;

/// The interface of the device.
const INTERFACE: &str = "/sys/class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0";

/// While this exists, the kernel asks who such a host is, three times, before it sends anything there.
/// Else all hosts of the network are taken to be there.
pub(crate) struct DeafNeighbours {
    interface: String,
}

impl DeafNeighbours {
    pub(crate) fn new() -> Self {
        let interface = fs::read_to_string(INTERFACE).unwrap().trim().to_owned();
        set_patience(&interface, 100);
        ip(&["link", "set", &interface, "arp", "on"]);
        Self { interface }
    }

    /// One of them.
    pub(crate) fn host(&self) -> SocketAddr {
        let SocketAddr::V4(own) = local() else {
            unreachable!("an address for IPv6");
        };
        let [a, b, c, _] = own.ip().octets();
        SocketAddr::from(([a, b, c, 199], 9))
    }
}

impl Drop for DeafNeighbours {
    fn drop(&mut self) {
        ip(&["link", "set", &self.interface, "arp", "off"]);
        set_patience(&self.interface, 1000);
    }
}

/// How long the kernel waits for an answer, in milliseconds.
fn set_patience(interface: &str, milliseconds: u32) {
    let file = format!("/proc/sys/net/ipv4/neigh/{interface}/retrans_time_ms");
    fs::write(file, milliseconds.to_string()).unwrap();
}

fn ip(arguments: &[&str]) {
    let ran = Command::new("ip").args(arguments).status().unwrap();
    assert!(ran.success(), "{arguments:?}");
}
