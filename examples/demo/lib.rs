//! The server and the client of the first example, compiled without the command line, and the trace of an exchange.

/// The-geek-in-the-corner's first example, the same files as in the package `examples`.
#[path = "../basic_client_server"]
pub mod basic_client_server {
    pub mod client;
    pub mod endpoint;
    pub mod server;
}

#[path = "../text.rs"]
pub mod text;

pub mod trace;
