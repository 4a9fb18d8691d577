//! Text written by a peer.

/// Text of a buffer up to the first zero, with control characters escaped.
pub fn text_of(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let printable = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    String::from_utf8_lossy(text)
        .chars()
        .map(printable)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::text_of;

    #[test]
    fn text_of_stops_at_zero_and_escapes_controls() {
        assert_eq!(text_of(b"hello\0garbage"), "hello");
        assert_eq!(text_of(b"no zero"), "no zero");
        assert_eq!(text_of(b"\x1b[2Jwiped\xff"), "\u{fffd}[2Jwiped\u{fffd}");
        assert_eq!(text_of(b""), "");
    }
}
