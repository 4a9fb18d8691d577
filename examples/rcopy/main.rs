//! `rcopy`—Copies a file to a server, over RDMA.
//!
//! Interoperates with librdmacm's program of the same name. Like that program, the server writes any file
//! named by the client, with the server's rights; `--directory` restricts the server to one folder.

mod client;
mod server;

use std::path::PathBuf;

use clap::Parser;

/// Copy a file to a server; without arguments, run the server
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// The file to copy
    #[arg(requires = "server")]
    source: Option<PathBuf>,
    /// Destination; the file's own name by default
    #[arg(value_name = "SERVER[:DESTINATION]")]
    server: Option<String>,
    /// The port
    #[arg(short, long, default_value_t = 7427)]
    port: u16,
    /// As the server: accept only files in this folder
    #[arg(short, long, value_name = "FOLDER", conflicts_with = "source")]
    directory: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match (options.source, options.server) {
        (Some(source), Some(server)) => client::run(&source, &server, options.port),
        _ => server::run(options.directory.as_deref(), options.port),
    }
}
