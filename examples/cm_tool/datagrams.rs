//! Resources of a datagram queue pair.

use anyhow::{Context as _, ensure};
use verbs::{CompletionQueue, Context, ProtectionDomain};

/// Creates a protection domain, and a completion queue for `count` messages of `size` bytes in each
/// direction.
///
/// # Errors
/// The size is above the port's MTU (reported in the words of `tool`'s original), or the device is at a
/// limit.
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
