//! What the HTTP server sends, and the client compares.

/// So many bytes, of which any piece is unlike those near it.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}
