//! What both sides are told on the command line.

use clap::{Args, ValueEnum};

/// The port, and what carries the message.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// The port of the server
    #[arg(short, value_name = "port_number", default_value_t = 7471)]
    pub port: u16,
    /// What carries the message
    #[arg(
        short,
        value_name = "communication_type",
        value_enum,
        ignore_case = true,
        default_value = "r"
    )]
    pub communication: Communication,
}

/// What carries the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Communication {
    /// A reliable connection
    R,
    /// An extended reliable connection, which ends in a shared receive queue
    X,
}
