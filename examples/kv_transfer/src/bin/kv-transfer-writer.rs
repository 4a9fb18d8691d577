//! A writer: writes pages to readers under their leases.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;

use kv_transfer::{LeaseId, Options, PageSet, Writer, WriterEvent};

/// Writes pages to readers by RDMA, until all readers have ended
#[derive(Parser)]
#[command(name = "kv-transfer-writer")]
struct Arguments {
    /// Addresses of the readers
    #[arg(required = true)]
    readers: Vec<String>,
    /// The port
    #[arg(short, long, default_value_t = 7490)]
    port: u16,
    /// Length of a page in bytes, as at the readers
    #[arg(long, default_value_t = 65_536)]
    page_len: u32,
    /// Seconds to wait for a reader that does not listen yet
    #[arg(long, default_value_t = 10)]
    wait: u64,
    /// Queue pairs to each reader, at most 4
    #[arg(long, default_value_t = 2)]
    lanes: usize,
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
    let options = Options {
        lanes: arguments.lanes,
        ..Options::default()
    };
    let mut writer = Writer::new(256, arguments.page_len, options)?;
    // Random: process ids are the same on several hosts.
    let session = RandomState::new().build_hasher().finish();
    for reader in &arguments.readers {
        connect(&mut writer, reader, arguments, session)?;
    }
    let mut remaining = arguments.readers.len();
    let mut pages = BTreeMap::new();
    while remaining > 0 {
        let Some(event) = writer.next_event(Duration::from_secs(1))? else {
            continue;
        };
        match event {
            WriterEvent::Granted {
                lease,
                tag,
                pages: count,
            } => {
                if let Some(sources) = write(&mut writer, lease, tag, count) {
                    pages.insert(lease, sources);
                }
            }
            WriterEvent::Written(lease) => {
                println!("{lease:?} is written");
                give_back(&mut writer, pages.remove(&lease));
            }
            WriterEvent::Ended(lease, cause) => {
                println!("{lease:?} has ended: {cause}");
                give_back(&mut writer, pages.remove(&lease));
            }
            WriterEvent::Lost(peer, reason) => {
                println!("{peer:?} has ended: {reason}");
                remaining -= 1;
            }
        }
    }
    Ok(())
}

/// Connects to a reader, again while it does not listen yet.
fn connect(
    writer: &mut Writer,
    reader: &str,
    arguments: &Arguments,
    session: u64,
) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(arguments.wait);
    loop {
        match writer.connect((reader, arguments.port), session) {
            Ok(_) => return Ok(()),
            Err(err) if Instant::now() >= until => return Err(err),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Fills pages of the cache and writes them, or cancels the lease if the cache is full.
fn write(writer: &mut Writer, lease: LeaseId, tag: u64, count: usize) -> Option<PageSet> {
    let Some(sources) = writer.pages().take(count) else {
        writer.cancel(lease);
        return None;
    };
    for page in sources.numbers() {
        writer.pages().write(*page, &tag.to_le_bytes());
    }
    if let Err(err) = writer.write(lease, sources.numbers()) {
        eprintln!("{lease:?}: {err:#}");
        writer.pages().give_back(sources);
        return None;
    }
    Some(sources)
}

fn give_back(writer: &mut Writer, pages: Option<PageSet>) {
    if let Some(pages) = pages {
        writer.pages().give_back(pages);
    }
}
