//! The messages: where memory is.

use verbs::RemoteToken;

/// The length of every message.
pub const ADVERT_LEN: usize = 16;

/// A message that tells where memory is, in network byte order. The server's go-aheads are as long,
/// and what they say means nothing.
pub fn to_wire(token: RemoteToken) -> [u8; ADVERT_LEN] {
    let mut wire = [0; ADVERT_LEN];
    wire[..8].copy_from_slice(&token.addr.to_be_bytes());
    wire[8..12].copy_from_slice(&token.rkey.to_be_bytes());
    // Sizes are less than 64 KiB.
    let len = u32::try_from(token.len).unwrap_or(u32::MAX);
    wire[12..].copy_from_slice(&len.to_be_bytes());
    wire
}

/// Reads what a peer has sent. `None` if it has another length.
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
    fn an_advert_is_laid_out_as_in_c() {
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
