//! The RDMA extended transport header (RETH), 16 bytes: the responder's memory.

use super::{error::WireError, reader::Reader};

/// The responder's memory for a write or a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address in the region.
    pub addr: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub len: u32,
}

impl Reth {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        reader.header("RDMA extended transport header");
        Ok(Self {
            addr: reader.u64()?,
            rkey: reader.u32()?,
            len: reader.u32()?,
        })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        to.extend(self.addr.to_be_bytes());
        to.extend(self.rkey.to_be_bytes());
        to.extend(self.len.to_be_bytes());
    }
}
