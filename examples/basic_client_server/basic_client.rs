//! The client of the-geek-in-the-corner's first example, in safe Rust.
//!
//! Connects to a server, sends one message, receives one and disconnects. Interoperates with the C program of
//! the same name.

use clap::Parser;

use examples::{
    basic_client_server::{
        client,
        endpoint::{Output, die},
    },
    trace,
};

/// Exchanges one message with a server
#[derive(Parser)]
#[command(name = "basic-client")]
struct Options {
    /// The server's address, or its name
    server_address: String,
    /// The server's port, as printed by the server
    server_port: u16,
}

fn main() {
    let options = Options::parse();
    trace::print_selected();
    let run = client::run(
        &options.server_address,
        options.server_port,
        &Output::stdout(),
    );
    if let Err(err) = run {
        die(&err);
    }
}
