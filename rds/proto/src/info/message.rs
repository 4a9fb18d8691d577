//! Queued messages: `struct rds_info_message` and `struct rds6_info_message`.

use std::net::SocketAddr;

use super::{AddressFamily, Element};
use crate::wire::Reader;

bitflags::bitflags! {
    /// Flags of a message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MessageFlags: u8 {
        /// Requests an acknowledgement.
        const ACK = 0x01;
        /// Requests an immediate acknowledgement.
        const FAST_ACK = 0x02;
        /// Unknown flags are kept.
        const _ = !0;
    }
}

/// A queued message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageInfo {
    /// Sequence number.
    pub sequence: u64,
    /// Length in bytes.
    pub len: u32,
    /// The local socket. Kernels omit the address in the layout of IPv4.
    pub local: SocketAddr,
    /// The peer's socket.
    pub peer: SocketAddr,
    /// Flags of the message.
    pub flags: MessageFlags,
    /// Type of service.
    pub tos: u8,
}

impl Element for MessageInfo {
    fn size(family: AddressFamily) -> usize {
        match family {
            AddressFamily::V4 => 26,
            AddressFamily::V6 => 50,
        }
    }

    fn fits(&self, family: AddressFamily) -> bool {
        family.holds(self.peer.ip())
    }

    fn write(&self, family: AddressFamily, to: &mut Vec<u8>) {
        to.extend(self.sequence.to_ne_bytes());
        to.extend(self.len.to_ne_bytes());
        family.write(self.local.ip(), to);
        family.write(self.peer.ip(), to);
        to.extend(self.local.port().to_be_bytes());
        to.extend(self.peer.port().to_be_bytes());
        to.push(self.flags.bits());
        to.push(self.tos);
    }

    fn read(family: AddressFamily, reader: &mut Reader<'_>) -> Option<Self> {
        let sequence = u64::from_ne_bytes(reader.bytes()?);
        let len = u32::from_ne_bytes(reader.bytes()?);
        let (local, peer) = (family.read(reader)?, family.read(reader)?);
        Some(Self {
            sequence,
            len,
            local: (local, reader.u16()?).into(),
            peer: (peer, reader.u16()?).into(),
            flags: MessageFlags::from_bits_retain(reader.u8()?),
            tos: reader.u8()?,
        })
    }
}
