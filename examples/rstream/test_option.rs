//! Values of `-T` for programs measuring sockets.

use TestOption::{Async, Blocking, Echo, NonBlocking, Resolve, Sockets, Verify};

/// Mode of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestOption {
    /// The sockets of the system, TCP or UDP.
    Sockets,
    /// Wait for readiness.
    Async,
    /// Blocking calls.
    Blocking,
    /// Non-blocking calls.
    NonBlocking,
    /// Same as the default.
    Resolve,
    /// Check the data.
    Verify,
    /// The server sends all data back.
    Echo,
}

impl TestOption {
    /// Parses a letter or a word. `None` if unknown.
    pub fn read(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "s" | "socket" | "sockets" => Some(Sockets),
            "a" | "async" => Some(Async),
            "b" | "block" | "blocking" => Some(Blocking),
            "n" | "nonblock" | "nonblocking" => Some(NonBlocking),
            "r" | "resolve" => Some(Resolve),
            "v" | "verify" => Some(Verify),
            "e" | "echo" => Some(Echo),
            _ => None,
        }
    }

    /// Whether calls block; the last option takes precedence.
    pub fn are_blocking(said: &[Self]) -> bool {
        let word = |option: &&Self| matches!(option, Blocking | NonBlocking);
        said.iter().rfind(word) == Some(&Blocking)
    }
}
