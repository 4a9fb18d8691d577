//! Command line options of both sides.

use clap::{Args, ValueEnum};

/// Port and transport.
#[derive(Args, Clone, Copy, Debug)]
pub struct Options {
    /// The port of the server
    #[arg(short, value_name = "port_number", default_value_t = 7471)]
    pub port: u16,
    /// Transport of the message
    #[arg(
        short,
        value_name = "communication_type",
        value_enum,
        ignore_case = true,
        default_value = "r"
    )]
    pub communication: Communication,
}

/// Transport of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Communication {
    /// A reliable connection
    R,
    /// An extended reliable connection, with a shared receive queue
    X,
}
