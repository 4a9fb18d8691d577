//! The UDP header, 8 bytes.

use super::{error::WireError, reader::Reader};

/// UDP port of `RoCEv2`.
pub const PORT: u16 = 4791;

/// Length of the header in bytes.
pub(super) const LEN: usize = 8;

/// Fields of a UDP header, except the fields implied by the frame.
pub(super) struct Udp {
    pub(super) src_port: u16,
    /// Length of header and datagram in bytes.
    pub(super) len: u16,
    pub(super) checksum: u16,
}

impl Udp {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        reader.header("UDP header");
        let src_port = reader.u16()?;
        let port = reader.u16()?;
        if port != PORT {
            return Err(WireError::Port(port));
        }
        Ok(Self {
            src_port,
            len: reader.u16()?,
            checksum: reader.u16()?,
        })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        to.extend(self.src_port.to_be_bytes());
        to.extend(PORT.to_be_bytes());
        to.extend(self.len.to_be_bytes());
        to.extend(self.checksum.to_be_bytes());
    }
}
