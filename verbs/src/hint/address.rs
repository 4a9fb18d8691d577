//! Hints for addresses that do not lead to an RDMA device.

use std::net::IpAddr;

/// The addresses that a call of the connection manager was given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addresses {
    /// Of this side, where the caller has chosen it.
    pub source: Option<IpAddr>,
    /// Of the peer.
    pub destination: Option<IpAddr>,
}

impl Addresses {
    /// The fault in the addresses of a call that has failed with `errno`; `None` if the addresses
    /// are not at fault.
    ///
    /// The kernel's error names no address. The kernel checks the source first, and fails the call
    /// at once if the source is of no device of this host. `at_once` is whether the call itself has
    /// failed, instead of the resolution that it began.
    pub fn hint(&self, errno: i32, at_once: bool) -> Option<String> {
        let Self {
            source,
            destination,
        } = *self;
        let of_device = matches!(errno, libc::ENODEV | libc::EADDRNOTAVAIL);
        if let Some(source) = source.filter(|source| !source.is_unspecified()) {
            match destination {
                Some(destination) if source.is_ipv4() != destination.is_ipv4() => {
                    return Some(format!(
                        "the source address {source} and the destination {destination} are of different families"
                    ));
                }
                _ if of_device && is_loopback(source) => return Some(loopback(source)),
                _ if of_device && at_once => {
                    return Some(format!(
                        "the source address {source} is of no RDMA device of this machine; `rdma link` lists the \
                         devices, and `ip addr` the addresses of their interfaces"
                    ));
                }
                _ => {}
            }
        }
        let destination = destination?;
        if of_device && is_loopback(destination) {
            return Some(loopback(destination));
        }
        match errno {
            libc::ENODEV | libc::EADDRNOTAVAIL => Some(format!(
                "the route to {destination} is by an interface without RDMA device; `ip route get {destination}` \
                 names the interface, and `rdma link` lists the devices"
            )),
            libc::ENETUNREACH | libc::EHOSTUNREACH => Some(format!(
                "this host has no route to {destination}, or {destination} does not answer ARP; `ip route get \
                 {destination}` and `ip neigh` say which"
            )),
            libc::ETIMEDOUT => Some(format!(
                "no host has answered for {destination}; `ip neigh` shows whether its hardware address is known"
            )),
            _ => None,
        }
    }
}

fn is_loopback(addr: IpAddr) -> bool {
    addr.to_canonical().is_loopback()
}

fn loopback(addr: IpAddr) -> String {
    format!(
        "no RDMA device leads to {addr}, the loopback interface; within this machine, too, use the address of an RDMA \
         device's interface (`rdma link` and `ip addr` list them)"
    )
}
