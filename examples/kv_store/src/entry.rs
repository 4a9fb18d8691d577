//! A key and its value.

use anyhow::ensure;

/// Maximum length of a key and a value together, in bytes.
pub const ENTRY_LEN: usize = 112;

/// A key and a value, short enough for a slot and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Entry {
    /// # Errors
    /// The key is empty, or the total length is above [`ENTRY_LEN`].
    pub fn new(key: &[u8], value: &[u8]) -> anyhow::Result<Self> {
        let len = key.len() + value.len();
        ensure!(!key.is_empty(), "the key is empty");
        ensure!(
            len <= ENTRY_LEN,
            "key and value have {len} bytes, more than the maximum of {ENTRY_LEN}"
        );
        let (key, value) = (key.to_vec(), value.to_vec());
        Ok(Self { key, value })
    }

    /// The key; never empty.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value; may be empty.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Writes the two lengths and the bytes of both.
    pub(super) fn write(&self, lengths: &mut [u8; 2], bytes: &mut [u8; ENTRY_LEN]) {
        for (to, len) in lengths.iter_mut().zip([self.key.len(), self.value.len()]) {
            *to = u8::try_from(len).expect("an entry is shorter than 256 bytes");
        }
        let (key, rest) = bytes.split_at_mut(self.key.len());
        key.copy_from_slice(&self.key);
        rest[..self.value.len()].copy_from_slice(&self.value);
    }

    /// Parses the format of [`write`](Self::write). `None` if the lengths are invalid.
    pub(super) fn read(lengths: [u8; 2], bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let [key_len, value_len] = lengths.map(usize::from);
        let (key, rest) = bytes.split_at_checked(key_len)?;
        Self::new(key, rest.get(..value_len)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_new_checks_both_lengths() {
        assert!(Entry::new(b"k", &[7; ENTRY_LEN - 1]).is_ok());
        assert!(Entry::new(b"k", b"").is_ok());
        let refused = |key, value| Entry::new(key, value).unwrap_err().to_string();
        assert_eq!(refused(b"", b"v"), "the key is empty");
        assert_eq!(
            refused(b"k", &[7; ENTRY_LEN]),
            "key and value have 113 bytes, more than the maximum of 112"
        );
    }

    #[test]
    fn entry_read_refuses_invalid_lengths() {
        let bytes = [7; ENTRY_LEN];
        for lengths in [[0, 5], [113, 0], [255, 255], [100, 13]] {
            assert_eq!(Entry::read(lengths, &bytes), None, "{lengths:?}");
        }
        assert!(Entry::read([100, 12], &bytes).is_some());
    }
}
