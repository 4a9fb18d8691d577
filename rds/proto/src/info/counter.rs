//! Statistics counters: `struct rds_info_counter`.

use super::{AddressFamily, Element, text, write_text};
use crate::wire::Reader;

/// A statistics counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The kernel's name, up to 31 bytes.
    pub name: String,
    /// The value.
    pub value: u64,
}

impl Element for Counter {
    fn size(_: AddressFamily) -> usize {
        40
    }

    fn fits(&self, _: AddressFamily) -> bool {
        true
    }

    fn write(&self, _: AddressFamily, to: &mut Vec<u8>) {
        write_text::<32>(&self.name, to);
        to.extend(self.value.to_ne_bytes());
    }

    fn read(_: AddressFamily, reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            name: text::<32>(reader)?,
            value: u64::from_ne_bytes(reader.bytes()?),
        })
    }
}
