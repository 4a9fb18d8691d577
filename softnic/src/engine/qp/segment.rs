//! Packets of messages on both kinds of connections: bounds and destination of the payload.

use super::QueuePair;
use crate::{
    engine::{
        completion::Status, ids::PdId, packet::Content, request::RecvRequest, resources::Context,
        transfer::total_len,
    },
    wire::{Position, Reth},
};

/// Copies a packet's payload into the receive at offset `received`, and returns the new number of received bytes.
pub(super) fn take_segment(
    qp: &QueuePair,
    (pd, recv): (PdId, &RecvRequest),
    received: u64,
    payload: Content<'_>,
    ctx: &mut Context<'_>,
) -> Result<u64, Status> {
    let end = received + payload.len() as u64;
    if end > total_len(&recv.sges) {
        return Err(Status::LocalLength);
    }
    if !qp.scatter((pd, &recv.sges), received, payload, ctx) {
        return Err(Status::LocalProtection);
    }
    Ok(end)
}

/// Number of received bytes of a write after a packet of `len` bytes; `None` if the write is exceeded, or not complete
/// with the last packet.
pub(super) fn write_end(reth: &Reth, received: u32, position: Position, len: usize) -> Option<u32> {
    let end = received.checked_add(u32::try_from(len).ok()?)?;
    let fits = end <= reth.len && (!position.ends() || end == reth.len);
    fits.then_some(end)
}
