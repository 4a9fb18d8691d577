//! Default source address.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, UdpSocket},
};

/// The source address of packets to `host`.
///
/// # Errors
/// - As for `connect(2)` of a datagram socket, without a route to the host.
pub fn source_for(host: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match host {
        IpAddr::V4(_) => [0, 0, 0, 0].into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Sends nothing.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((host, 1))?;
    Ok(socket.local_addr()?.ip())
}
