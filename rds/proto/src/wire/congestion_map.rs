//! Congestion maps.

use std::{fmt, iter};

/// Congestion map: one bit per port of an address, set for congested ports.
#[derive(Clone, PartialEq, Eq)]
pub struct CongestionMap(Box<[u8; Self::SIZE]>);

impl CongestionMap {
    /// Size in bytes.
    pub const SIZE: usize = 8192;

    /// Size as the length field of a header.
    pub const LEN: u32 = 8192;

    /// The encoded map.
    pub fn as_bytes(&self) -> &[u8; Self::SIZE] {
        &self.0
    }

    /// Whether the port is congested.
    pub fn contains(&self, port: u16) -> bool {
        let (byte, bit) = bit_of(port);
        self.0[byte] & bit != 0
    }

    /// Sets or clears the bit of a port; returns whether it has changed.
    pub fn set(&mut self, port: u16, congested: bool) -> bool {
        let (byte, bit) = bit_of(port);
        let before = self.0[byte];
        if congested {
            self.0[byte] |= bit;
        } else {
            self.0[byte] &= !bit;
        }
        self.0[byte] != before
    }

    /// Ports set here and clear in `next`, [folded](Self::fold).
    pub fn released(&self, next: &Self) -> u64 {
        // A group of 8 bytes has 64 ports, in the order of the fold.
        let mut released = [0; 8];
        for (before, after) in iter::zip(self.0.chunks_exact(8), next.0.chunks_exact(8)) {
            for (released, (before, after)) in iter::zip(&mut released, iter::zip(before, after)) {
                *released |= before & !after;
            }
        }
        u64::from_le_bytes(released)
    }

    /// Assembles a map from the bodies of its frames; `None` for a wrong total length.
    pub fn decode(bodies: &[impl AsRef<[u8]>]) -> Option<Self> {
        let mut map = Self::default();
        let mut rest = &mut map.0[..];
        for body in bodies {
            let body = body.as_ref();
            let (bit_of, after) = rest.split_at_mut_checked(body.len())?;
            bit_of.copy_from_slice(body);
            rest = after;
        }
        rest.is_empty().then_some(map)
    }

    /// The bit of a port in a 64-bit mask: `port % 64`.
    pub fn fold(port: u16) -> u64 {
        1 << (port % 64)
    }
}

fn bit_of(port: u16) -> (usize, u8) {
    (usize::from(port / 8), 1 << (port % 8))
}

impl Default for CongestionMap {
    fn default() -> Self {
        Self(Box::new([0; Self::SIZE]))
    }
}

impl fmt::Debug for CongestionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let congested = (0..=u16::MAX).filter(|&port| self.contains(port));
        f.debug_set().entries(congested).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_map_bits_count_from_the_lowest() {
        let mut map = CongestionMap::default();
        for (port, byte, value) in [(2, 0, 4), (9, 1, 2), (5000, 625, 1), (65535, 8191, 128)] {
            assert!(map.set(port, true));
            assert!(!map.set(port, true), "it is set already");
            assert_eq!(map.as_bytes()[byte], value);
            assert!(map.contains(port) && !map.contains(port - 1));
        }
        let empty = CongestionMap::default();
        assert_eq!(map.released(&empty), 1 << 2 | 1 << 9 | 1 << 8 | 1 << 63);
        assert_eq!(empty.released(&map), 0);
        assert_eq!(CongestionMap::fold(5000), 1 << 8);
        assert_eq!(format!("{map:?}"), "{2, 9, 5000, 65535}");
        assert!(map.set(9, false) && !map.contains(9));
    }

    #[test]
    fn congestion_map_decode_requires_exact_length() {
        let map = CongestionMap::decode(&[[1; 4096], [2; 4096]]).unwrap();
        assert_eq!((map.as_bytes()[4095], map.as_bytes()[4096]), (1, 2));
        assert_eq!(CongestionMap::decode(&[[0; 4096]]), None);
        assert_eq!(CongestionMap::decode(&[[0; 8193]]), None);
    }
}
