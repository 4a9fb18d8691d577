//! Connections between hosts: `struct rds_info_connection` and `struct rds6_info_connection`.

use std::net::IpAddr;

use super::{AddressFamily, Element, text, write_text};
use crate::proto::wire::Reader;

bitflags::bitflags! {
    /// The state of a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ConnectionFlags: u8 {
        /// Somebody is sending.
        const SENDING = 0x01;
        /// It is being made.
        const CONNECTING = 0x02;
        /// It is there.
        const CONNECTED = 0x04;
        /// Those that are not known are kept.
        const _ = !0;
    }
}

/// A connection between two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// The number of the next message that is sent.
    pub next_tx: u64,
    /// The number of the next message that is expected.
    pub next_rx: u64,
    /// This host's address.
    pub local: IpAddr,
    /// The other's.
    pub peer: IpAddr,
    /// What it goes over, in 15 bytes: `infiniband` for every RDMA device.
    pub transport: String,
    /// Its state.
    pub flags: ConnectionFlags,
    /// The type of service, which IPv6's layout has no place for.
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
