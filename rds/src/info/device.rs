//! What is below connections: `struct rds_info_rdma_connection` and its twin for IPv6, which are not
//! packed.

use std::net::IpAddr;

use super::{AddressFamily, Element};
use crate::proto::wire::Reader;

/// The device's part of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceConnectionInfo {
    /// This host's address.
    pub local: IpAddr,
    /// The other's.
    pub peer: IpAddr,
    /// The address of this host's port; zero while there is no connection.
    pub local_gid: [u8; 16],
    /// That of the other's.
    pub peer_gid: [u8; 16],
    /// The requests that the send queue can hold.
    pub max_send_wr: u32,
    /// The requests that the receive queue can hold.
    pub max_recv_wr: u32,
    /// The pieces of memory of one send.
    pub max_send_sge: u32,
    /// How much memory can be exported.
    pub mr_max: u32,
    /// The pages of an exported piece.
    pub mr_size: u32,
    /// The type of service.
    pub tos: u8,
    /// The service level.
    pub sl: u8,
    /// Frames that are kept for later.
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
