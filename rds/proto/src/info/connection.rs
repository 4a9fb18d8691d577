//! Connections between hosts: `struct rds_info_connection` and `struct rds6_info_connection`.

use std::net::IpAddr;

use super::{AddressFamily, Element, text, write_text};
use crate::wire::Reader;

bitflags::bitflags! {
    /// State of a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ConnectionFlags: u8 {
        /// A message is being sent.
        const SENDING = 0x01;
        /// The connection is being established.
        const CONNECTING = 0x02;
        /// The connection is established.
        const CONNECTED = 0x04;
        /// Unknown flags are kept.
        const _ = !0;
    }
}

/// A connection between two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Sequence number of the next message to send.
    pub next_tx: u64,
    /// Sequence number of the next message to receive.
    pub next_rx: u64,
    /// The local address.
    pub local: IpAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// Name of the transport, up to 15 bytes: `infiniband` for every RDMA device.
    pub transport: String,
    /// State of the connection.
    pub flags: ConnectionFlags,
    /// Type of service; missing in the layout of IPv6.
    pub tos: u8,
}

impl Element for ConnectionInfo {
    fn size(family: AddressFamily) -> usize {
        match family {
            AddressFamily::V4 => 42,
            AddressFamily::V6 => 65,
        }
    }

    fn fits(&self, family: AddressFamily) -> bool {
        family.holds(self.peer)
    }

    fn write(&self, family: AddressFamily, to: &mut Vec<u8>) {
        to.extend(self.next_tx.to_ne_bytes());
        to.extend(self.next_rx.to_ne_bytes());
        family.write(self.local, to);
        family.write(self.peer, to);
        write_text::<16>(&self.transport, to);
        to.push(self.flags.bits());
        if family == AddressFamily::V4 {
            to.push(self.tos);
        }
    }

    fn read(family: AddressFamily, reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            next_tx: u64::from_ne_bytes(reader.bytes()?),
            next_rx: u64::from_ne_bytes(reader.bytes()?),
            local: family.read(reader)?,
            peer: family.read(reader)?,
            transport: text::<16>(reader)?,
            flags: ConnectionFlags::from_bits_retain(reader.u8()?),
            tos: match family {
                AddressFamily::V4 => reader.u8()?,
                AddressFamily::V6 => 0,
            },
        })
    }
}
