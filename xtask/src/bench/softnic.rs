//! Figures of softnic on this machine: a connection, ten thousand queue pairs, and the device tests of the four crates.
//!
//! The measured program is `softnic/benches/fabric`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::program;
use super::row::{Bar, Row};
use crate::workspace::{self, Workspace};
use soft_roce::process;

/// The device tests of the four crates, and the limits of their run times in seconds.
const SUITES: [&str; 4] = ["verbs_suite", "cm_suite", "rsocket_suite", "rds_suite"];
const VERBS_LIMIT: f64 = 20.0;
const SUITES_LIMIT: f64 = 90.0;

/// Limits: of a round trip in nanoseconds, of a write as a multiple of a copy, and of the set-up in seconds. A write is made
/// in words, each with an atomic store; a copy by vector instructions.
const ROUND_TRIP_LIMIT: f64 = 3000.0;
const WRITE_LIMIT: f64 = 4.0;
const SETUP_LIMIT: f64 = 10.0;

/// Limit of an operation with checks, as a multiple of the time without.
const CHECKED_LIMIT: f64 = 5.0;

/// Measures all rows.
pub(super) fn measure(workspace: &Workspace) -> Result<Vec<Row>> {
    let program = program::build_ours(workspace, "softnic", "fabric")?;
    let mut rows = Vec::from(connection(&program)?);
    rows.extend(incast(&program)?);
    rows.extend(suites(workspace)?);
    Ok(rows)
}

fn row(case: &str, unit: &'static str, ours: f64, bar: Option<Bar>) -> Row {
    Row {
        case: case.to_owned(),
        unit,
        ours,
        reference: None,
        bar,
    }
}

/// The numbers printed by a case of the program, with the checks of `softnic::Fabric::checked` or without.
fn figures<const COUNT: usize>(program: &Path, case: &str, checks: bool) -> Result<[f64; COUNT]> {
    let mut command = Command::new(program);
    command.arg(case);
    if checks {
        command.env("SOFTNIC_CHECK", "1");
    }
    let Ok(figures) = <[f64; COUNT]>::try_from(program::numbers(&mut command)?) else {
        bail!("`fabric {case}` must print {COUNT} numbers");
    };
    Ok(figures)
}

/// One connection, both ends polled by one thread, without and with checks.
fn connection(program: &Path) -> Result<[Row; 5]> {
    let [round_trip] = figures(program, "round-trip", false)?;
    let [large, small, copy] = figures(program, "write", false)?;
    let [checked_trip] = figures(program, "round-trip", true)?;
    let [checked_large, _, _] = figures(program, "write", true)?;
    let compared = |case, ours, reference, bar| Row {
        reference: Some(reference),
        ..row(case, "ns", ours, bar)
    };
    let checked = |case, ours, plain| compared(case, ours, plain, Some(Bar::Times(CHECKED_LIMIT)));
    Ok([
        row(
            "round trip of 64 bytes",
            "ns",
            round_trip,
            Some(Bar::Total(ROUND_TRIP_LIMIT)),
        ),
        compared(
            "write of 64 KiB, MTU 4096, against memcpy",
            large,
            copy,
            Some(Bar::Times(WRITE_LIMIT)),
        ),
        compared(
            "write of 64 KiB, MTU 1024, against memcpy",
            small,
            copy,
            None,
        ),
        checked("round trip of 64 bytes, checked", checked_trip, round_trip),
        checked("write of 64 KiB, checked", checked_large, large),
    ])
}

/// Ten thousand queue pairs between 100 hosts.
fn incast(program: &Path) -> Result<[Row; 3]> {
    let [setup, bytes, incast] = figures(program, "incast", false)?;
    Ok([
        row(
            "10000 queue pairs of 100 hosts, set-up",
            "s",
            setup,
            Some(Bar::Total(SETUP_LIMIT)),
        ),
        row("10000 queue pairs of depth 8, each", "bytes", bytes, None),
        row(
            "99 hosts to one, 7920 messages, loss 0.1 %",
            "s",
            incast,
            None,
        ),
    ])
}

/// Run times of the device tests on softnic, in the profile of `cargo test`.
fn suites(workspace: &Workspace) -> Result<[Row; 2]> {
    let test = |suite: Option<&str>| {
        let mut cargo = workspace::cargo(workspace);
        cargo.args(["test", "--quiet", "--locked", "--package", "softnic"]);
        match suite {
            Some(suite) => cargo.args(["--test", suite]),
            None => cargo.args(SUITES.iter().flat_map(|suite| ["--test", suite])),
        };
        cargo
    };
    process::run(test(None).arg("--no-run")).context("the suites do not build")?;
    let mut times = [0.0; SUITES.len()];
    for (time, suite) in times.iter_mut().zip(SUITES) {
        let start = Instant::now();
        process::output(&mut test(Some(suite))).with_context(|| format!("{suite} has failed"))?;
        *time = start.elapsed().as_secs_f64();
    }
    let [verbs, ..] = times;
    let all = times.iter().sum();
    Ok([
        row(
            "device tests of verbs",
            "s",
            verbs,
            Some(Bar::Total(VERBS_LIMIT)),
        ),
        row(
            "device tests of verbs, cm, rsocket and rds",
            "s",
            all,
            Some(Bar::Total(SUITES_LIMIT)),
        ),
    ])
}
