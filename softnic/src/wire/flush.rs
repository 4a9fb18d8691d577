//! The flush extended transport header (FETH), 4 bytes: kind and extent of a flush.

use super::{error::WireError, reader::Reader};

/// Kind and extent of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement: bit 0 global visibility, bit 1 persistence.
    pub placement: u8,
    /// Selectivity: 0 the range of the request, 1 the whole region.
    pub selectivity: u8,
}

impl Feth {
    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        reader.header("flush extended transport header");
        let [_, _, _, low] = reader.array()?;
        Ok(Self {
            placement: low & 0x0f,
            selectivity: low >> 4 & 3,
        })
    }

    pub(super) fn encode(&self, to: &mut Vec<u8>) {
        let low = self.placement & 0x0f | (self.selectivity & 3) << 4;
        to.extend([0, 0, 0, low]);
    }
}
