//! Private data of programs in messages.

use std::fmt;

/// Maximum length of private data in bytes, reached by a service request.
const MAX_LEN: usize = 216;

/// Private data of a program in a message, at most 216 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; MAX_LEN],
    len: u8,
}

impl PrivateData {
    /// No bytes.
    pub const EMPTY: Self = Self {
        bytes: [0; MAX_LEN],
        len: 0,
    };

    /// Copies bytes; bytes beyond the maximum are dropped.
    pub fn new(bytes: &[u8]) -> Self {
        Self::padded(bytes, bytes.len())
    }

    /// Copies bytes and pads with zeros to a length, as receivers get the whole field of the message.
    pub(super) fn padded(from: &[u8], len: usize) -> Self {
        let mut bytes = [0; MAX_LEN];
        let len = len.min(MAX_LEN);
        for (to, from) in bytes.iter_mut().zip(from).take(len) {
            *to = *from;
        }
        let len = u8::try_from(len).unwrap_or(u8::MAX);
        Self { bytes, len }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_slice(), f)
    }
}
