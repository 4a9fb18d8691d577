//! Costs of many streams, peers and sockets, and of round trips of `rsocket` and `rds`, on softnic.
//!
//! The measured program is `softnic/benches/scale`.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::program;
use super::row::{Bar, Row};
use crate::workspace::Workspace;

const FEW: u32 = 100;
const MANY: u32 = 10_000;

/// Limits: of the 99th percentile of an echo with `MANY` streams, in terms of `FEW`; of the time of an event with idle streams,
/// in terms of one; of the time of a message with many peers and sockets, in terms of one peer.
const ECHO_LIMIT: f64 = 10.0;
const IDLE_LIMIT: f64 = 1.3;
const PEERS_LIMIT: f64 = 1.5;

/// Minimum number of streams set up per second.
const SETUP_RATE: f64 = 1000.0;

/// Limits of the memory for one end of an idle stream, in bytes.
const RESIDENT_LIMIT: f64 = 100.0 * 1024.0;
const PINNED_LIMIT: f64 = 64.0 * 1024.0;

/// Minimum number of messages per second of four pairs of threads, in terms of one. Without a delay of the wire, needs at
/// least three processors.
const PAIRS_RATIO: f64 = 3.0;

/// Limit of the processor time of a message between four pairs of threads, in terms of one.
const PAIRS_TIME_LIMIT: f64 = 1.5;

/// Measures all rows.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let program = program::build_ours(workspace, "softnic", "scale")?;
    let large = stream_count(&program)?;
    let mut rows = Vec::from(streams(&program, large)?);
    rows.extend(idle(&program, large)?);
    rows.extend(messages(&program)?);
    rows.extend(round_trips(&program)?);
    Ok(rows)
}

/// The numbers printed by a case of the program.
fn figures<const COUNT: usize>(program: &Path, case: &[&str]) -> Result<[f64; COUNT]> {
    eprintln!("scale {}", case.join(" "));
    let numbers = program::numbers(Command::new(program).args(case))?;
    let Ok(figures) = <[f64; COUNT]>::try_from(numbers) else {
        bail!("`scale {}` must print {COUNT} numbers", case.join(" "));
    };
    Ok(figures)
}

/// `MANY`, or as many streams as the limit of open descriptors permits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a saturating cast of a whole number"
)]
fn stream_count(program: &Path) -> Result<u32> {
    let [limit] = figures(program, &["limit"])?;
    let large = MANY.min(limit as u32);
    if large < MANY {
        eprintln!("the limit of open descriptors permits {large} streams of {MANY}");
    }
    Ok(large)
}

/// A row without a reference.
fn row(case: String, unit: &'static str, ours: f64, bar: Option<Bar>) -> Row {
    Row {
        case,
        unit,
        ours,
        reference: None,
        bar,
    }
}

fn streams(program: &Path, large: u32) -> Result<[Row; 2]> {
    let [_, small] = figures(program, &["streams", &FEW.to_string()])?;
    let [rate, echo] = figures(program, &["streams", &large.to_string()])?;
    Ok([
        row(
            format!("set-up of {large} streams, each, at most {SETUP_RATE} per second"),
            "ns",
            1e9 / rate,
            Some(Bar::Total(1e9 / SETUP_RATE)),
        ),
        Row {
            reference: Some(small),
            ..row(
                format!("echo on {large} streams, 99th percentile, against {FEW}"),
                "us",
                echo,
                Some(Bar::Times(ECHO_LIMIT)),
            )
        },
    ])
}

fn idle(program: &Path, count: u32) -> Result<[Row; 4]> {
    let [one, ..] = figures::<3>(program, &["idle", "1"])?;
    let [small, ..] = figures::<3>(program, &["idle", &FEW.to_string()])?;
    let [large, resident, registered] = figures(program, &["idle", &count.to_string()])?;
    let event = |count: u32, time: f64| Row {
        reference: Some(one),
        ..row(
            format!("echo by an event set with {count} idle streams, against 1"),
            "ns",
            time,
            Some(Bar::Times(IDLE_LIMIT)),
        )
    };
    Ok([
        event(FEW, small),
        event(count, large),
        row(
            "resident memory of an idle stream".to_owned(),
            "bytes",
            resident,
            Some(Bar::Total(RESIDENT_LIMIT)),
        ),
        row(
            "pinned memory of an idle stream".to_owned(),
            "bytes",
            registered,
            Some(Bar::Total(PINNED_LIMIT)),
        ),
    ])
}

fn messages(program: &Path) -> Result<[Row; 4]> {
    let [one] = figures(program, &["peers", "1", "10"])?;
    let [large] = figures(program, &["peers", "1000", &MANY.to_string()])?;
    let [pair, pair_time] = figures(program, &["pairs", "1"])?;
    let [pairs, pairs_time] = figures(program, &["pairs", "4"])?;
    let [wire_pair, _] = figures(program, &["wire", "1"])?;
    let [wire_pairs, _] = figures(program, &["wire", "4"])?;
    Ok([
        Row {
            reference: Some(one),
            ..row(
                format!("message of 1000 peers to {MANY} sockets, against 1 to 10"),
                "ns",
                large,
                Some(Bar::Times(PEERS_LIMIT)),
            )
        },
        Row {
            reference: Some(pair),
            ..row(
                "messages of four pairs of threads, against one".to_owned(),
                "per second",
                pairs,
                Some(Bar::NotBelow(PAIRS_RATIO)),
            )
        },
        Row {
            reference: Some(wire_pair),
            ..row(
                "the same over a wire with a delay of 1 ms".to_owned(),
                "per second",
                wire_pairs,
                Some(Bar::NotBelow(PAIRS_RATIO)),
            )
        },
        Row {
            reference: Some(pair_time),
            ..row(
                "processor time of a message of four pairs, against one".to_owned(),
                "ns",
                pairs_time,
                Some(Bar::Times(PAIRS_TIME_LIMIT)),
            )
        },
    ])
}

fn round_trips(program: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (case, name) in [("stream", "a stream"), ("messages", "RDS")] {
        let [round_trip, block] = figures(program, &[case])?;
        rows.push(row(
            format!("round trip of 64 bytes over {name}"),
            "ns",
            round_trip,
            None,
        ));
        rows.push(row(
            format!("4096 bytes one way over {name}"),
            "ns",
            block,
            None,
        ));
    }
    Ok(rows)
}
