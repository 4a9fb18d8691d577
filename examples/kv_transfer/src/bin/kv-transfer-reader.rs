//! A reader: asks each writer for pages, and prints each arrival.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

use std::{
    collections::BTreeMap,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::ensure;
use clap::Parser;

use kv_transfer::{LeaseId, Options, PageSet, PeerId, Reader, ReaderEvent};

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
    /// Leases of a writer at the same time, at most 8
    #[arg(long, default_value_t = 2)]
    ahead: u64,
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

/// The leases of a writer.
struct Progress {
    granted: u64,
    /// Leases that have arrived, or ended otherwise.
    ended: u64,
    bytes: u64,
    since: Instant,
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let addr = (arguments.bind.as_str(), arguments.port);
    let mut reader = Reader::bind(addr, 256, arguments.page_len, Options::default())?;
    println!("listening on port {}", arguments.port);
    let mut writers = BTreeMap::new();
    let mut ended = 0;
    while arguments.writers.is_none_or(|count| ended < count) {
        match reader.accept(Duration::from_millis(1)) {
            Ok(Some(peer)) => {
                let progress = writers.entry(peer).or_insert(Progress {
                    granted: 0,
                    ended: 0,
                    bytes: 0,
                    since: Instant::now(),
                });
                grant(&mut reader, peer, arguments, progress);
            }
            Ok(None) => {}
            Err(err) => eprintln!("{err:#}"),
        }
        while let Some(event) = reader.next_event(Duration::from_millis(20))? {
            match event {
                ReaderEvent::Arrived(lease, pages) => {
                    check(&mut reader, lease, &pages)?;
                    let count = pages.numbers().len();
                    println!("{lease:?}: {count} pages");
                    reader.pages().give_back(pages);
                    if let Some(progress) = writers.get_mut(&lease.peer()) {
                        progress.ended += 1;
                        progress.bytes += count as u64 * u64::from(arguments.page_len);
                        grant(&mut reader, lease.peer(), arguments, progress);
                    }
                }
                ReaderEvent::Ended(lease, cause) => {
                    println!("{lease:?} has ended: {cause}");
                    if let Some(progress) = writers.get_mut(&lease.peer()) {
                        progress.ended += 1;
                        grant(&mut reader, lease.peer(), arguments, progress);
                    }
                }
                ReaderEvent::Lost(peer, reason) => {
                    println!("{peer:?} has ended: {reason}");
                    ended += 1;
                }
            }
        }
    }
    Ok(())
}

/// Grants leases up to the number ahead. After the last one has ended, prints the rate and ends the writer.
fn grant(reader: &mut Reader, peer: PeerId, arguments: &Arguments, progress: &mut Progress) {
    let time = Duration::from_millis(arguments.deadline);
    let target = arguments.leases.min(progress.ended + arguments.ahead);
    while progress.granted < target {
        if let Err(err) = reader.grant(peer, progress.granted, arguments.pages, time) {
            eprintln!("no lease for {peer:?}: {err:#}");
            return reader.end(peer);
        }
        progress.granted += 1;
    }
    if progress.ended == arguments.leases {
        let (bytes, time) = (progress.bytes, progress.since.elapsed());
        let rate = u128::from(bytes) / time.as_micros().max(1);
        println!("{peer:?}: {bytes} bytes in {time:.2?}, {rate} MB/s");
        reader.end(peer);
    }
}

/// Compares the start of each page with the tag of the lease.
fn check(reader: &mut Reader, lease: LeaseId, pages: &PageSet) -> anyhow::Result<()> {
    let tag = u64::from(lease.number() - 1);
    for &page in pages.numbers() {
        let mut start = [0; 8];
        reader.pages().read_start(page, &mut start);
        let found = u64::from_le_bytes(start);
        ensure!(
            found == tag,
            "{lease:?}: page {page} has the tag {found}, not {tag}"
        );
    }
    Ok(())
}
