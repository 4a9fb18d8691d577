//! One slot of the table, in the layout of the memory and of the clients' reads.
//!
//! ```text
//! byte 0        4     5      6         8            16                    128
//!      CRC-32   key   value  reserved  version      key, value, zeros
//!      of the   len   len    (zero)    (which put)
//!      rest
//! ```

use super::entry::{ENTRY_LEN, Entry};

/// Length of the part before the key, in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of a slot, in bytes.
pub const SLOT_LEN: usize = HEADER_LEN + ENTRY_LEN;

/// An entry in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Number of the put, starting at 1.
    pub version: u64,
    /// The stored key and value.
    pub entry: Entry,
}

/// Content of a slot as read, possibly during a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No entry yet.
    Free,
    /// The result of one complete put.
    Whole(Slot),
    /// A mixture of two puts: read again.
    Torn,
}

impl Slot {
    /// Encodes the slot, in the same layout on every machine.
    pub fn to_wire(&self) -> [u8; SLOT_LEN] {
        let mut wire = [0; SLOT_LEN];
        let (mut lengths, mut bytes) = ([0; 2], [0; ENTRY_LEN]);
        self.entry.write(&mut lengths, &mut bytes);
        wire[4..6].copy_from_slice(&lengths);
        wire[8..16].copy_from_slice(&self.version.to_le_bytes());
        wire[HEADER_LEN..].copy_from_slice(&bytes);
        let checksum = crc32fast::hash(&wire[4..]);
        wire[..4].copy_from_slice(&checksum.to_le_bytes());
        wire
    }
}

impl Seen {
    /// Classifies the bytes of a slot.
    pub fn of(wire: &[u8]) -> Self {
        if wire.iter().all(|&byte| byte == 0) {
            return Self::Free;
        }
        match read(wire) {
            Some(slot) => Self::Whole(slot),
            None => Self::Torn,
        }
    }
}

/// Parses a slot. `None` if the checksum is wrong.
fn read(wire: &[u8]) -> Option<Slot> {
    let (checksum, rest) = wire.split_first_chunk()?;
    if u32::from_le_bytes(*checksum) != crc32fast::hash(rest) {
        return None;
    }
    let (lengths, rest) = rest.split_first_chunk()?;
    let (_reserved, rest) = rest.split_first_chunk::<2>()?;
    let (version, bytes) = rest.split_first_chunk()?;
    Some(Slot {
        version: u64::from_le_bytes(*version),
        entry: Entry::read(*lengths, bytes.try_into().ok()?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(version: u64, value: &[u8]) -> Slot {
        let entry = Entry::new(b"key", value).unwrap();
        Slot { version, entry }
    }

    #[test]
    fn slot_layout_is_as_documented() {
        let wire = slot(0x0102, b"value").to_wire();
        assert_eq!(&wire[4..8], &[3, 5, 0, 0]);
        assert_eq!(&wire[8..16], &[2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&wire[16..25], b"keyvalue\0");
        assert_eq!(wire[..4], crc32fast::hash(&wire[4..]).to_le_bytes());
        assert_eq!(Seen::of(&wire), Seen::Whole(slot(0x0102, b"value")));
        assert_eq!(Seen::of(&[0; SLOT_LEN]), Seen::Free);
    }

    /// Both puts have the same key and value; only the version differs.
    #[test]
    fn every_mixture_of_two_puts_is_torn() {
        let old = [slot(1, b"same").to_wire(), slot(7, b"other").to_wire()];
        let new = slot(2, b"same").to_wire();
        for old in old.into_iter().chain([[0; SLOT_LEN]]) {
            for cut in 0..=SLOT_LEN {
                for (first, second) in [(&new, &old), (&old, &new)] {
                    let mut read = *first;
                    read[cut..].copy_from_slice(&second[cut..]);
                    let expected = match read {
                        complete if complete == new || complete == old => Seen::of(&complete),
                        _ => Seen::Torn,
                    };
                    assert_eq!(Seen::of(&read), expected, "cut at {cut}");
                }
            }
        }
        assert_eq!(Seen::of(&new), Seen::Whole(slot(2, b"same")));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let complete = slot(1, b"value").to_wire();
        for bit in 0..SLOT_LEN * 8 {
            let mut wire = complete;
            wire[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Seen::of(&wire), Seen::Torn, "bit {bit}");
        }
    }
}
