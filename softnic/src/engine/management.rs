//! Queue pair 1: datagrams between the managers of hosts, such as connection managers.

use std::{collections::VecDeque, net::IpAddr};

use super::{
    device::Engine,
    memory::Memory,
    packet::{Outgoing, Packet},
    path::Path,
};
use crate::wire::{
    Bth, Deth, Extensions, Frame, Immediate, Opcode, Operation, Position, Transport,
};

/// Number of the queue pair.
pub(super) const QP: u32 = 1;

/// Q_Key of all queue pairs 1.
const QKEY: u32 = 0x8001_0000;

/// Length of a management datagram in bytes.
pub const MANAGEMENT_LEN: usize = 256;

/// Maximum number of received datagrams not yet taken; further ones are dropped.
const MAX_WAITING: usize = 1024;

/// A management datagram from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagementDatagram {
    /// Address of the sender.
    pub from: IpAddr,
    /// Address of this host.
    pub to: IpAddr,
    /// Contents.
    pub bytes: [u8; MANAGEMENT_LEN],
}

/// Queue pair 1.
#[derive(Debug, Default)]
pub(super) struct ManagementQp {
    received: VecDeque<ManagementDatagram>,
    unsent: VecDeque<(Path, [u8; MANAGEMENT_LEN])>,
    psn: u32,
}

impl ManagementQp {
    /// Stores a received datagram. Returns false if the packet is dropped: no management datagram, or a full queue.
    pub(super) fn handle(&mut self, packet: &Packet<'_>, memory: &mut dyn Memory) -> bool {
        let key = packet.frame.extensions.deth.map(|deth| deth.qkey);
        let (Some(QKEY), Some(bytes)) = (key, packet.payload.array(memory)) else {
            return false;
        };
        let has_room = self.received.len() < MAX_WAITING;
        if has_room {
            self.received.push_back(ManagementDatagram {
                from: packet.frame.ip.src(),
                to: packet.frame.ip.dst(),
                bytes,
            });
        }
        has_room
    }

    /// Makes the next packet. Returns false if no datagram is pending.
    pub(super) fn transmit(&mut self, out: &mut Outgoing) -> bool {
        while let Some((path, bytes)) = self.unsent.pop_front() {
            self.psn = self.psn.wrapping_add(1) & 0xff_ffff;
            out.clear();
            if let Some(headers) = headers(&path, self.psn) {
                out.set_headers(headers);
                out.bytes.extend_from_slice(&bytes);
                return true;
            }
        }
        false
    }
}

/// Headers of a datagram; `None` for a path between two families of addresses.
fn headers(path: &Path, psn: u32) -> Option<Frame<'static>> {
    let send = Operation::Send(Position::Only, Immediate::None);
    let opcode = Opcode::new(Transport::Ud, send)?;
    Some(Frame {
        ip: path.header().ok()?,
        src_port: 0xc000 | 1,
        udp_checksum: 0,
        bth: Bth::new(opcode, QP, psn),
        extensions: Extensions {
            deth: Some(Deth {
                qkey: QKEY,
                src_qp: QP,
            }),
            ..Extensions::default()
        },
        payload: &[],
    })
}

/// A frame with a management datagram, not sent by an engine; `None` for a path between two families of addresses.
pub(crate) fn management_frame<'a>(
    path: &Path,
    bytes: &'a [u8; MANAGEMENT_LEN],
) -> Option<Frame<'a>> {
    let headers = headers(path, 0)?;
    Some(Frame {
        payload: bytes,
        ..headers
    })
}

impl Engine {
    /// Sends a management datagram.
    pub fn send_management(&mut self, path: Path, bytes: [u8; MANAGEMENT_LEN]) {
        self.management.unsent.push_back((path, bytes));
    }

    /// Takes the oldest received management datagram.
    pub fn poll_management(&mut self) -> Option<ManagementDatagram> {
        self.management.received.pop_front()
    }
}
