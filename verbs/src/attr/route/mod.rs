//! The GIDs of a device that lead to an address, and the reasons against the other ones.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket},
    ptr,
};

use super::{
    gid::{GidEntry, GidType},
    port::PortState,
};
use crate::{
    addr::Gid,
    ah::AddressVector,
    context::Context,
    device::Device,
    error::{Result, cvt_neg},
};

/// The GIDs of a device, each with the answer to the question "does it lead to this address?".
///
/// `Display` is a table with a line for each GID.
///
/// # Examples
/// ```
/// # let _fabric = doctest::host();
/// let peer = "10.9.0.1".parse().unwrap();
/// let routes = verbs::devices()?.first()?.routes_to(peer)?;
/// match routes.best() {
///     Some(route) => println!("GID index {} of port {}", route.entry.gid_index, route.entry.port_num),
///     None => println!("{routes}"), // why none is suitable
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
/// prints, if the table has no suitable GID, for example
/// ```text
/// port index type    GID                                     interface taken
///    1     0 RoCE v1 fe80::5054:ff:fe12:3456                 eth1      no: no IP header; peers expect RoCE v2
///    1     1 RoCE v2 fe80::5054:ff:fe12:3456                 eth1      no: the address families differ
///    1     2 RoCE v2 ::ffff:192.168.3.7                      eth1      no: other subnet; the kernel sends to 10.9.0.1 from 172.16.0.2 by eth0
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    addr: IpAddr,
    routes: Vec<Route>,
    /// The index of the best route.
    best: Option<usize>,
}

/// A GID of a device, for or against a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Route {
    /// The entry of the port's table.
    pub entry: GidEntry,
    /// The network interface of the GID, if there is one.
    pub interface: Option<String>,
    /// Why packets from this GID do not reach the destination; `None` if they do.
    pub not_taken: Option<NotTaken>,
}

/// Why packets from a GID do not reach a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotTaken {
    /// An InfiniBand GID names a port, not an IP address: `cm` finds the peer's GID from the address.
    InfiniBand,
    /// The device is iWARP's, and uses the addresses of its interface without GIDs: use `cm`.
    Iwarp,
    /// RoCE v1 is Ethernet without an IP header. A peer with RoCE v2 drops such frames.
    RoceV1,
    /// The GID and the destination are IPv4 and IPv6, or the reverse.
    OtherFamily,
    /// The GID is a link-local address, and the destination is not; or the reverse.
    LinkLocal,
    /// The destination is link-local, and several interfaces have link-local GIDs: the link of the
    /// peer is unknown.
    WithoutScope,
    /// The port, or its interface, is down.
    LinkDown,
    /// The kernel has no route to the destination.
    NoRoute,
    /// The destination is not in the subnet of the GID, and the kernel's route has another source.
    OtherSubnet {
        /// The source address of the kernel's route.
        source: IpAddr,
        /// The interface with this address, if known.
        interface: Option<String>,
    },
}

/// One address of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InterfaceAddr {
    interface: String,
    addr: IpAddr,
    /// The length of the subnet's prefix, in bits.
    prefix_len: u32,
    running: bool,
}

/// Everything that the choice depends on, besides the destination.
struct Facts<'a> {
    table: &'a [GidEntry],
    /// The ports whose link is up.
    active: &'a [u32],
    iwarp: bool,
    interfaces: &'a [InterfaceAddr],
    /// The names of interfaces by index.
    names: &'a BTreeMap<u32, String>,
    /// The source address of the kernel's route to the destination; `None` without a route.
    source: Option<IpAddr>,
}

impl Facts<'_> {
    fn routes_to(&self, addr: IpAddr) -> Routes {
        let addr = addr.to_canonical();
        let route = |entry: &GidEntry| Route {
            entry: *entry,
            interface: self.interface_of(entry),
            not_taken: self.fault(entry, addr),
        };
        let routes: Vec<_> = self.table.iter().map(route).collect();
        let is_usable = |route: &Route| route.not_taken.is_none();
        let of_kernel = |route: &Route| Some(route.entry.gid.to_ip()) == self.source;
        let best = routes
            .iter()
            .position(|route| is_usable(route) && of_kernel(route))
            .or_else(|| routes.iter().position(is_usable));
        Routes { addr, routes, best }
    }

    fn interface_of(&self, entry: &GidEntry) -> Option<String> {
        self.names.get(&entry.ndev_ifindex?).cloned()
    }

    /// The first reason against a GID: first the kind of the GID, then its address, then the link
    /// and the route.
    fn fault(&self, entry: &GidEntry, addr: IpAddr) -> Option<NotTaken> {
        let local_ip = entry.gid.to_ip();
        if self.iwarp {
            return Some(NotTaken::Iwarp);
        }
        match entry.gid_type {
            GidType::ROCE_V2 => {}
            GidType::ROCE_V1 => return Some(NotTaken::RoceV1),
            _ => return Some(NotTaken::InfiniBand),
        }
        if local_ip.is_ipv4() != addr.is_ipv4() {
            return Some(NotTaken::OtherFamily);
        }
        if is_link_local(local_ip) != is_link_local(addr) {
            return Some(NotTaken::LinkLocal);
        }
        let local = self.interfaces.iter().find(|local| local.addr == local_ip);
        let up = local.is_none_or(|local| local.running);
        if !up || !self.active.contains(&entry.port_num) {
            return Some(NotTaken::LinkDown);
        }
        if is_link_local(addr) && local_ip.is_ipv6() {
            return self.has_ambiguous_links().then_some(NotTaken::WithoutScope);
        }
        // A GID whose address is on no interface is of a device without a network, as in tests.
        let local = local?;
        let Some(source) = self.source else {
            return Some(NotTaken::NoRoute);
        };
        if source == local_ip || in_subnet(addr, local) {
            return None;
        }
        let with_source = self.interfaces.iter().find(|local| local.addr == source);
        Some(NotTaken::OtherSubnet {
            source,
            interface: with_source.map(|local| local.interface.clone()),
        })
    }

    /// Whether the link-local GIDs are of several interfaces.
    fn has_ambiguous_links(&self) -> bool {
        let of_link = |entry: &&GidEntry| {
            entry.gid_type == GidType::ROCE_V2 && is_link_local(entry.gid.to_ip())
        };
        let mut links = self.table.iter().filter(of_link);
        let first = links.next().map(|entry| entry.ndev_ifindex);
        links.any(|entry| Some(entry.ndev_ifindex) != first)
    }
}

fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Whether an address is in the subnet of an interface's address.
fn in_subnet(addr: IpAddr, local: &InterfaceAddr) -> bool {
    let prefix = |addr: IpAddr| match addr {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let differing = prefix(addr) ^ prefix(local.addr);
    addr.is_ipv4() == local.addr.is_ipv4() && differing.leading_zeros() >= local.prefix_len
}

impl Routes {
    /// The destination.
    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    /// The GID to send from: with the source address of the kernel's route, or else the first
    /// suitable one; `None` without a suitable GID.
    pub fn best(&self) -> Option<&Route> {
        self.routes.get(self.best?)
    }

    /// All GIDs of the device, in the order of their ports and indices.
    pub fn iter(&self) -> std::slice::Iter<'_, Route> {
        self.routes.iter()
    }
}

impl<'a> IntoIterator for &'a Routes {
    type Item = &'a Route;
    type IntoIter = std::slice::Iter<'a, Route>;

    fn into_iter(self) -> Self::IntoIter {
        self.routes.iter()
    }
}

impl Route {
    /// The path from this GID to the GID of a peer, for queue pairs and address handles; `None` if
    /// the index or the port is beyond 255.
    ///
    /// On RoCE v2, the GID of a peer is its address: `Gid::from(addr)`.
    pub fn path_to(&self, peer: Gid) -> Option<AddressVector> {
        let port_num = self.entry.port_num.try_into().ok()?;
        let index = self.entry.gid_index.try_into().ok()?;
        Some(AddressVector::global(port_num, index, peer))
    }
}

impl fmt::Display for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("port index type    GID                                     interface taken")?;
        for (index, route) in self.routes.iter().enumerate() {
            let GidEntry {
                gid,
                gid_index,
                port_num,
                gid_type,
                ..
            } = route.entry;
            let kind = match gid_type {
                GidType::ROCE_V1 => "RoCE v1",
                GidType::ROCE_V2 => "RoCE v2",
                _ => "IB",
            };
            let interface = route.interface.as_deref().unwrap_or("-");
            write!(
                f,
                "\n{port_num:4} {gid_index:5} {kind:7} {:39} {interface:9} ",
                gid.to_string()
            )?;
            match &route.not_taken {
                None if Some(index) == self.best => f.write_str("yes, the best")?,
                None => f.write_str("yes")?,
                Some(reason) => write!(f, "no: {}", Against(reason, self.addr))?,
            }
        }
        Ok(())
    }
}

/// A reason in words, with the destination.
struct Against<'a>(&'a NotTaken, IpAddr);

impl fmt::Display for Against<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(reason, addr) = self;
        match reason {
            NotTaken::InfiniBand => {
                f.write_str("an InfiniBand GID is no IP address; resolve with cm")
            }
            NotTaken::Iwarp => f.write_str("iWARP has no GIDs; connect with cm"),
            NotTaken::RoceV1 => f.write_str("no IP header; peers expect RoCE v2"),
            NotTaken::OtherFamily => f.write_str("the address families differ"),
            NotTaken::LinkLocal => f.write_str("only one of the two addresses is link-local"),
            NotTaken::WithoutScope => write!(
                f,
                "{addr} is link-local, and may be on any of several links; choose by interface"
            ),
            NotTaken::LinkDown => f.write_str("the link is down"),
            NotTaken::NoRoute => write!(f, "the kernel has no route to {addr}"),
            NotTaken::OtherSubnet { source, interface } => {
                write!(f, "other subnet; the kernel sends to {addr} from {source}")?;
                match interface {
                    Some(interface) => write!(f, " by {interface}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Any port: no packet is sent.
const DISCARD_PORT: u16 = 9;

/// The source address of the kernel's route. Connecting a UDP socket selects a route, and sends
/// nothing.
fn source_to(addr: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match addr {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((addr, DISCARD_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The list of `getifaddrs`, freed when dropped.
struct RawInterfaces(*mut libc::ifaddrs);

impl Drop for RawInterfaces {
    fn drop(&mut self) {
        // SAFETY: the list came from `getifaddrs`, and is freed once, here.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

/// `getifaddrs(3)`—The IP addresses of this host's network interfaces.
fn interface_addrs() -> Result<Vec<InterfaceAddr>> {
    let mut list = RawInterfaces(ptr::null_mut());
    // SAFETY: the place is valid for the list.
    let ret = unsafe { libc::getifaddrs(&raw mut list.0) };
    cvt_neg("getifaddrs", ret)?;
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: `next` is null or an entry of the list, which is live until the end of this function.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        // SAFETY: the name is a terminated string of the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: null, or an address of the list, with the size of its family.
        let addr = unsafe { ip_of(entry.ifa_addr) };
        // SAFETY: null, or an address of the list, with the size of its family.
        let mask = unsafe { ip_of(entry.ifa_netmask) };
        let (Some(addr), Some(mask)) = (addr, mask) else {
            continue;
        };
        let ones = match mask {
            IpAddr::V4(v4) => v4.to_bits().count_ones(),
            IpAddr::V6(v6) => v6.to_bits().count_ones(),
        };
        found.push(InterfaceAddr {
            interface: name.to_string_lossy().into_owned(),
            addr,
            prefix_len: ones,
            running: entry.ifa_flags & libc::IFF_RUNNING.unsigned_abs() != 0,
        });
    }
    Ok(found)
}

/// The IP address in a socket address; `None` for null and for other families.
///
/// # Safety
/// - `addr` is null, or points to a socket address with the size of its family.
unsafe fn ip_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or a socket address (contract).
    let family = unsafe { addr.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the address has the size of its family (contract), and its alignment.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the address has the size of its family (contract).
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The name of a network interface.
fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the place has the size that the call needs.
    let named = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if named.is_null() {
        return None;
    }
    // SAFETY: the call has written a terminated string to the place.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}

impl Device {
    /// Finds the GID for sending to an address, and the reasons against the others: "which GID?".
    ///
    /// Opens the device; see [`Context::routes_to`].
    ///
    /// # Errors
    /// As for [`Device::open`] and [`Context::routes_to`].
    pub fn routes_to(&self, addr: IpAddr) -> Result<Routes> {
        self.open()?.routes_to(addr)
    }
}

impl Context {
    /// Finds the GID for sending to an address, and the reasons against the others: "which GID?".
    ///
    /// Compares the GID tables ([`query_gid_table`](Self::query_gid_table)) with the addresses of
    /// the network interfaces and with the kernel's route. Sends nothing, so the peer need not
    /// exist. Enters the kernel.
    ///
    /// A GID is suitable if it is a RoCE v2 GID of the family of `addr`, its link is up, and `addr`
    /// is in its subnet or routed from its address. The GIDs of a device without network interface,
    /// such as softnic's, have no subnet: each of the family is suitable.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// # Examples
    /// The path to a peer on RoCE v2, for queue pairs connected without `cm`:
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::Gid;
    ///
    /// let peer = "10.9.0.1".parse().unwrap();
    /// let routes = ctx.routes_to(peer)?;
    /// let route = routes.best().expect("a GID for the peer");
    /// let path = route.path_to(Gid::from(peer)).expect("a small index");
    /// # assert_eq!(u32::from(path.grh.unwrap().sgid_index), route.entry.gid_index);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_query_gid_table(3)](https://man7.org/linux/man-pages/man3/ibv_query_gid_table.3.html),
    /// [getifaddrs(3)](https://man7.org/linux/man-pages/man3/getifaddrs.3.html)
    pub fn routes_to(&self, addr: IpAddr) -> Result<Routes> {
        let table = self.query_gid_table()?;
        let mut active = Vec::new();
        for port in self.query_device()?.port_nums() {
            if self.query_port(port)?.state() == PortState::ACTIVE {
                active.push(u32::from(port));
            }
        }
        let indices = table.iter().filter_map(|entry| entry.ndev_ifindex);
        let names = indices.filter_map(|index| Some((index, interface_name(index)?)));
        let addr = addr.to_canonical();
        let facts = Facts {
            table: &table,
            active: &active,
            iwarp: self.is_iwarp(),
            interfaces: &interface_addrs()?,
            names: &names.collect(),
            source: source_to(addr),
        };
        Ok(facts.routes_to(addr))
    }
}

#[cfg(test)]
mod tests;
