//! RDMA connections: `struct rds_info_rdma_connection` and `struct rds6_info_rdma_connection`, with
//! padding.

use std::net::IpAddr;

use super::{AddressFamily, Element};
use crate::wire::Reader;

/// Device part of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConnectionInfo {
    /// The local address.
    pub local: IpAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// GID of the local port; zero without a connection.
    pub local_gid: [u8; 16],
    /// GID of the peer's port; zero without a connection.
    pub peer_gid: [u8; 16],
    /// Length of the send queue.
    pub max_send_wr: u32,
    /// Length of the receive queue.
    pub max_recv_wr: u32,
    /// Maximum number of scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Maximum number of exports.
    pub mr_max: u32,
    /// Maximum number of pages of an export.
    pub mr_size: u32,
    /// Type of service.
    pub tos: u8,
    /// Service level.
    pub sl: u8,
    /// Cached frames.
    pub cache_allocs: u32,
}

impl Element for DeviceConnectionInfo {
    fn size(family: AddressFamily) -> usize {
        match family {
            AddressFamily::V4 => 68,
            AddressFamily::V6 => 92,
        }
    }

    fn fits(&self, family: AddressFamily) -> bool {
        family.holds(self.peer)
    }

    fn write(&self, family: AddressFamily, to: &mut Vec<u8>) {
        family.write(self.local, to);
        family.write(self.peer, to);
        to.extend(self.local_gid);
        to.extend(self.peer_gid);
        for number in [
            self.max_send_wr,
            self.max_recv_wr,
            self.max_send_sge,
            self.mr_max,
            self.mr_size,
        ] {
            to.extend(number.to_ne_bytes());
        }
        to.extend([self.tos, self.sl, 0, 0]);
        to.extend(self.cache_allocs.to_ne_bytes());
    }

    fn read(family: AddressFamily, reader: &mut Reader<'_>) -> Option<Self> {
        let (local, peer) = (family.read(reader)?, family.read(reader)?);
        let (local_gid, peer_gid) = (reader.bytes()?, reader.bytes()?);
        let mut number = || reader.bytes().map(u32::from_ne_bytes);
        let numbers = [number()?, number()?, number()?, number()?, number()?];
        let [max_send_wr, max_recv_wr, max_send_sge, mr_max, mr_size] = numbers;
        let [tos, sl, _, _] = reader.bytes()?;
        Some(Self {
            local,
            peer,
            local_gid,
            peer_gid,
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            mr_max,
            mr_size,
            tos,
            sl,
            cache_allocs: u32::from_ne_bytes(reader.bytes()?),
        })
    }
}
