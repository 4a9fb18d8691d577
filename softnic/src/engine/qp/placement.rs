//! The responder of flushes and atomic writes.
//!
//! The engine's memory is the host's: a write is visible when executed, so a flush in its turn has nothing left to do
//! but the checks. Both requests are answered by an empty read response, and use the resources of reads and atomics.
//!
//! Source: InfiniBand Architecture Specification, volume 1, annex A19 (memory placement extensions).

use super::{
    QueuePair,
    responder::{FORBIDDEN, INVALID, Refusal, Reply},
};
use crate::{
    engine::{
        access::Access, ids::PdId, memory::Atomic, packet::Packet, psn::Psn, request::Placement,
        resources::Context,
    },
    wire::Reth,
};

/// Selectivity of a flush of a range, and of a whole region.
const RANGE: u8 = 0;
const WHOLE_REGION: u8 = 1;

impl QueuePair {
    /// Memory of a request that is granted by the queue pair and may begin now.
    fn requested(&self, packet: &Packet<'_>, access: Access) -> Result<Reth, Refusal> {
        let granted = self.attributes.access.contains(access);
        let has_resources = self.attributes.max_dest_rd_atomic > 0;
        let reth = packet
            .frame
            .extensions
            .reth
            .filter(|_| granted && has_resources);
        reth.filter(|_| self.responder.incoming.is_none())
            .ok_or(INVALID)
    }

    /// Processes a flush.
    pub(super) fn receive_flush(
        &mut self,
        packet: &Packet<'_>,
        psn: Psn,
        pd: PdId,
        ctx: &Context<'_>,
    ) -> Result<(), Refusal> {
        let feth = packet.frame.extensions.feth.ok_or(INVALID)?;
        let access = Placement(feth.placement).rights().ok_or(INVALID)?;
        let reth = self.requested(packet, access)?;
        let remote_access = self.remote_access(pd, &reth, access);
        let keys = &ctx.resources.keys;
        let permitted = match feth.selectivity {
            RANGE => keys.remote(remote_access).is_some(),
            WHOLE_REGION => keys.permits(remote_access),
            _ => return Err(INVALID),
        };
        if !packet.payload.is_empty() {
            return Err(INVALID);
        }
        if !permitted {
            return Err(FORBIDDEN);
        }
        self.reply_once(psn, Reply::Empty(psn));
        Ok(())
    }

    /// Processes an atomic write.
    pub(super) fn receive_atomic_write(
        &mut self,
        packet: &Packet<'_>,
        psn: Psn,
        pd: PdId,
        ctx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let reth = self.requested(packet, Access::REMOTE_WRITE)?;
        let value: [u8; 8] = packet.payload.array(ctx.memory).ok_or(INVALID)?;
        if reth.len != 8 || !reth.addr.is_multiple_of(8) {
            return Err(INVALID);
        }
        let host = self.remote(pd, &reth, (0, 8), Access::REMOTE_WRITE, ctx);
        // The region's addresses may be aligned differently from the host's.
        let host = host
            .filter(|host| host.addr.is_multiple_of(8))
            .ok_or(FORBIDDEN)?;
        let value = u64::from_ne_bytes(value);
        let _before = ctx.memory.atomic(host.addr, Atomic::Write(value));
        self.reply_once(psn, Reply::Empty(psn));
        Ok(())
    }
}
