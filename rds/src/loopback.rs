//! A queue pair connected to itself, for atomic operations of the device on local memory.

use std::{net::IpAddr, time::Duration};

use rustix::io::Errno;
use verbs::{
    Buf, Completed, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, RemoteAccess,
    RemoteToken, Rtr, Rts, WcStatus,
    ah::AddressVector,
    attr::{GidType, PortState},
    cq::WcError,
    op,
    qp::{AckTimeout, Attributes, Psn},
};

use crate::proto::connection::AtomicOp;

/// Size of the operand of an atomic operation, in bytes.
const OPERAND_SIZE: usize = 8;

/// Completion queue entries: one for the send, and one for the mandatory but unused receive.
const CQ_ENTRIES: u32 = 2;

/// Local ACK timeout, code 17: 0.5 s. A loopback packet is not lost.
const ACK_TIMEOUT: u8 = 17;

/// How long to wait for a completion. The device's own retries end earlier.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);

/// A queue pair connected to itself.
#[derive(Debug)]
pub(crate) struct Loopback {
    qp: QueuePair<verbs::Rc, Rts, Buf, Buf>,
    cq: CompletionQueue,
}

/// Why an atomic operation on local memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicError {
    /// The device rejected the request, or completed it with this status.
    Failed(WcStatus),
    /// No completion arrived. The operation may have been performed.
    Unknown,
}

impl Loopback {
    /// Creates and connects the queue pair, over the path from `ip` to itself.
    pub(crate) fn new(pd: &ProtectionDomain, ip: IpAddr) -> verbs::Result<Self> {
        let path = path_to_self(pd.context(), ip)?;
        let cq = pd
            .context()
            .cq_builder(CQ_ENTRIES)
            .batch(CQ_ENTRIES as usize)
            .waitable()
            .create()?;
        let qp = pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .max_send_wr(1)
            .max_recv_wr(1)
            .create()?;
        let (qp_num, psn) = (qp.qp_num(), Psn::from_low_bits(0));
        let init = Attributes::<verbs::Rc, Init>::new(path.port_num).access(RemoteAccess::ATOMIC);
        let qp = qp.to_init(&init)?;
        let qp = qp.to_rtr(&Attributes::<verbs::Rc, Rtr>::new(&path, qp_num, psn))?;
        let rts = Attributes::<verbs::Rc, Rts>::new(psn).timeout(AckTimeout::new(ACK_TIMEOUT)?);
        let qp = qp.to_rts(&rts)?;
        Ok(Self { qp, cq })
    }

    /// Performs an atomic operation and returns the previous value. Blocks until completion, up to
    /// [`COMPLETION_TIMEOUT`]. After an error, drop the queue pair.
    pub(crate) fn atomic(&mut self, op: AtomicOp, number: RemoteToken) -> Result<u64, AtomicError> {
        const REFUSED: AtomicError = AtomicError::Failed(WcStatus::GENERAL_ERR);
        let pd = self.qp.pd();
        let before = pd.alloc_buf(OPERAND_SIZE).map_err(|_| REFUSED)?;
        let posted = match op {
            AtomicOp::FetchAdd(add) => {
                let request = op::FetchAdd::new(before, number, add);
                self.qp.post(request).map_err(drop)
            }
            AtomicOp::CompareSwap(compare, swap) => {
                let request = op::CompareSwap::new(before, number, compare, swap);
                self.qp.post(request).map_err(drop)
            }
        };
        posted.map_err(|()| REFUSED)?;
        let completions = self.cq.wait(Some(COMPLETION_TIMEOUT));
        let mut completions = completions.map_err(|_| AtomicError::Unknown)?;
        let wc = completions.next().ok_or(AtomicError::Unknown)?;
        let failed = |failed: WcError| AtomicError::Failed(failed.status);
        wc.ok().map_err(failed)?;
        match self.qp.complete(wc) {
            Ok(Completed::Send(done)) => {
                let before = done.work().map_err(failed)?.first_chunk().copied();
                before.map(u64::from_ne_bytes).ok_or(AtomicError::Unknown)
            }
            _ => Err(AtomicError::Unknown),
        }
    }
}

/// The path from the device to itself: over the GID of `ip`, or else over any active port.
fn path_to_self(ctx: &Context, ip: IpAddr) -> verbs::Result<AddressVector> {
    let gid = Gid::from(ip);
    let table = ctx.query_gid_table()?;
    let candidates = table.iter().filter(|entry| entry.gid == gid);
    if let Some(entry) = candidates.max_by_key(|entry| entry.gid_type == GidType::ROCE_V2)
        && let Ok(port) = u8::try_from(entry.port_num)
        && let Ok(index) = u8::try_from(entry.gid_index)
    {
        return Ok(AddressVector::global(port, index, gid));
    }
    for port in ctx.query_device()?.port_nums() {
        let attr = ctx.query_port(port)?;
        if attr.state() != PortState::ACTIVE {
            continue;
        }
        if !attr.is_grh_required() {
            return Ok(AddressVector::local(port, attr.lid()));
        }
        if let Some(gid) = ctx.query_gid(port, 0)? {
            return Ok(AddressVector::global(port, 0, gid));
        }
    }
    let none = verbs::Error::from_errno("ibv_modify_qp", Errno::HOSTUNREACH.raw_os_error());
    Err(none)
}
