//! Encoding of the size of a table of mappings in eight bits.
//!
//! Exact up to 128; above, in units of 256, rounded down.

/// Maximum encodable size.
pub const MAX_SCALED: u16 = 0x7f << 8;

/// Encodes a size, at most [`MAX_SCALED`].
pub fn encode(size: u16) -> u8 {
    match u8::try_from(size) {
        Ok(exact) if exact <= 0x80 => exact,
        _ => {
            let [units, _] = size.min(MAX_SCALED).to_be_bytes();
            0x80 | units
        }
    }
}

/// Decodes a size.
pub fn decode(scaled: u8) -> u16 {
    if scaled <= 0x80 {
        scaled.into()
    } else {
        u16::from(scaled & 0x7f) << 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaled_size_matches_the_table() {
        for (size, scaled, back) in [
            (0, 0, 0),
            (1, 1, 1),
            (127, 127, 127),
            (128, 0x80, 128),
            (129, 0x80, 128),
            (255, 0x80, 128),
            (256, 0x81, 256),
            (300, 0x81, 256),
            (512, 0x82, 512),
            (32512, 0xff, 32512),
            (40000, 0xff, 32512),
            (u16::MAX, 0xff, 32512),
        ] {
            assert_eq!(encode(size), scaled, "{size}");
            assert_eq!(decode(scaled), back, "{scaled:#x}");
        }
    }

    #[test]
    fn scaled_size_round_trips() {
        for scaled in 0..=u8::MAX {
            assert_eq!(encode(decode(scaled)), scaled);
        }
    }
}
