//! Which address of this host to use where the user does not say.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, UdpSocket},
};

/// The address that packets to `host` come from.
///
/// # Errors
/// - Whatever `connect(2)` of a datagram socket fails with: there is no way to that host.
pub fn source_for(host: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match host {
        IpAddr::V4(_) => [0, 0, 0, 0].into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Nothing is sent.
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect((host, 1))?;
    Ok(socket.local_addr()?.ip())
}
