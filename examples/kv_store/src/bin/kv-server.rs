//! The server of a small key-value store, explained in `README.md`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal"
)]

use std::{
    num::NonZeroU32,
    process::ExitCode,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::bail;
use clap::Parser;
use cm::{Incoming, Listener};
use tracing_subscriber::EnvFilter;

use kv_store::{message::MESSAGE_LEN, server::Store};

/// Keeps a table for lookups by RDMA reads
#[derive(Parser)]
#[command(name = "kv-server")]
struct Options {
    /// The address to listen on
    #[arg(short, long, default_value = "0.0.0.0")]
    bind: String,
    /// The port
    #[arg(short, long, default_value_t = 7480)]
    port: u16,
    /// Number of buckets, of four entries each
    #[arg(long, default_value = "1024")]
    buckets: NonZeroU32,
    /// Exit after this number of clients, instead of never
    #[arg(short, long, value_name = "COUNT")]
    clients: Option<usize>,
    /// Pause in the middle of each put, in milliseconds, so that clients see torn reads
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    slow_puts: u64,
}

/// Maximum number of clients, those with an incomplete handshake included: each has a thread and a queue pair.
const MAX_CLIENTS: usize = 1024;

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
    let listener = Listener::bind((options.bind.as_str(), options.port))?;
    println!("listening on port {}", options.port);
    let mut store = None;
    let mut threads = Vec::new();
    while options.clients.is_none_or(|count| threads.len() < count) {
        let incoming = listener.request()?;
        // Created for the first client, because the device is unknown before.
        let store = match &store {
            Some(store) => Arc::clone(store),
            None => {
                let pause = Duration::from_millis(options.slow_puts);
                let new = Arc::new(Store::new(incoming.pd(), options.buckets, pause)?);
                Arc::clone(store.insert(new))
            }
        };
        // The failure of one client, or the lack of a resource for it, ends no other's connection.
        match admit(incoming, store, threads.len()) {
            Ok(thread) => threads.push(thread),
            Err(err) => eprintln!("a client is refused: {err:#}"),
        }
        if options.clients.is_none() {
            threads.retain(|thread| !thread.is_finished());
        }
    }
    for thread in threads {
        // The panic of a thread has been printed already.
        drop(thread.join());
    }
    Ok(())
}

/// Serves a client in a thread of its own, or rejects it.
fn admit(
    mut incoming: Incoming,
    store: Arc<Store>,
    clients: usize,
) -> anyhow::Result<JoinHandle<()>> {
    if clients >= MAX_CLIENTS {
        incoming.reject(b"too many clients")?;
        bail!("there are {clients} clients");
    }
    if incoming.pd() != store.pd() {
        incoming.reject(b"the table is on another device")?;
        bail!("the table is on another device");
    }
    // Posted before the client is accepted, so that the first message finds a receive.
    incoming.post_recv(incoming.reg_msgs([0; MESSAGE_LEN])?)?;
    let thread = thread::Builder::new().spawn(move || {
        let served = incoming.accept().map_err(Into::into);
        if let Err(err) = served.and_then(|endpoint| store.serve(endpoint)) {
            eprintln!("a client is lost: {err:#}");
        }
    })?;
    Ok(thread)
}
