//! Messages that wait: `struct rds_info_message` and `struct rds6_info_message`.

use std::net::SocketAddr;

use super::{AddressFamily, Element};
use crate::proto::wire::Reader;

bitflags::bitflags! {
    /// What a message asks for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct MessageFlags: u8 {
        /// An acknowledgement.
        const ACK = 0x01;
        /// One at once.
        const FAST_ACK = 0x02;
        /// Those that are not known are kept.
        const _ = !0;
    }
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageInfo {
    /// Its number.
    pub sequence: u64,
    /// The number of bytes.
    pub len: u32,
    /// The socket of this host. Kernels do not tell its IPv4 address in IPv4's layout.
    pub local: SocketAddr,
    /// The other.
    pub peer: SocketAddr,
    /// What it asks for.
    pub flags: MessageFlags,
    /// The type of service.
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
