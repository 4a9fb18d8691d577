//! A reader: asks each writer for pages, and prints each arrival.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

use std::{process::ExitCode, time::Duration};

use clap::Parser;

use kv_transfer::{Options, PeerId, Reader, ReaderEvent};

/// Asks writers for pages, which they write by RDMA
#[derive(Parser)]
#[command(name = "kv-transfer-reader")]
struct Arguments {
    /// The address to listen on
    #[arg(short, long, default_value = "0.0.0.0")]
    bind: String,
    /// The port
    #[arg(short, long, default_value_t = 7490)]
    port: u16,
    /// Length of a page in bytes, the same at all writers
    #[arg(long, default_value_t = 65_536)]
    page_len: u32,
    /// Number of leases for each writer
    #[arg(long, default_value_t = 16)]
    leases: u64,
    /// Pages of each lease, at most 24
    #[arg(long, default_value_t = 16)]
    pages: usize,
    /// Milliseconds until a lease is cancelled
    #[arg(long, default_value_t = 10_000)]
    deadline: u64,
    /// Exit after this number of writers, instead of never
    #[arg(short, long, value_name = "COUNT")]
    writers: Option<usize>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("{err:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let addr = (arguments.bind.as_str(), arguments.port);
    let mut reader = Reader::bind(addr, 256, arguments.page_len, Options::default())?;
    println!("listening on port {}", arguments.port);
    let mut ended = 0;
    while arguments.writers.is_none_or(|count| ended < count) {
        match reader.accept(Duration::from_millis(1)) {
            Ok(Some(peer)) => ask(&mut reader, peer, arguments, 0),
            Ok(None) => {}
            Err(err) => eprintln!("{err:#}"),
        }
        while let Some(event) = reader.next_event(Duration::from_millis(20))? {
            match event {
                ReaderEvent::Arrived(lease, pages) => {
                    println!("{lease:?}: {} pages", pages.numbers().len());
                    reader.pages().give_back(pages);
                    ask(&mut reader, lease.peer(), arguments, lease.number().into());
                }
                ReaderEvent::Ended(lease, cause) => println!("{lease:?} has ended: {cause}"),
                ReaderEvent::Lost(peer, reason) => {
                    println!("{peer:?} has ended: {reason}");
                    ended += 1;
                }
            }
        }
    }
    Ok(())
}

/// Grants the next lease, or ends the writer after the last one.
fn ask(reader: &mut Reader, peer: PeerId, arguments: &Arguments, leases: u64) {
    if leases >= arguments.leases {
        return reader.end(peer);
    }
    let time = Duration::from_millis(arguments.deadline);
    if let Err(err) = reader.grant(peer, leases, arguments.pages, time) {
        eprintln!("no lease for {peer:?}: {err:#}");
        reader.end(peer);
    }
}
