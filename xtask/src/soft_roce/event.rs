//! What happens during a run, as it is told to the one who asked for it.

use std::fmt;
use std::time::Instant;

use clap::ValueEnum;

/// A guest's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Host {
    /// The first, or only, guest: 10.9.0.1.
    A,
    /// The second: 10.9.0.2.
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

/// Where a command prints to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// Something that happened during a run.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at: Instant,
    pub(crate) host: Host,
    pub(crate) kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum EventKind {
    /// The guest is up; its command starts when all are.
    Up,
    /// The command printed this.
    Output(Stream, Vec<u8>),
    /// The command ended with this exit code.
    Ended(i32),
}
