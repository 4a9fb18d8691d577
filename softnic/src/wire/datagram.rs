//! The datagram extended transport header (DETH), 8 bytes: the sender's queue pair and the receiver's Q_Key.

use super::{
    error::WireError,
    reader::{Reader, be24},
};

/// The sender's queue pair and the receiver's Q_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key. The receiver drops a datagram with a Q_Key other than its queue pair's.
    pub qkey: u32,
    /// Number of the sender's queue pair, 24 bits.
    pub src_qp: u32,
}

impl Deth {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        reader.header("datagram extended transport header");
        let qkey = reader.u32()?;
        let _reserved = reader.u8()?;
        Ok(Self {
            qkey,
            src_qp: reader.u24()?,
        })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        to.extend(self.qkey.to_be_bytes());
        to.push(0);
        to.extend(be24(self.src_qp));
    }
}
