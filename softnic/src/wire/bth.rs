//! The base transport header (BTH), 12 bytes, first in every frame.

use super::{
    error::WireError,
    opcode::Opcode,
    reader::{Reader, be24},
};

/// The default partition, with full membership.
const DEFAULT_PKEY: u16 = 0xffff;

/// The base transport header. Numbers of queue pairs and packets have 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Transport and operation.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion raises an event even if only solicited completions do.
    pub solicited: bool,
    /// Migration state: set unless the path has just been migrated to.
    pub migrated: bool,
    /// Partition.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Number of the destination queue pair.
    pub dest_qp: u32,
    /// Whether the responder is to acknowledge.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: u32,
}

impl Bth {
    /// Length of the header in bytes.
    pub const LEN: usize = 12;

    /// A header in the default partition without any flags but the migration state.
    pub fn new(opcode: Opcode, dest_qp: u32, psn: u32) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_request: false,
            psn,
        }
    }

    /// Reads the header and the pad count.
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<(Self, u8), WireError> {
        reader.header("base transport header");
        let opcode = Opcode(reader.u8()?);
        let flags = reader.u8()?;
        let pkey = reader.u16()?;
        let congestion = reader.u8()?;
        let dest_qp = reader.u24()?;
        let ack = reader.u8()?;
        let psn = reader.u24()?;
        if flags & 0x0f != 0 {
            return Err(WireError::TransportVersion(flags & 0x0f));
        }
        let bth = Self {
            opcode,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pkey,
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            dest_qp,
            ack_request: ack & 0x80 != 0,
            psn,
        };
        Ok((bth, flags >> 4 & 3))
    }

    /// Appends the header; `pad` is the number of bytes after the payload, below four.
    pub(super) fn encode(&self, pad: u8, to: &mut Vec<u8>) {
        let bit = |set: bool, mask: u8| if set { mask } else { 0 };
        to.push(self.opcode.0);
        to.push(bit(self.solicited, 0x80) | bit(self.migrated, 0x40) | (pad & 3) << 4);
        to.extend(self.pkey.to_be_bytes());
        to.push(bit(self.fecn, 0x80) | bit(self.becn, 0x40));
        to.extend(be24(self.dest_qp));
        to.push(bit(self.ack_request, 0x80));
        to.extend(be24(self.psn));
    }
}
