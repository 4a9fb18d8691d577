//! Messages with the address of memory.

use verbs::RemoteToken;

/// Length of every message, in bytes.
pub const ADVERT_LEN: usize = 16;

/// Encodes a memory token in network byte order. The server's go-ahead messages have the same length and no
/// meaningful content.
pub fn to_wire(token: RemoteToken) -> [u8; ADVERT_LEN] {
    let mut wire = [0; ADVERT_LEN];
    wire[..8].copy_from_slice(&token.addr.to_be_bytes());
    wire[8..12].copy_from_slice(&token.rkey.to_be_bytes());
    // Sizes are below 64 KiB.
    let len = u32::try_from(token.len).unwrap_or(u32::MAX);
    wire[12..].copy_from_slice(&len.to_be_bytes());
    wire
}

/// Parses a token. `None` if the length is wrong.
pub fn from_wire(wire: &[u8]) -> Option<RemoteToken> {
    let wire: &[u8; ADVERT_LEN] = wire.try_into().ok()?;
    let (addr, rest) = wire.split_first_chunk()?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let len = rest.first_chunk()?;
    Some(RemoteToken {
        addr: u64::from_be_bytes(*addr),
        len: u32::from_be_bytes(*len).into(),
        rkey: u32::from_be_bytes(*rkey),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advert_layout_matches_c() {
        let token = RemoteToken {
            addr: 0x0102_0304_0506_0708,
            len: 0x0d0e_0f10,
            rkey: 0x090a_0b0c,
        };
        let wire: Vec<u8> = (1..=16).collect();
        assert_eq!(to_wire(token).as_slice(), wire);
        assert_eq!(from_wire(&wire), Some(token));
        assert_eq!(from_wire(&wire[..15]), None);
        assert_eq!(from_wire(&[wire.as_slice(), &[0]].concat()), None);
    }
}
