//! The client of a small key-value store, explained in `README.md`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use kv_store::{client::Client, entry::Entry};

/// Looks up keys in a server's memory, and stores entries there
#[derive(Parser)]
#[command(name = "kv-client")]
struct Options {
    /// The server's address, or its name
    server: String,
    /// The server's port
    #[arg(short, long, default_value_t = 7480)]
    port: u16,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Look up a key
    Get {
        /// The key
        key: String,
    },
    /// Store a value
    Put {
        /// The key
        key: String,
        /// The value
        value: String,
    },
}

fn main() -> ExitCode {
    // The events selected by the variable RUST_LOG, such as `cm=debug`.
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("{err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let mut client = Client::connect((options.server.as_str(), options.port))?;
    match &options.action {
        Action::Put { key, value } => {
            let version = client.put(Entry::new(key.as_bytes(), value.as_bytes())?)?;
            println!("{key} is stored as version {version}");
        }
        Action::Get { key } => {
            let found = client.get(key.as_bytes())?;
            if client.torn() > 0 {
                println!("read again during a put");
            }
            let slot = found.with_context(|| format!("there is no {key}"))?;
            // The bytes come from a peer: no control characters for the terminal.
            let value = String::from_utf8_lossy(slot.entry.value());
            println!("{key} = {}, version {}", value.escape_debug(), slot.version);
        }
    }
    client.disconnect()
}
