//! The trace of a connection, compared with the documentation.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use softnic::Fabric;
use tracing_subscriber::{EnvFilter, util::SubscriberInitExt as _};

use super::store::{ADDR, entry, hosts, start_server};
use kv_store::client::Client;

/// The document with the trace.
const TUTORIAL: &str = include_str!("../../README.md");

/// The output of a program with `RUST_LOG`.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `program` with `RUST_LOG=cm=debug`, and returns the lines of this thread, without the times.
fn trace(program: impl FnOnce()) -> Vec<String> {
    let output = Output::default();
    let same = output.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("cm=debug"))
        .with_writer(move || same.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    // With a single subscriber, an event reached first by another thread would never be recorded: `tracing` then asks the
    // subscriber of that thread alone.
    let other = tracing_subscriber::registry().set_default();
    let guard = subscriber.set_default();
    program();
    drop((guard, other));
    let bytes = output.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    text.lines().map(without_key).collect()
}

/// The line with the key 1: keys count the identifiers of the process.
fn without_key(line: &str) -> String {
    let line = line.trim();
    match line.split_once("cm_id{key=") {
        None => line.to_owned(),
        Some((before, after)) => {
            let after = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
            format!("{before}cm_id{{key=1{after}")
        }
    }
}

/// The documented trace.
fn documented(document: &str) -> Vec<&str> {
    let lines = document.lines();
    lines.filter(|line| line.contains(" cm_id{key=1")).collect()
}

#[test]
fn trace_of_the_client_is_the_documented_one() {
    // The numbers of queue pairs are those of the seed.
    let fabric = Fabric::seeded(0);
    let [server, client, _] = hosts(&fabric);
    let serving = start_server(&server, Duration::ZERO, 1);
    let lines = trace(|| {
        let mut store = client.run(|| Client::connect(ADDR).unwrap());
        store.put(entry("green")).unwrap();
        store.disconnect().unwrap();
    });
    assert!(serving.join().unwrap().iter().all(Result::is_ok));
    println!("{}", lines.join("\n"));
    assert_eq!(lines, documented(TUTORIAL));
}
