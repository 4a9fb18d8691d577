//! Sockets: `struct rds_info_socket` and `struct rds6_info_socket`.

use std::net::SocketAddr;

use super::{AddressFamily, Element};
use crate::wire::Reader;

/// A socket. Missing addresses are unspecified, with port 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketInfo {
    /// Size of the send buffer in bytes.
    pub send_limit: u32,
    /// The bound address.
    pub local: SocketAddr,
    /// The default destination.
    pub peer: SocketAddr,
    /// Size of the receive buffer in bytes.
    pub recv_limit: u32,
    /// Number of the socket.
    pub inode: u64,
}

impl Element for SocketInfo {
    fn size(family: AddressFamily) -> usize {
        match family {
            AddressFamily::V4 => 28,
            AddressFamily::V6 => 52,
        }
    }

    fn fits(&self, family: AddressFamily) -> bool {
        family.holds(self.local.ip()) && family.holds(self.peer.ip())
    }

    fn write(&self, family: AddressFamily, to: &mut Vec<u8>) {
        to.extend(self.send_limit.to_ne_bytes());
        family.write(self.local.ip(), to);
        family.write(self.peer.ip(), to);
        to.extend(self.local.port().to_be_bytes());
        to.extend(self.peer.port().to_be_bytes());
        to.extend(self.recv_limit.to_ne_bytes());
        to.extend(self.inode.to_ne_bytes());
    }

    fn read(family: AddressFamily, reader: &mut Reader<'_>) -> Option<Self> {
        let send_limit = u32::from_ne_bytes(reader.bytes()?);
        let (local, peer) = (family.read(reader)?, family.read(reader)?);
        Some(Self {
            send_limit,
            local: (local, reader.u16()?).into(),
            peer: (peer, reader.u16()?).into(),
            recv_limit: u32::from_ne_bytes(reader.bytes()?),
            inode: u64::from_ne_bytes(reader.bytes()?),
        })
    }
}
