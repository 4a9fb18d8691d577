//! Cookies: names of exported memory.

/// Name of exported memory: remote key and offset.
///
/// A cookie grants access, and needs the protection of a password.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cookie {
    /// Remote key.
    pub rkey: u32,
    /// Address of the first byte in the registration. Kernels use the offset in the first page.
    pub offset: u32,
}

impl Cookie {
    /// Encoded size in bytes.
    pub const SIZE: usize = 8;

    /// Converts from the integer used by programs.
    pub fn from_u64(cookie: u64) -> Self {
        let [o0, o1, o2, o3, k0, k1, k2, k3] = cookie.to_be_bytes();
        Self {
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            offset: u32::from_be_bytes([o0, o1, o2, o3]),
        }
    }

    /// Converts to the integer used by programs.
    pub fn to_u64(self) -> u64 {
        u64::from(self.offset) << 32 | u64::from(self.rkey)
    }

    /// Encodes for the wire.
    pub fn encode(self) -> [u8; Self::SIZE] {
        // The key comes first on the wire.
        self.to_u64().rotate_right(32).to_be_bytes()
    }

    /// Decodes from the wire.
    pub fn decode(wire: [u8; Self::SIZE]) -> Self {
        Self::from_u64(u64::from_be_bytes(wire).rotate_right(32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_encodes_key_first_on_the_wire() {
        let cookie = Cookie {
            rkey: 0x300,
            offset: 0x100,
        };
        assert_eq!(cookie.to_u64(), 0x0000_0100_0000_0300);
        assert_eq!(cookie.encode(), [0, 0, 3, 0, 0, 0, 1, 0]);
        for (rkey, offset) in [(0, 0), (u32::MAX, 0xfff), (0x1122_3344, u32::MAX)] {
            let cookie = Cookie { rkey, offset };
            assert_eq!(Cookie::from_u64(cookie.to_u64()), cookie);
            assert_eq!(Cookie::decode(cookie.encode()), cookie);
        }
    }
}
