//! The server's index: the slot of each key.
//!
//! The table itself is memory read by clients; the index decides the content of each slot.

use std::num::NonZeroU32;

use super::{
    bucket::{SLOTS, bucket_of},
    entry::Entry,
    slot::Slot,
};

/// The keys of all slots, and the number of puts.
#[derive(Debug)]
pub struct Table {
    buckets: NonZeroU32,
    keys: Vec<Option<Box<[u8]>>>,
    puts: u64,
}

impl Table {
    /// Creates an empty index.
    pub fn new(buckets: NonZeroU32) -> Self {
        Self {
            buckets,
            keys: vec![None; buckets.get() as usize * SLOTS],
            puts: 0,
        }
    }

    /// Chooses the slot for an entry, and returns the index and content. `None` if the key's bucket is full.
    pub fn put(&mut self, entry: Entry) -> Option<(usize, Slot)> {
        let first = bucket_of(entry.key(), self.buckets) as usize * SLOTS;
        let bucket = self.keys.get_mut(first..first + SLOTS)?;
        let existing = bucket
            .iter()
            .position(|key| key.as_deref() == Some(entry.key()));
        let index = existing.or_else(|| bucket.iter().position(Option::is_none))?;
        bucket[index] = Some(entry.key().into());
        self.puts += 1;
        let version = self.puts;
        Some((first + index, Slot { version, entry }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bucket::{Found, bytes_of, look_up},
        slot::SLOT_LEN,
    };

    fn entry(key: &str, value: &str) -> Entry {
        Entry::new(key.as_bytes(), value.as_bytes()).unwrap()
    }

    /// An index, and the memory read by clients.
    struct Store {
        table: Table,
        memory: Vec<u8>,
    }

    impl Store {
        fn new(buckets: u32) -> Self {
            let table = Table::new(NonZeroU32::new(buckets).unwrap());
            let memory = vec![0; table.keys.len() * SLOT_LEN];
            Self { table, memory }
        }

        fn put(&mut self, key: &str, value: &str) -> Option<u64> {
            let (index, slot) = self.table.put(entry(key, value))?;
            self.memory[index * SLOT_LEN..][..SLOT_LEN].copy_from_slice(&slot.to_wire());
            Some(slot.version)
        }

        fn get(&self, key: &str) -> Found {
            let bytes = bytes_of(bucket_of(key.as_bytes(), self.table.buckets));
            let bytes = usize::try_from(bytes.start).unwrap()..usize::try_from(bytes.end).unwrap();
            look_up(&self.memory[bytes], key.as_bytes())
        }
    }

    #[test]
    fn put_is_found_and_replaces_an_earlier_one() {
        let mut store = Store::new(64);
        for i in 0..64 {
            assert_eq!(store.put(&format!("key {i}"), "old"), Some(i + 1));
        }
        assert_eq!(store.put("key 7", "new"), Some(65));
        for i in 0..64 {
            let key = format!("key {i}");
            let (value, version) = match i {
                7 => ("new", 65),
                _ => ("old", i + 1),
            };
            let entry = entry(&key, value);
            assert_eq!(store.get(&key), Found::Slot(Slot { version, entry }));
        }
        assert_eq!(store.get("key 64"), Found::Absent);
    }

    #[test]
    fn put_into_a_full_bucket_refuses_a_new_key() {
        let mut store = Store::new(1);
        for key in ["a", "b", "c", "d"] {
            assert!(store.put(key, "").is_some());
        }
        assert_eq!(store.put("e", ""), None);
        assert_eq!(store.get("e"), Found::Absent);
        // Keys already present can still be put, and the refused put was not counted.
        assert_eq!(store.put("b", "again"), Some(5));
    }
}
