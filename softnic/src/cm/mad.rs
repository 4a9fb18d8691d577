//! Common frame of all messages: a management datagram (MAD) of 256 bytes, and access to fields by offset.

/// Length of a MAD in bytes.
pub const MAD_LEN: usize = 256;

/// Length of the common header of all classes.
const HEADER_LEN: usize = 24;

/// Length of the class-specific data.
const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

/// Management class of communication management, and version of the class.
const CLASS: u8 = 0x07;
const CLASS_VERSION: u8 = 2;

/// Version of the common header.
const BASE_VERSION: u8 = 1;

/// `Send`, the only method of the class.
const SEND: u8 = 0x03;

/// An encoded MAD of the class. Offsets count from the start of the class-specific data, as in the specification's
/// tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mad {
    /// Transaction id; an answer repeats the id of the request.
    pub(super) tid: u64,
    /// Attribute id: the kind of message.
    pub(super) attribute: u16,
    /// Vendor options, in requests and replies.
    pub(super) modifier: u32,
    data: [u8; DATA_LEN],
}

impl Mad {
    pub(super) fn new(tid: u64, attribute: u16) -> Self {
        Self {
            tid,
            attribute,
            modifier: 0,
            data: [0; DATA_LEN],
        }
    }

    /// Decodes a MAD; `None` for another class, version, method or length.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; MAD_LEN] = bytes.try_into().ok()?;
        let (header, data) = bytes.split_at(HEADER_LEN);
        if header[..4] != [BASE_VERSION, CLASS, CLASS_VERSION, SEND] {
            return None;
        }
        Some(Self {
            tid: u64::from_be_bytes(header[8..16].try_into().ok()?),
            attribute: u16::from_be_bytes(header[16..18].try_into().ok()?),
            modifier: u32::from_be_bytes(header[20..24].try_into().ok()?),
            data: data.try_into().ok()?,
        })
    }

    pub(super) fn encode(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, SEND]);
        bytes[8..16].copy_from_slice(&self.tid.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        bytes[HEADER_LEN..].copy_from_slice(&self.data);
        bytes
    }

    /// `N` bytes at an offset; bytes beyond the end are zero.
    pub(super) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let rest = self.data.get(at..).unwrap_or_default();
        rest.first_chunk().copied().unwrap_or([0; N])
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(super) fn u24(&self, at: usize) -> u32 {
        let [high, middle, low] = self.array(at);
        u32::from_be_bytes([0, high, middle, low])
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    /// `width` bits of a byte, above the lowest `shift` bits.
    pub(super) fn bits(&self, at: usize, shift: u8, width: u8) -> u8 {
        let [byte] = self.array(at);
        byte >> shift & mask(width)
    }

    /// Bytes from an offset.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        self.data.get(at..at + len).unwrap_or_default()
    }

    /// Writes bytes at an offset; bytes beyond the end are dropped.
    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        let rest = self.data.get_mut(at..).unwrap_or_default();
        for (to, from) in rest.iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    pub(super) fn put_u16(&mut self, at: usize, value: u16) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn put_u24(&mut self, at: usize, value: u32) {
        let [_, rest @ ..] = value.to_be_bytes();
        self.put(at, &rest);
    }

    pub(super) fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes());
    }

    pub(super) fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &value.to_be_bytes());
    }

    /// Writes `width` bits of a byte, above the lowest `shift` bits.
    pub(super) fn put_bits(&mut self, at: usize, shift: u8, width: u8, value: u8) {
        let [byte] = self.array(at);
        let field = mask(width) << shift;
        self.put(at, &[byte & !field | value << shift & field]);
    }
}

/// The lowest `width` bits.
fn mask(width: u8) -> u8 {
    match width {
        0..8 => (1 << width) - 1,
        _ => u8::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_mad_has_the_layout_of_the_specification() {
        let mut mad = Mad::new(0x0102_0304_0506_0708, 0x10);
        mad.modifier = 0x0a0b_0c0d;
        mad.put_bits(43, 3, 5, 0b1_0001);
        mad.put_bits(43, 0, 1, 1);
        let bytes = mad.encode();
        assert_eq!(bytes[..8], [1, 7, 2, 3, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[16..24], [0, 0x10, 0, 0, 10, 11, 12, 13]);
        assert_eq!(bytes[24 + 43], 0b1000_1001);
        assert_eq!(Mad::decode(&bytes), Some(mad));
    }

    #[test]
    fn other_classes_and_lengths_are_no_messages() {
        let bytes = Mad::new(1, 0x10).encode();
        assert_eq!(Mad::decode(&bytes[1..]), None);
        for at in 0..4 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Mad::decode(&other), None, "byte {at}");
        }
    }
}
