//! RDMA and atomic operations between sockets of one engine. RDMA is a copy by the processor;
//! atomic operations go through the device, because they must be atomic with those of peers.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock, Weak},
};

use verbs::{RemoteRegion, WcStatus};

use super::{EngineState, exports::Exported, traffic::outcome};
use crate::{
    device::Device,
    loopback::AtomicError,
    proto::connection::{Atomic, AtomicOp, Completion, Direction, Rdma, Status},
};

impl EngineState {
    /// The export with this key of a socket at `to`, and the offset of `addr` in it, if `len` bytes
    /// are inside.
    fn exported(
        &self,
        to: IpAddr,
        rkey: u32,
        addr: u64,
        len: usize,
    ) -> Option<(&Arc<Device>, &Exported, usize)> {
        let device = self.listeners.device(to)?;
        let is_on_device = |exported: &Exported| exported.region.pd() == &device.pd;
        let exported = self.exports.find(rkey, is_on_device)?;
        let start = addr.checked_sub(exported.region.token().addr)?;
        let start = usize::try_from(start).ok()?;
        let is_inside = start.checked_add(len)? <= exported.region.len();
        is_inside.then_some((device, exported, start))
    }

    /// Performs an RDMA operation on memory exported by a socket at `to`.
    pub(crate) fn local_rdma(&self, to: IpAddr, rdma: &Rdma, pieces: &[RemoteRegion]) -> Status {
        // The caller has checked that the pieces add up to this length.
        let exported = self.exported(to, rdma.rkey, rdma.addr, rdma.len as usize);
        let may = |exported: &Exported| rdma.direction == Direction::Read || !exported.read_only;
        let Some((_, exported, mut at)) = exported.filter(|(_, exported, _)| may(exported)) else {
            return Status::RemoteError;
        };
        let region = &exported.region;
        for piece in pieces {
            let mut bytes = vec![0; piece.len()];
            match rdma.direction {
                Direction::Read => {
                    region.read(at, &mut bytes);
                    piece.write(0, &bytes);
                }
                Direction::Write => {
                    piece.read(0, &mut bytes);
                    region.write(at, &bytes);
                }
            }
            at += bytes.len();
        }
        Status::Success
    }

    /// Whether atomic operations work on exports of sockets at an address. `true` for unknown
    /// addresses.
    pub(crate) fn has_local_atomics(&self, to: IpAddr) -> bool {
        let device = self.listeners.device(to);
        device.is_none_or(|device| device.has_local_atomics())
    }

    /// The target of an atomic operation on memory exported by a socket at `to`.
    pub(crate) fn local_atomic(&self, to: IpAddr, atomic: &Atomic) -> Option<LocalAtomic> {
        let exported = self.exported(to, atomic.rkey, atomic.addr, ATOMIC_LEN);
        let (device, exported, at) = exported.filter(|(_, exported, _)| !exported.read_only)?;
        Some(LocalAtomic {
            device: Arc::clone(device),
            ip: to,
            op: atomic.op,
            region: Arc::downgrade(&exported.region),
            at,
            ended: Arc::clone(&exported.ended),
        })
    }
}

/// Length of the target of an atomic operation.
const ATOMIC_LEN: usize = 8;

/// An atomic operation on memory exported by a socket of the same engine.
pub(crate) struct LocalAtomic {
    device: Arc<Device>,
    ip: IpAddr,
    op: AtomicOp,
    /// Not held, since the end of the export deregisters the memory.
    region: Weak<RemoteRegion>,
    /// Offset in the region.
    at: usize,
    ended: Arc<RwLock<bool>>,
}

impl LocalAtomic {
    /// Performs the operation, and stores the previous value in `result`, 8 bytes. Blocks until the
    /// device completes the operation, up to 10 s: call without the engine's lock.
    pub(crate) fn perform(self, result: &RemoteRegion) -> Status {
        let ended = self.ended.read().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = self.region.upgrade().filter(|_| !*ended) else {
            return Status::RemoteError;
        };
        let number = region.slice(self.at..self.at + ATOMIC_LEN).token();
        let before = self.device.local_atomic(self.ip, self.op, number);
        // Before the end of the export, which may wait for this operation.
        drop(region);
        match before {
            Ok(before) => {
                result.write(0, &before.to_ne_bytes());
                Status::Success
            }
            Err(AtomicError::Unknown) => Status::Dropped,
            Err(AtomicError::Failed(failure)) => status_of(failure),
        }
    }
}

/// The operation status for a completion error.
fn status_of(failure: WcStatus) -> Status {
    match outcome(failure) {
        Completion::RemoteError => Status::RemoteError,
        Completion::Flushed => Status::Dropped,
        Completion::Success | Completion::OtherError => Status::OtherError,
    }
}
