//! `cargo xtask bench`: cost of the crates against equivalent C programs, and figures of softnic.
//!
//! Our program and the reference alternate on the same machine or in the same guest, because absolute times vary
//! between machines and boots. Output: a table, `target/bench/NAME.json` and `target/bench/NAME.svg`.

mod anywhere;
mod chart;
mod conditions;
mod connections;
mod counts;
mod guest;
mod idle_connections;
mod noop;
mod perftest;
mod program;
mod rds;
mod row;
mod rstream;
mod scale;
mod softnic;
mod statistics;
mod write_all;

use std::fs;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde_json::json;

use crate::workspace::Workspace;

use conditions::Conditions;
pub(crate) use counts::run as run_counts;
use row::Row;
use soft_roce::setup::{self, Group};

/// A set of benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// Posting and polling: against C on a device that does nothing, and against perftest in guests
    Verbs,
    /// Streams: against librdmacm's rsockets in a guest, and against perftest on two
    Rsocket,
    /// Messages over RDS: against the kernel's, on two guests
    Rds,
    /// Making and ending connections, against cmtime, and a thousand at once; all in a guest
    Cm,
    /// The devices of softnic, on this machine: a connection, 10,000 queue pairs, the device tests
    Softnic,
    /// Many streams, peers and sockets on softnic, on this machine
    Scale,
    /// Unmodified programs on softnic over UDP, on this machine, against the kernel's TCP and UDP
    Anywhere,
    /// Instructions of each kind of work: written to `ci/counts.md`, or compared with it by `--check`
    Counts,
}

impl Name {
    fn text(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Rsocket => "rsocket",
            Self::Rds => "rds",
            Self::Cm => "cm",
            Self::Softnic => "softnic",
            Self::Scale => "scale",
            Self::Anywhere => "anywhere",
            Self::Counts => "counts",
        }
    }
}

/// Runs a set of benchmarks and prints the result. Returns whether every bar is met.
pub(crate) fn run(name: Name, check: bool, host_only: bool, long: bool) -> Result<bool> {
    setup::ensure(&[Group::Build, Group::Bench])?;
    let workspace = Workspace::load()?;
    let folder = workspace.target().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut conditions = Conditions::now();
    let rows = match name {
        Name::Verbs => verbs(&workspace, host_only, &mut conditions)?,
        Name::Rsocket => {
            guest_only(name, host_only)?;
            let mut rows = rstream::measure(&workspace)?;
            rows.extend(idle_connections::measure(&workspace)?);
            rows.extend(write_all::measure(&workspace, long)?);
            rows
        }
        Name::Rds => {
            guest_only(name, host_only)?;
            rds::measure(&workspace)?
        }
        Name::Cm => {
            guest_only(name, host_only)?;
            connections::measure(&workspace)?
        }
        Name::Softnic => softnic::measure(&workspace)?,
        Name::Scale => scale::measure(&workspace)?,
        Name::Anywhere => {
            setup::ensure(&[Group::Tools])?;
            anywhere::measure(&workspace)?
        }
        Name::Counts => return counts::run(&workspace, check).map(|()| true),
    };
    let file = |extension: &str| folder.join(format!("{}.{extension}", name.text()));
    let values: Vec<_> = rows.iter().map(Row::to_json).collect();
    let document = json!({
        "name": name.text(),
        "conditions": conditions.to_json(),
        "rows": values,
    });
    for (file, text) in [
        (file("json"), format!("{document:#}\n")),
        (file("svg"), chart::draw(name.text(), &rows)),
    ] {
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    println!("\n{}\n{conditions}", row::table(&rows));
    println!("{}", file("json").display());
    println!("{}", file("svg").display());
    let missed = rows.iter().filter(|row| row.pass() == Some(false)).count();
    match missed {
        0 => println!("every bar is held"),
        1 => println!("1 bar is missed"),
        _ => println!("{missed} bars are missed"),
    }
    Ok(missed == 0)
}

fn verbs(workspace: &Workspace, host_only: bool, conditions: &mut Conditions) -> Result<Vec<Row>> {
    let programs = noop::Programs::build(workspace)?;
    let mut rows = noop::measure(&programs)?;
    if !host_only {
        setup::ensure(&[Group::Guest, Group::Tools])?;
        let guest = perftest::measure(workspace, &programs)?;
        rows.extend(guest.rows);
        conditions.rounds = Some(guest.rounds);
    }
    Ok(rows)
}

/// Refuses `--host-only` for a set without host measurements, and checks for the guest's tools.
fn guest_only(name: Name, host_only: bool) -> Result<()> {
    let name = name.text();
    ensure!(
        !host_only,
        "`bench {name}` has no measurement on the host: leave out --host-only"
    );
    setup::ensure(&[Group::Guest, Group::Tools])
}
