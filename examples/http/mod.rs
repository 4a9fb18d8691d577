//! Content sent by the HTTP server and checked by the client.

/// Returns `len` bytes in a pattern without repetition at short distances.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}
