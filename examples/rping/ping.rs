//! Content of a ping.

/// Start of the text.
const TEXT: &str = "rdma-ping-";

/// First fill character.
const FIRST: u8 = b'A';
const LAST: u8 = b'z';

/// Minimum size of a ping, in bytes: room for the number, as in C.
pub const MIN_SIZE: usize = "rdma-ping-%d: ".len() + 1 + "2147483647".len() + 1;

/// Maximum size of a ping, in bytes.
pub const MAX_SIZE: usize = 64 * 1024 - 1;

/// Content of a ping: a text different for each number, with a terminating zero.
pub fn ping(number: u64, size: usize) -> Vec<u8> {
    let count = LAST - FIRST + 1;
    // The remainder is below `count`, a byte.
    let start = u8::try_from(number % u64::from(count)).unwrap_or(0);
    let letters = (0..count).cycle().skip(start.into()).map(|n| FIRST + n);
    let mut bytes: Vec<u8> = format!("{TEXT}{number}: ")
        .bytes()
        .chain(letters)
        .take(size.saturating_sub(1))
        .collect();
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_matches_c() {
        assert_eq!(ping(0, 20), b"rdma-ping-0: ABCDEF\0");
        assert_eq!(ping(57, 20), b"rdma-ping-57: zABCD\0");
        assert_eq!(ping(58, 20), b"rdma-ping-58: ABCDE\0");
        assert_eq!(ping(3, 80).len(), 80);
        assert_eq!(ping(u64::MAX, MIN_SIZE).len(), MIN_SIZE);
        assert_eq!(MIN_SIZE, 26);
    }
}
