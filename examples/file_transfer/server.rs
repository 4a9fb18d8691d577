//! The server of the-geek-in-the-corner's third example, in safe Rust: it receives files.
//!
//! Interoperates with the C program of the same name.

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    process::ExitCode,
};

use clap::Parser;
use cm::event_loop::EventLoop;

use examples::{
    file_transfer::{incoming::Folder, receiver::Receiver},
    pingpong::options::finish,
};

/// Receives files
#[derive(Parser)]
#[command(name = "file-transfer-server")]
struct Options {
    /// Destination folder
    #[arg(short, long, default_value = ".")]
    folder: PathBuf,
    /// Replace existing files
    #[arg(long)]
    force: bool,
    /// Refuse files above this size, in bytes
    #[arg(long, value_name = "BYTES")]
    max_size: Option<u64>,
    /// Listen on an IPv4 address, instead of an IPv6 one, which serves both on RoCE
    #[arg(short = '4', long)]
    ipv4: bool,
    /// The port to listen on
    #[arg(short, long, default_value_t = 12345)]
    port: u16,
    /// Exit after this number of files, instead of never
    #[arg(short, long, value_name = "COUNT")]
    clients: Option<u32>,
}

fn main() -> ExitCode {
    finish(run(Options::parse()))
}

fn run(options: Options) -> anyhow::Result<()> {
    let receiver = Receiver {
        folder: Folder {
            path: options.folder,
            force: options.force,
            max_size: options.max_size,
        },
    };
    println!("waiting for connections. interrupt (^C) to exit.");
    let any: IpAddr = match options.ipv4 {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut server = EventLoop::listen(receiver, (any, options.port).into())?;
    if let Some(clients) = options.clients {
        server = server.limit(clients);
    }
    server.run().map(drop)
}
