//! Packets of messages, as both kinds of connections receive them: which bytes they bring, and where these go.

use super::QueuePair;
use crate::{
    engine::{completion::Status, request::RecvRequest, resources::Context, transfer::total_len},
    wire::{Position, Reth},
};

impl QueuePair {
    /// Copies a packet of a message to its receive, after `received` bytes, and returns the number of bytes received then.
    pub(super) fn take_segment(
        &self,
        recv: &RecvRequest,
        received: u64,
        payload: &[u8],
        ctx: &mut Context<'_>,
    ) -> Result<u64, Status> {
        let end = received + payload.len() as u64;
        if end > total_len(&recv.sges) {
            return Err(Status::LocalLength);
        }
        if !ctx.scatter(self.init.pd, &recv.sges, received, payload) {
            return Err(Status::LocalProtection);
        }
        Ok(end)
    }
}

/// Number of bytes of a write that have come with a packet of `len` bytes; `None` if these exceed the write, or the last
/// packet does not complete it.
pub(super) fn write_end(reth: &Reth, received: u32, position: Position, len: usize) -> Option<u32> {
    let end = received.checked_add(u32::try_from(len).ok()?)?;
    let fits = end <= reth.len && (!position.ends() || end == reth.len);
    fits.then_some(end)
}
