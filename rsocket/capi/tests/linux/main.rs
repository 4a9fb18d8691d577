//! Calls on an rsocket compared with the same calls on a TCP socket of this kernel.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

#[path = "../option_table/mod.rs"]
mod option_table;
mod options;
mod receives;
mod sockets;
