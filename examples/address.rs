//! Address lookup.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::Context as _;

/// Returns the first address of a host.
///
/// # Errors
/// The host is unknown or has no address.
pub fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    (host, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {host}"))?
        .next()
        .with_context(|| format!("{host} has no address"))
}
