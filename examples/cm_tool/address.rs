//! Address lookup by `rdma_getaddrinfo`.

use anyhow::Context as _;
use cm::{Addr, AddrHints, AddrInfo};

/// Looks up the address to listen on: `bind`, or the wildcard address.
///
/// # Errors
/// The address does not exist on this host.
pub fn to_listen(hints: &AddrHints, bind: Option<&str>, port: &str) -> anyhow::Result<Addr> {
    let found = hints.clone().passive().lookup(bind, Some(port))?;
    source(found).with_context(|| format!("{} is no address", bind.unwrap_or("*")))
}

/// Addresses of an active connection attempt.
#[derive(Clone, Debug)]
pub struct Target {
    /// The local address, if given.
    pub from: Option<Addr>,
    /// The server.
    pub to: Addr,
    /// Header required at the start of the request's private data.
    pub connect: Vec<u8>,
}

/// Looks up the server's address, and the local address if one is given.
///
/// # Errors
/// A name cannot be resolved.
pub fn to_connect(
    hints: &AddrHints,
    bind: Option<&str>,
    server: &str,
    port: &str,
) -> anyhow::Result<Target> {
    let mut hints = hints.clone();
    let mut from = None;
    if let Some(bind) = bind {
        let found = hints.clone().passive().lookup(Some(bind), None)?;
        let addr = source(found).with_context(|| format!("{bind} is no address"))?;
        hints = hints.source(addr);
        from = Some(addr);
    }
    let found = hints.lookup(Some(server), Some(port))?;
    let to = found
        .into_iter()
        .find_map(|info| Some((info.destination?, info.connect)));
    let (to, connect) = to.with_context(|| format!("{server} is no address"))?;
    Ok(Target { from, to, connect })
}

fn source(found: Vec<AddrInfo>) -> Option<Addr> {
    found.into_iter().find_map(|info| info.source)
}
