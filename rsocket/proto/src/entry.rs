//! Table entries written by the other side: targets for data, and mapped memory.
//!
//! Numbers are in the byte order of the table's owner.

use super::order::{ByteOrder, bytes};

/// Memory for a sender's next data: one entry of the sender's table of targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Address of the first byte.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length in bytes; 0 for an unused entry.
    pub len: u32,
}

impl Target {
    /// Size of an entry in bytes.
    pub const SIZE: usize = 16;

    /// Encodes the entry in the byte order of the table's owner.
    pub fn encode(self, order: ByteOrder) -> [u8; Self::SIZE] {
        let mut entry = [0; Self::SIZE];
        entry[..8].copy_from_slice(&order.u64_bytes(self.addr));
        entry[8..12].copy_from_slice(&order.u32_bytes(self.rkey));
        entry[12..].copy_from_slice(&order.u32_bytes(self.len));
        entry
    }

    /// Decodes an entry in the byte order of the table's owner.
    pub fn decode(entry: &[u8; Self::SIZE], order: ByteOrder) -> Self {
        Self {
            addr: order.u64(bytes(entry, 0)),
            rkey: order.u32(bytes(entry, 8)),
            len: order.u32(bytes(entry, 12)),
        }
    }
}

/// Memory mapped for direct writes by the other side: one entry of the other side's table of mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Offset of the first byte, chosen by the program.
    pub offset: u64,
    /// Address of the first byte.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length in bytes; 0 for an unused entry.
    pub len: u32,
}

impl Mapping {
    /// Size of an entry in bytes.
    pub const SIZE: usize = 24;
    /// `SIZE` in the type of send buffer sizes.
    pub(super) const BYTES: u32 = 24;

    /// Encodes the entry in the byte order of the table's owner.
    pub fn encode(self, order: ByteOrder) -> [u8; Self::SIZE] {
        let mut entry = [0; Self::SIZE];
        entry[..8].copy_from_slice(&order.u64_bytes(self.offset));
        entry[8..16].copy_from_slice(&order.u64_bytes(self.addr));
        entry[16..20].copy_from_slice(&order.u32_bytes(self.rkey));
        entry[20..].copy_from_slice(&order.u32_bytes(self.len));
        entry
    }

    /// Decodes an entry in the byte order of the table's owner.
    pub fn decode(entry: &[u8; Self::SIZE], order: ByteOrder) -> Self {
        Self {
            offset: order.u64(bytes(entry, 0)),
            addr: order.u64(bytes(entry, 8)),
            rkey: order.u32(bytes(entry, 16)),
            len: order.u32(bytes(entry, 20)),
        }
    }

    /// Returns the memory from the byte at `offset` to the end of the mapping, if inside.
    pub(super) fn find(&self, offset: u64) -> Option<Target> {
        let inside = u32::try_from(offset.checked_sub(self.offset)?).ok()?;
        let len = self.len.checked_sub(inside).filter(|&len| len > 0)?;
        Some(Target {
            addr: self.addr.checked_add(inside.into())?,
            rkey: self.rkey,
            len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captured from a peer with its host's order set to big-endian.
    #[test]
    fn target_encoding_has_the_byte_order_of_the_peer() {
        let target = Target {
            addr: 0x7fc8_0403_6000,
            rkey: 0x1097,
            len: 0x1_0000,
        };
        let wire = [
            0x00, 0x00, 0x7f, 0xc8, 0x04, 0x03, 0x60, 0x00, // address
            0x00, 0x00, 0x10, 0x97, // key
            0x00, 0x01, 0x00, 0x00, // length
        ];
        assert_eq!(target.encode(ByteOrder::Big), wire);
        assert_eq!(Target::decode(&wire, ByteOrder::Big), target);
        let little = target.encode(ByteOrder::Little);
        assert_eq!(little[8..], [0x97, 0x10, 0, 0, 0, 0, 1, 0]);
        assert_eq!(Target::decode(&little, ByteOrder::Little), target);
    }

    #[test]
    fn mapping_encoding_has_fixed_layout() {
        let mapping = Mapping {
            offset: 1,
            addr: 2,
            rkey: 3,
            len: 4,
        };
        let wire = [
            1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0,
        ];
        assert_eq!(mapping.encode(ByteOrder::Little), wire);
        for order in [ByteOrder::Little, ByteOrder::Big] {
            assert_eq!(Mapping::decode(&mapping.encode(order), order), mapping);
        }
    }

    #[test]
    fn mapping_find_outside_of_its_range_is_none() {
        let mapping = Mapping {
            offset: 100,
            addr: 5000,
            rkey: 9,
            len: 10,
        };
        let found = |offset| mapping.find(offset).map(|at| (at.addr, at.len));
        assert_eq!(found(99), None);
        assert_eq!(found(100), Some((5000, 10)));
        assert_eq!(found(109), Some((5009, 1)));
        assert_eq!(found(110), None);
        assert_eq!(found(u64::MAX), None);
        let wrapping = Mapping {
            addr: u64::MAX - 1,
            ..mapping
        };
        assert_eq!(wrapping.find(105), None, "an address that does not exist");
    }
}
