//! Operations on memory of this engine's own sockets. To move bytes, no device is needed; numbers are
//! changed by the device that does so for other hosts, as it does not know what a processor is about to do.

use std::{net::IpAddr, sync::Arc};

use verbs::{RemoteRegion, WcStatus};

use super::{State, exports::Exported, traffic::outcome};
use crate::{
    device::Device,
    loopback::AtomicError,
    proto::connection::{Atomic, Completion, Direction, Rdma, Status},
};

impl State {
    /// Memory with this key that a socket at `to` exports, and how far in it so many bytes at an
    /// address are, if they are inside.
    fn exported(
        &self,
        to: IpAddr,
        rkey: u32,
        addr: u64,
        len: usize,
    ) -> Option<(&Arc<Device>, &Exported, usize)> {
        let device = self.listeners.device(to)?;
        let is_there = |exported: &Exported| exported.region.pd() == &device.pd;
        let exported = self.exports.find(rkey, is_there)?;
        let start = addr.checked_sub(exported.region.token().addr)?;
        let start = usize::try_from(start).ok()?;
        let is_inside = start.checked_add(len)? <= exported.region.len();
        is_inside.then_some((device, exported, start))
    }

    /// Reads or writes memory that a socket at `to` exports, and says how that has ended.
    pub(crate) fn local_rdma(&self, to: IpAddr, rdma: &Rdma, pieces: &[RemoteRegion]) -> Status {
        // Of as many bytes as the pieces have: that was looked at.
        let there = self.exported(to, rdma.rkey, rdma.addr, rdma.len as usize);
        let may = |exported: &Exported| rdma.direction == Direction::Read || !exported.read_only;
        let Some((_, exported, mut at)) = there.filter(|(_, exported, _)| may(exported)) else {
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

    /// Whether numbers of sockets at an address can be changed; also if nothing is known of it.
    pub(crate) fn has_local_atomics(&self, to: IpAddr) -> bool {
        let device = self.listeners.device(to);
        device.is_none_or(|device| device.has_local_atomics())
    }

    /// Changes a number in memory that a socket at `to` exports, in one step for everybody, and says
    /// how that has ended. What it was goes to `place`, of 8 bytes. Blocks until the device has done it.
    pub(crate) fn local_atomic(&self, to: IpAddr, atomic: &Atomic, place: &RemoteRegion) -> Status {
        let there = self.exported(to, atomic.rkey, atomic.addr, place.len());
        let Some((device, exported, at)) = there.filter(|(_, exported, _)| !exported.read_only)
        else {
            return Status::RemoteError;
        };
        let number = exported.region.slice(at..at + place.len()).token();
        match device.local_atomic(to, atomic.op, number) {
            Ok(before) => {
                place.write(0, &before.to_ne_bytes());
                Status::Success
            }
            Err(AtomicError::Unknown) => Status::Dropped,
            Err(AtomicError::Failed(failure)) => status_of(failure),
        }
    }
}

/// What a device says of an operation that has failed.
fn status_of(failure: WcStatus) -> Status {
    match outcome(failure) {
        Completion::RemoteError => Status::RemoteError,
        Completion::Flushed => Status::Dropped,
        Completion::Success | Completion::OtherError => Status::OtherError,
    }
}
