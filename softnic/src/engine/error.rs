//! Errors of the engine.

use std::{error::Error, fmt};

/// Error of a call to the engine. A failed call has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// No object of this kind has this number.
    NotFound(&'static str, u32),
    /// The object is in use; the text names the user.
    Busy(&'static str),
    /// An argument is out of range or does not fit the object's state; the text names the reason.
    Invalid(&'static str),
    /// A queue or a table is full; the text names the queue or table.
    Full(&'static str),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(kind, number) => write!(f, "there is no {kind} {number:#x}"),
            Self::Busy(by) => write!(f, "the object is in use: {by}"),
            Self::Invalid(what) => f.write_str(what),
            Self::Full(what) => write!(f, "there is no room for more {what}"),
        }
    }
}

/// Reads as [`Display`](fmt::Display): `unwrap` and `fn main() -> Result` print it.
impl fmt::Debug for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for EngineError {}
