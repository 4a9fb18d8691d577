//! Events of a run, as passed to the caller's callback.

use std::fmt;
use std::time::Instant;

use clap::ValueEnum;

/// Name of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Host {
    /// The first, or only, guest: 10.9.0.1.
    A,
    /// The second guest: 10.9.0.2.
    B,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

/// Output stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// An event of a run: time, guest and kind.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: Instant,
    pub(crate) host: Host,
    pub(crate) kind: EventKind,
}

/// Kind of an [`Event`].
#[derive(Clone, Debug)]
pub(crate) enum EventKind {
    /// The guest is up; the commands start when all guests are.
    Up,
    /// Output of the command: one line in line mode, otherwise a chunk.
    Output(Stream, Vec<u8>),
    /// Exit code of the command.
    Ended(i32),
}
