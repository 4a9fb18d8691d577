//! The slots in which a key can be: a client reads all of them at once.

use std::{num::NonZeroU32, ops::Range};

use super::slot::{SLOT_LEN, Seen, Slot};

/// The slots of a bucket.
pub const SLOTS: usize = 4;
/// The length of a bucket.
pub const BUCKET_LEN: usize = SLOTS * SLOT_LEN;

/// The bucket of a key, among so many. Both sides must agree on it.
pub fn bucket_of(key: &[u8], buckets: NonZeroU32) -> u32 {
    crc32fast::hash(key) % buckets
}

/// Where a bucket is in the table, in bytes.
pub fn bytes_of(bucket: u32) -> Range<u64> {
    let start = u64::from(bucket) * BUCKET_LEN as u64;
    start..start + BUCKET_LEN as u64
}

/// What a bucket says about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is there.
    Slot(Slot),
    /// It is not in the table.
    Absent,
    /// A slot was just being written, and it may be that one.
    Torn,
}

/// Looks for a key in a bucket that was read.
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
    use crate::kv_store::entry::Entry;

    fn slot(key: &[u8], version: u64) -> Slot {
        let entry = Entry::new(key, b"value").unwrap();
        Slot { version, entry }
    }

    #[test]
    fn a_key_is_found_in_every_slot() {
        for place in 0..SLOTS {
            let mut bucket = [0; BUCKET_LEN];
            bucket[place * SLOT_LEN..][..SLOT_LEN].copy_from_slice(&slot(b"key", 1).to_wire());
            assert_eq!(look_up(&bucket, b"key"), Found::Slot(slot(b"key", 1)));
            assert_eq!(look_up(&bucket, b"ke"), Found::Absent);
        }
    }

    #[test]
    fn a_torn_slot_hides_a_key_but_not_its_neighbours() {
        let mut bucket = [0; BUCKET_LEN];
        bucket[..SLOT_LEN].copy_from_slice(&slot(b"torn", 1).to_wire());
        bucket[SLOT_LEN..2 * SLOT_LEN].copy_from_slice(&slot(b"whole", 2).to_wire());
        bucket[SLOT_LEN - 1] = 1;
        assert_eq!(look_up(&bucket, b"torn"), Found::Torn);
        assert_eq!(look_up(&bucket, b"absent"), Found::Torn);
        assert_eq!(look_up(&bucket, b"whole"), Found::Slot(slot(b"whole", 2)));
    }

    #[test]
    fn both_sides_agree_where_a_key_is() {
        let buckets = NonZeroU32::new(1000).unwrap();
        // CRC-32's check value.
        assert_eq!(bucket_of(b"123456789", buckets), 0xcbf4_3926 % 1000);
        assert_eq!(bytes_of(3), 1536..2048);
        assert_eq!(bytes_of(u32::MAX).end, 1 << 41);
    }
}
