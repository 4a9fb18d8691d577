//! The header of dynamically connected requests, 20 bytes, of softnic's own.

use super::{
    error::WireError,
    reader::{Reader, be24},
};

/// The connection of a dynamically connected request, and the key of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dceth {
    /// Access key of the target.
    pub key: u64,
    /// Number of the connection, which grows with each connection of the initiator's device.
    pub session: u32,
    /// Sequence number of the connection's first packet, 24 bits.
    pub first: u32,
    /// Number of the initiator, 24 bits.
    pub src_qp: u32,
}

impl Dceth {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        reader.header("dynamically connected transport header");
        let (key, session) = (reader.u64()?, reader.u32()?);
        let _reserved = reader.u8()?;
        let first = reader.u24()?;
        let _reserved = reader.u8()?;
        Ok(Self {
            key,
            session,
            first,
            src_qp: reader.u24()?,
        })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        to.extend(self.key.to_be_bytes());
        to.extend(self.session.to_be_bytes());
        to.push(0);
        to.extend(be24(self.first));
        to.push(0);
        to.extend(be24(self.src_qp));
    }
}
