//! From names to addresses.

use std::net::{SocketAddr, ToSocketAddrs};

use anyhow::Context as _;

/// The first address of a host.
///
/// # Errors
/// Nobody knows it, or it has none.
pub fn resolve(host: &str, port: u16) -> anyhow::Result<SocketAddr> {
    (host, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot resolve {host}"))?
        .next()
        .with_context(|| format!("{host} has no address"))
}
