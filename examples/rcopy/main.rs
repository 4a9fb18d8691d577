//! `rcopy`—Copies a file to a server, over RDMA.
//!
//! Either side can be librdmacm's program of this name. As that one does, the server writes whatever
//! file the client names, with the server's rights; `--directory` keeps it inside of one folder.

mod client;
mod server;

use std::path::PathBuf;

use clap::Parser;

/// Copy a file to a server; without arguments, be the server
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// The file to copy
    #[arg(requires = "server")]
    source: Option<PathBuf>,
    /// Where to copy it to; the same name if there is none
    #[arg(value_name = "SERVER[:DESTINATION]")]
    server: Option<String>,
    /// The port
    #[arg(short, long, default_value_t = 7427)]
    port: u16,
    /// As the server: take only files in this folder
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
