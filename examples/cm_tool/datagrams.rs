//! What a queue pair for datagrams needs.

use anyhow::{Context as _, ensure};
use verbs::{CompletionQueue, Context, ProtectionDomain};

/// A protection domain, and a queue for the completions of `count` messages of `size` bytes each way.
///
/// # Errors
/// They do not fit into the datagrams of the port, which is said in the words of `tool`'s original; or
/// the device cannot do that.
pub fn prepare(
    tool: &str,
    (ctx, port): (&Context, u8),
    count: u32,
    size: u32,
) -> anyhow::Result<(ProtectionDomain, CompletionQueue)> {
    let mtu = ctx.query_port(port)?.active_mtu().bytes();
    let mtu = mtu.context("unknown port MTU")?;
    ensure!(
        count == 0 || size <= mtu,
        "{tool}: message_size {size} is larger than active mtu {mtu}"
    );
    let cqe = count.max(1).saturating_mul(2);
    Ok((ctx.alloc_pd()?, ctx.cq_builder(cqe).waitable().create()?))
}
