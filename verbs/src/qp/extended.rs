//! The device's table of functions for building requests.

use std::{io, ptr::NonNull};

use ibverbs_sys as ffi;

use super::{refusal, transport::Transport};
use crate::{
    error::{Error, Result},
    op::{Deferred, SendOps},
    work::SgeList,
};

/// The extended interface of a queue pair.
#[derive(Debug)]
pub(super) struct Extended {
    pub(super) table: WrTable,
    /// Memory for the requests of a batch, empty between batches; `None` before the first one, and during one. In a box,
    /// so that a batch is moved cheaply.
    pub(super) deferred: Option<Box<Deferred>>,
}

/// The functions, and their operations.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrTable {
    // INVARIANT: the queue pair itself, whose table has the functions of `ops`, and those needed by
    // every batch.
    pub(super) qp: NonNull<ffi::ibv_qp_ex>,
    pub(super) ops: SendOps,
    /// Whether all elements of a list must have the same length; see
    /// [`quirk::mangles_lists`](crate::quirk::mangles_lists).
    mangles_lists: bool,
}

// SAFETY: only the owner of the send queue uses the queue pair, and the owner may change threads.
unsafe impl Send for WrTable {}
// SAFETY: see `Send`. Nothing is done through a shared table.
unsafe impl Sync for WrTable {}

impl Extended {
    /// The interface of a queue pair just made for `ops`.
    ///
    /// # Safety
    /// - `qp` exists, and is of type `T`.
    pub(super) unsafe fn of<T: Transport>(
        qp: NonNull<ffi::ibv_qp>,
        ops: SendOps,
        mangles_lists: bool,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        let extended = unsafe { ffi::ibv_qp_to_qp_ex(qp.as_ptr()) };
        let missing = match NonNull::new(extended) {
            // SAFETY: the same queue pair, and the device has accepted `ops`.
            Some(qp) => match unsafe { missing::<T>(qp, ops) } {
                None => {
                    let table = WrTable {
                        qp,
                        ops,
                        mangles_lists,
                    };
                    return Ok(Self {
                        table,
                        deferred: None,
                    });
                }
                Some(missing) => missing,
            },
            None => "ibv_wr_start",
        };
        let reason = format!("the device agreed to `{missing}`, but its table lacks the function");
        let kind = io::ErrorKind::Unsupported;
        Err(Error::refused("ibv_qp_to_qp_ex", kind, reason))
    }
}

impl WrTable {
    /// Why a request cannot be built.
    #[inline]
    pub(super) fn refusal(&self, op: SendOps, sges: &SgeList, inline: bool) -> Option<Error> {
        if !self.ops.contains(op) {
            Some(refusal::operation(op))
        } else if sges.len() > 1 && self.mangles_lists && !inline && !equally_long(sges) {
            Some(refusal::lengths(op.call()))
        } else {
            None
        }
    }
}

fn equally_long(sges: &SgeList) -> bool {
    let mut pairs = sges.elements().windows(2);
    pairs.all(|pair| pair[0].length == pair[1].length)
}

/// The name of a function missing in the table, if any.
///
/// # Safety
/// - `qp` exists, and was made for `ops`.
unsafe fn missing<T: Transport>(qp: NonNull<ffi::ibv_qp_ex>, ops: SendOps) -> Option<&'static str> {
    let datagram = T::RULES == ffi::ibv_qp_type::IBV_QPT_UD;
    let xrc = T::RAW == ffi::ibv_qp_type::IBV_QPT_XRC_SEND;
    let requested = |op| ops.contains(op);
    let raw = qp.as_ptr();
    // SAFETY: the queue pair was made for the operation.
    let has_atomic_write =
        requested(SendOps::ATOMIC_WRITE) && unsafe { ffi::has_wr_atomic_write(raw) };
    // SAFETY: see above.
    let has_flush = requested(SendOps::FLUSH) && unsafe { ffi::has_wr_flush(raw) };
    // SAFETY: the queue pair exists, and is not in use yet.
    let qp = unsafe { qp.as_ref() };
    let parts = [
        ("ibv_wr_start", true, qp.wr_start.is_some()),
        ("ibv_wr_complete", true, qp.wr_complete.is_some()),
        ("ibv_wr_set_sge", true, qp.wr_set_sge.is_some()),
        ("ibv_wr_set_sge_list", true, qp.wr_set_sge_list.is_some()),
        (
            "ibv_wr_set_inline_data",
            true,
            qp.wr_set_inline_data.is_some(),
        ),
        ("ibv_wr_set_ud_addr", datagram, qp.wr_set_ud_addr.is_some()),
        ("ibv_wr_set_xrc_srqn", xrc, qp.wr_set_xrc_srqn.is_some()),
    ];
    let operations = [
        (SendOps::RDMA_WRITE, qp.wr_rdma_write.is_some()),
        (SendOps::RDMA_WRITE_WITH_IMM, qp.wr_rdma_write_imm.is_some()),
        (SendOps::SEND, qp.wr_send.is_some()),
        (SendOps::SEND_WITH_IMM, qp.wr_send_imm.is_some()),
        (SendOps::RDMA_READ, qp.wr_rdma_read.is_some()),
        (SendOps::ATOMIC_CMP_AND_SWP, qp.wr_atomic_cmp_swp.is_some()),
        (
            SendOps::ATOMIC_FETCH_AND_ADD,
            qp.wr_atomic_fetch_add.is_some(),
        ),
        (SendOps::LOCAL_INV, qp.wr_local_inv.is_some()),
        (SendOps::BIND_MW, qp.wr_bind_mw.is_some()),
        (SendOps::SEND_WITH_INV, qp.wr_send_inv.is_some()),
        (SendOps::TSO, qp.wr_send_tso.is_some()),
        (SendOps::FLUSH, has_flush),
        (SendOps::ATOMIC_WRITE, has_atomic_write),
    ];
    let operations = operations.map(|(op, has)| (op.call(), requested(op), has));
    let mut all = parts.into_iter().chain(operations);
    all.find_map(|(call, requested, has)| (requested && !has).then_some(call))
}
