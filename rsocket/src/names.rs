//! Addresses in the form of the socket's address family.

use std::{
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
};

/// Maps an IPv4 address to IPv6, for sockets of the IPv6 family.
pub(crate) fn mapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// Returns the IPv4 address of a mapped one. Neither devices nor their connection manager know mapped addresses.
pub(crate) fn unmapped(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// Adds the missing scope to a link-local address: the scope of `near`, an address on the same link, or else
/// of the interface with the address. The connection manager omits the scope in some events.
pub(crate) fn scoped(addr: SocketAddr, near: Option<SocketAddr>) -> SocketAddr {
    let SocketAddr::V6(v6) = addr else {
        return addr;
    };
    if v6.scope_id() != 0 || !v6.ip().is_unicast_link_local() {
        return addr;
    }
    let of_near = match near {
        Some(SocketAddr::V6(near)) => near.scope_id(),
        _ => 0,
    };
    let scope = match of_near {
        0 => interface_of(*v6.ip()).unwrap_or(0),
        scope => scope,
    };
    SocketAddrV6::new(*v6.ip(), v6.port(), v6.flowinfo(), scope).into()
}

/// Returns the index of the interface with an address.
fn interface_of(ip: Ipv6Addr) -> Option<u32> {
    find_interface(&fs::read_to_string("/proc/net/if_inet6").ok()?, ip)
}

/// Searches a table in the format of `/proc/net/if_inet6`: address and index in hexadecimal, then other
/// fields.
fn find_interface(table: &str, ip: Ipv6Addr) -> Option<u32> {
    table.lines().find_map(|row| {
        let mut fields = row.split_whitespace();
        let bits = u128::from_str_radix(fields.next()?, 16).ok()?;
        let index = u32::from_str_radix(fields.next()?, 16).ok()?;
        (Ipv6Addr::from_bits(bits) == ip).then_some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ipv4_address_of_ipv6_socket_is_mapped() {
        assert_eq!(mapped(addr("10.9.0.1:7")), addr("[::ffff:10.9.0.1]:7"));
        assert_eq!(mapped(addr("[fd00::1]:7")), addr("[fd00::1]:7"));
        assert_eq!(unmapped(addr("[::ffff:10.9.0.1]:7")), addr("10.9.0.1:7"));
        for same in ["10.9.0.1:7", "[fe80::1%3]:7", "[::1]:7", "[::]:7"] {
            assert_eq!(unmapped(addr(same)), addr(same));
        }
    }

    #[test]
    fn link_local_address_gets_the_scope_of_its_peer() {
        let near = Some(addr("[fe80::2%3]:1"));
        assert_eq!(scoped(addr("[fe80::1]:7"), near), addr("[fe80::1%3]:7"));
        // Other addresses have a scope or need none.
        for other in ["[fe80::1%9]:7", "[fd00::1]:7", "10.9.0.1:7"] {
            assert_eq!(scoped(addr(other), near), addr(other));
        }
    }

    #[test]
    fn find_interface_matches_the_whole_address() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe8000000000000050540afffe090001 0c 40 20 80     eth0\n";
        let find = |ip: &str| find_interface(table, ip.parse().unwrap());
        assert_eq!(find("fe80::5054:aff:fe09:1"), Some(12));
        assert_eq!(find("fe80::1"), None);
        assert_eq!(find_interface("?\n1\n", Ipv6Addr::LOCALHOST), None);
    }
}
