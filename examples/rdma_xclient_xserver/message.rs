//! The message, and constants shared by both sides.

use cm::ConnParam;
use verbs::srq::SrqNum;

/// Length of the message, in bytes.
pub const MESSAGE_LEN: usize = 16;

/// Parameters of the server's answer. The private data is the number of the shared receive queue, or 0
/// without one.
pub fn answer(srq: Option<SrqNum>) -> ConnParam {
    ConnParam::new().private_data(bytes_of(srq))
}

fn bytes_of(srq: Option<SrqNum>) -> [u8; 4] {
    srq.map_or(0, SrqNum::get).to_be_bytes()
}

/// Parses the number in the server's answer. `None` for zeros, as for absent private data.
pub fn srq_in(private_data: &[u8]) -> Option<SrqNum> {
    match u32::from_be_bytes(*private_data.first_chunk()?) {
        0 => None,
        number => SrqNum::new(number).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srq_number_encoding_matches_c() {
        let srq = SrqNum::new(0x0001_0203).ok();
        assert_eq!(bytes_of(srq), [0, 1, 2, 3]);
        // Private data arrives padded.
        assert_eq!(srq_in(&[0, 1, 2, 3, 0, 0, 0]), srq);
        assert_eq!(bytes_of(None), [0; 4]);
        assert_eq!(srq_in(&[0, 1, 2]), None);
        assert_eq!(srq_in(&[0; 196]), None, "the server has none");
        assert_eq!(srq_in(&[1, 0, 0, 0]), None, "it has 24 bits");
    }
}
