//! The atomic extended transport header (`AtomicETH`), 28 bytes: the responder's memory and the operands.

use super::{error::WireError, reader::Reader};

/// The responder's memory and the operands of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of the number, a multiple of 8.
    pub addr: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Number to add, or new number of a comparison and exchange.
    pub swap_add: u64,
    /// Expected number of a comparison and exchange.
    pub compare: u64,
}

impl AtomicEth {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        reader.header("atomic extended transport header");
        Ok(Self {
            addr: reader.u64()?,
            rkey: reader.u32()?,
            swap_add: reader.u64()?,
            compare: reader.u64()?,
        })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        to.extend(self.addr.to_be_bytes());
        to.extend(self.rkey.to_be_bytes());
        to.extend(self.swap_add.to_be_bytes());
        to.extend(self.compare.to_be_bytes());
    }
}
