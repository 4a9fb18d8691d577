//! Operations on memory of this engine's own sockets, in which the device has no part.

use std::net::IpAddr;

use verbs::RemoteRegion;

use super::State;
use crate::proto::connection::{Direction, Rdma, Status};

impl State {
    /// Reads or writes memory that a socket at `to` exports, and says how that has ended.
    pub(crate) fn operate(&self, to: IpAddr, rdma: &Rdma, pieces: &[RemoteRegion]) -> Status {
        let Some(device) = self.listeners.device(to) else {
            return Status::RemoteError;
        };
        let mut exports = self.exports.iter();
        let there = exports
            .find(|((_, rkey), exported)| *rkey == rdma.rkey && exported.region.pd() == &device.pd);
        let Some((_, exported)) = there else {
            return Status::RemoteError;
        };
        let region = &exported.region;
        // Of as many bytes as the pieces have: that was looked at.
        let start = rdma.addr.checked_sub(region.token().addr);
        let start = start.and_then(|start| usize::try_from(start).ok());
        let inside = start.filter(|start| {
            let end = start.checked_add(rdma.len as usize);
            end.is_some_and(|end| end <= region.len())
        });
        let may = rdma.direction == Direction::Read || !exported.read_only;
        let Some(mut at) = inside.filter(|_| may) else {
            return Status::RemoteError;
        };
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
}
