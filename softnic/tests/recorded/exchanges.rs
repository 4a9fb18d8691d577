//! Exchanges recorded between two hosts with Linux's rxe, for the tests that play one of the hosts.

use std::time::Duration;

/// A frame of an exchange.
pub(crate) struct Recorded {
    /// Whether the active side has sent the frame.
    pub(crate) is_active: bool,
    /// Time since the first frame.
    pub(crate) at: Duration,
    /// The IP packet.
    pub(crate) packet: Vec<u8>,
}

/// The exchanges of a recording, with their names.
pub(crate) fn exchanges(text: &str) -> Vec<(&str, Vec<Recorded>)> {
    let mut exchanges: Vec<(&str, Vec<Recorded>)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            exchanges.push((name, Vec::new()));
        } else if !line.starts_with('#') {
            let mut words = line.split(' ');
            let [side, at, hex] = std::array::from_fn(|_| words.next().unwrap());
            let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            let (_, frames) = exchanges.last_mut().unwrap();
            frames.push(Recorded {
                is_active: side == "a",
                at: Duration::from_micros(at.parse().unwrap()),
                packet: (0..hex.len()).step_by(2).map(digits).collect(),
            });
        }
    }
    exchanges
}
