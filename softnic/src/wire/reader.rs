//! Reading integers in network order from a slice.

use super::error::WireError;

/// Unread bytes of a frame, and the name of the header being read, for errors.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    header: &'static str,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            header: "IP header",
        }
    }

    /// Names the header read next.
    pub(super) fn header(&mut self, name: &'static str) {
        self.header = name;
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let truncated = WireError::Truncated(self.header);
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u24(&mut self) -> Result<u32, WireError> {
        let [high, middle, low] = self.array()?;
        Ok(u32::from_be_bytes([0, high, middle, low]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Drops all but the first `len` bytes.
    pub(super) fn truncate(&mut self, len: usize) -> Result<(), WireError> {
        self.rest = self.rest.get(..len).ok_or(WireError::Length)?;
        Ok(())
    }
}

/// The low 24 bits of a number, in network order.
pub(super) fn be24(value: u32) -> [u8; 3] {
    let [_, high, middle, low] = value.to_be_bytes();
    [high, middle, low]
}
