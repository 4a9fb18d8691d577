//! Reasons for which the engine refuses a call.

use std::{error::Error, fmt};

/// Reason for which the engine refuses a call; nothing has changed then.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// There is no object of that kind and number.
    NotFound(&'static str, u32),
    /// The object is in use; the text says by what.
    Busy(&'static str),
    /// An argument is out of range or does not fit the object's state; the text says which.
    Invalid(&'static str),
    /// A queue or a table is full; the text says which.
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
