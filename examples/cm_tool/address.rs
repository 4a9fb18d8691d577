//! From names to addresses, by `rdma_getaddrinfo`.

use anyhow::Context as _;
use cm::{Addr, AddrHints, AddrInfo};

/// Looks up where to listen: at `bind`, or at any address.
///
/// # Errors
/// There is no such address here.
pub fn to_listen(hints: &AddrHints, bind: Option<&str>, port: &str) -> anyhow::Result<Addr> {
    let found = hints.clone().passive().lookup(bind, Some(port))?;
    source(found).with_context(|| format!("{} is no address", bind.unwrap_or("*")))
}

/// Looks up where to connect to, and from where, if that is given.
///
/// # Errors
/// A name is known to nobody.
pub fn to_connect(
    hints: &AddrHints,
    bind: Option<&str>,
    server: &str,
    port: &str,
) -> anyhow::Result<(Option<Addr>, Addr)> {
    let mut hints = hints.clone();
    let mut from = None;
    if let Some(bind) = bind {
        let found = hints.clone().passive().lookup(Some(bind), None)?;
        let addr = source(found).with_context(|| format!("{bind} is no address"))?;
        hints = hints.source(addr);
        from = Some(addr);
    }
    let found = hints.lookup(Some(server), Some(port))?;
    let to = found.into_iter().find_map(|info| info.destination);
    let to = to.with_context(|| format!("{server} is no address"))?;
    Ok((from, to))
}

fn source(found: Vec<AddrInfo>) -> Option<Addr> {
    found.into_iter().find_map(|info| info.source)
}
