//! Buckets: the slots for a key, read by a client in one RDMA read.

use std::{num::NonZeroU32, ops::Range};

use super::slot::{SLOT_LEN, Seen, Slot};

/// Number of slots in a bucket.
pub const SLOTS: usize = 4;
/// Length of a bucket, in bytes.
pub const BUCKET_LEN: usize = SLOTS * SLOT_LEN;

/// Index of a key's bucket. Both sides must use the same function.
pub fn bucket_of(key: &[u8], buckets: NonZeroU32) -> u32 {
    crc32fast::hash(key) % buckets
}

/// Byte range of a bucket within the table.
pub fn bytes_of(bucket: u32) -> Range<u64> {
    let start = u64::from(bucket) * BUCKET_LEN as u64;
    start..start + BUCKET_LEN as u64
}

/// Result of a lookup in one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key is in this slot.
    Slot(Slot),
    /// The key is not in the table.
    Absent,
    /// A slot was being written during the read, and may hold the key.
    Torn,
}

/// Searches a bucket for a key.
pub fn look_up(bucket: &[u8], key: &[u8]) -> Found {
    let mut torn = false;
    for slot in bucket.chunks_exact(SLOT_LEN) {
        match Seen::of(slot) {
            Seen::Whole(slot) if slot.entry.key() == key => return Found::Slot(slot),
            Seen::Torn => torn = true,
            Seen::Whole(_) | Seen::Free => {}
        }
    }
    match torn {
        true => Found::Torn,
        false => Found::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Entry;

    fn slot(key: &[u8], version: u64) -> Slot {
        let entry = Entry::new(key, b"value").unwrap();
        Slot { version, entry }
    }

    #[test]
    fn look_up_finds_the_key_in_every_slot() {
        for index in 0..SLOTS {
            let mut bucket = [0; BUCKET_LEN];
            bucket[index * SLOT_LEN..][..SLOT_LEN].copy_from_slice(&slot(b"key", 1).to_wire());
            assert_eq!(look_up(&bucket, b"key"), Found::Slot(slot(b"key", 1)));
            assert_eq!(look_up(&bucket, b"ke"), Found::Absent);
        }
    }

    #[test]
    fn look_up_with_a_torn_slot_finds_other_keys() {
        let mut bucket = [0; BUCKET_LEN];
        bucket[..SLOT_LEN].copy_from_slice(&slot(b"torn", 1).to_wire());
        bucket[SLOT_LEN..2 * SLOT_LEN].copy_from_slice(&slot(b"whole", 2).to_wire());
        bucket[SLOT_LEN - 1] = 1;
        assert_eq!(look_up(&bucket, b"torn"), Found::Torn);
        assert_eq!(look_up(&bucket, b"absent"), Found::Torn);
        assert_eq!(look_up(&bucket, b"whole"), Found::Slot(slot(b"whole", 2)));
    }

    #[test]
    fn bucket_of_is_a_fixed_function() {
        let buckets = NonZeroU32::new(1000).unwrap();
        // Check value of CRC-32.
        assert_eq!(bucket_of(b"123456789", buckets), 0xcbf4_3926 % 1000);
        assert_eq!(bytes_of(3), 1536..2048);
        assert_eq!(bytes_of(u32::MAX).end, 1 << 41);
    }
}
