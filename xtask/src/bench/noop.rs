//! Cost of posting and polling on a device whose operations are empty.
//!
//! Our program is `verbs/benches/noop/main.rs`, the reference `reference.c` beside it. Both run with `provider.c`
//! preloaded, so the provider's code is identical.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::program;
use super::row::{Bar, Row};
use crate::workspace::Workspace;

/// The device of `provider.c`.
const DEVICE: &str = "noop0";

/// Operations per timed chunk, chunks per run, and runs of each program.
const COUNT: u32 = 100_000;
const CHUNKS: u32 = 20;
const ROUNDS: usize = 20;

/// Operations in the two runs under callgrind. The difference of the counts excludes start-up.
const FEW: u32 = 16_000;
const MANY: u32 = 32_000;

/// The programs, built.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) ours: PathBuf,
    pub(super) reference: PathBuf,
    provider: PathBuf,
}

/// A case of our program and its reference case. Several contests share a reference case.
struct Contest {
    title: &'static str,
    ours: &'static str,
    reference: &'static str,
    bars: Bars,
}

#[derive(Clone, Copy)]
enum Bars {
    /// Safe posting against a bare loop.
    Bare,
    /// Safe posting against a loop with equivalent bookkeeping.
    Books,
    /// Unsafe posting against a bare loop.
    Floor,
    /// Other memory, queues and calls against a loop with equivalent bookkeeping; with the maximum ratio of instructions.
    Kind(f64),
    /// A pool for several threads, against a free list for one.
    Shared,
}

const CONTESTS: [Contest; 18] = [
    contest("send", "send", "bare-send", Bars::Bare),
    contest("16 sends", "send-batch", "bare-send-batch", Bars::Bare),
    contest(
        "16 sends, one doorbell",
        "send-list",
        "bare-send-list",
        Bars::Bare,
    ),
    contest("receive", "recv", "bare-recv", Bars::Bare),
    contest("send, books", "send", "books-send", Bars::Books),
    contest(
        "16 sends, books",
        "send-batch",
        "books-send-batch",
        Bars::Books,
    ),
    contest(
        "16 sends, one doorbell, books",
        "send-list",
        "books-send-list",
        Bars::Books,
    ),
    contest("receive, books", "recv", "books-recv", Bars::Books),
    contest(
        "write with immediate, region",
        "region-write",
        "books-write-imm",
        Bars::Kind(1.5),
    ),
    contest(
        "send, pool of one thread",
        "local-pool-send",
        "books-pool",
        Bars::Kind(1.5),
    ),
    contest("send, shared pool", "pool-send", "books-pool", Bars::Shared),
    contest(
        "receive, SRQ",
        "srq-recv",
        "books-srq-recv",
        Bars::Kind(1.5),
    ),
    // The requests are kept until all are added, since providers hold a lock from the first to the last call.
    contest(
        "16 sends, extended",
        "extended-send",
        "books-extended",
        Bars::Kind(1.6),
    ),
    contest(
        "16 completions, extended",
        "extended-poll",
        "books-cq-ex",
        Bars::Kind(1.5),
    ),
    contest(
        "send, 1,000 QPs",
        "1000-pairs",
        "1000-pairs",
        Bars::Kind(1.5),
    ),
    contest(
        "send, 10,000 QPs",
        "10000-pairs",
        "10000-pairs",
        Bars::Kind(1.5),
    ),
    contest("unsafe send", "floor-send", "bare-send", Bars::Floor),
    contest("unsafe receive", "floor-recv", "bare-recv", Bars::Floor),
];

const fn contest(
    title: &'static str,
    ours: &'static str,
    reference: &'static str,
    bars: Bars,
) -> Contest {
    Contest {
        title,
        ours,
        reference,
        bars,
    }
}

impl Bars {
    fn instructions(self) -> Option<Bar> {
        match self {
            Self::Bare => Some(Bar::Added(50.0)),
            Self::Kind(times) => Some(Bar::Times(times)),
            Self::Books | Self::Floor | Self::Shared => None,
        }
    }

    /// `None` where only instructions have a bar: those of other kinds depend less on the processor.
    fn time(self) -> Option<Bar> {
        match self {
            Self::Bare => Some(Bar::Times(1.25)),
            Self::Books => Some(Bar::Times(1.05)),
            Self::Floor => Some(Bar::Times(1.02)),
            Self::Kind(_) | Self::Shared => None,
        }
    }
}

/// Queue depths, and the maximum number of bytes per queue pair of that depth in our program.
const MEMORY: [(u32, f64); 2] = [(16, 2048.0), (64, 6144.0)];

impl Programs {
    pub(super) fn build(workspace: &Workspace) -> Result<Self> {
        let sources = workspace.root().join("verbs/benches/noop");
        let folder = workspace.target().join("bench");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let (reference, provider) = (folder.join("reference"), folder.join("noop.so"));
        // The provider defines functions whose null checks the headers declare unnecessary.
        let shared = ["-shared", "-fPIC", "-Wno-attributes"];
        program::build_c(&sources.join("provider.c"), &provider, &shared)?;
        program::build_c(&sources.join("reference.c"), &reference, &["-libverbs"])?;
        Ok(Self {
            ours: program::build_ours(workspace, "rdma-verbs", "noop")?,
            reference,
            provider,
        })
    }

    fn run(&self, side: Side, case: &str, count: u32, chunks: u32) -> Command {
        let mut command = Command::new(match side {
            Side::Ours => &self.ours,
            Side::Reference => &self.reference,
        });
        command
            .args([DEVICE, case, &count.to_string(), &chunks.to_string()])
            .env("LD_PRELOAD", &self.provider);
        command
    }
}

/// The program of a figure: ours or the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Ours,
    Reference,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Reference => "reference",
        }
    }

    pub(super) fn of_name(name: &str) -> Option<Self> {
        [Self::Ours, Self::Reference]
            .into_iter()
            .find(|side| side.name() == name)
    }
}

/// One figure for each case of each program.
type Figures = BTreeMap<(Side, &'static str), f64>;

/// Runs all cases and returns the rows.
pub(super) fn measure(programs: &Programs) -> Result<Vec<Row>> {
    eprintln!("Counting instructions");
    let instructions = instructions(programs)?;
    eprintln!("Taking times");
    let times = times(programs)?;
    let mut rows = Vec::new();
    for Contest {
        title,
        ours,
        reference,
        bars,
    } in CONTESTS
    {
        let row = |unit, figures: &Figures, bar| {
            Ok::<_, anyhow::Error>(Row {
                case: title.to_owned(),
                unit,
                ours: *figures.get(&(Side::Ours, ours)).context("not measured")?,
                reference: figures.get(&(Side::Reference, reference)).copied(),
                bar,
            })
        };
        rows.push(row("instructions", &instructions, bars.instructions())?);
        rows.push(row("ns", &times, bars.time())?);
    }
    for contest in CONTESTS {
        if matches!(contest.bars, Bars::Bare | Bars::Kind(_) | Bars::Shared) {
            rows.push(allocations(programs, &contest)?);
        }
    }
    rows.push(cache_lines(programs, "10000-pairs")?);
    for (depth, limit) in MEMORY {
        let bytes = |side| one_number(&mut programs.run(side, "memory", depth, 1));
        rows.push(Row {
            case: format!("10000 queue pairs of depth {depth}, each"),
            unit: "bytes",
            ours: bytes(Side::Ours)?,
            reference: Some(bytes(Side::Reference)?),
            bar: Some(Bar::Total(limit)),
        });
    }
    Ok(rows)
}

/// Cache lines touched for each operation on one of many queue pairs in turn.
fn cache_lines(programs: &Programs, case: &'static str) -> Result<Row> {
    let lines = |side| {
        let missed = |count| program::cache_misses(&programs.run(side, case, count, 1));
        Ok::<_, anyhow::Error>((missed(MANY)? - missed(FEW)?) / f64::from(MANY - FEW))
    };
    Ok(Row {
        case: "send, 10,000 QPs".to_owned(),
        unit: "cache lines",
        ours: lines(Side::Ours)?,
        reference: Some(lines(Side::Reference)?),
        bar: Some(Bar::Added(1.0)),
    })
}

/// Instructions and allocations of each of our cases, for one operation.
pub(super) fn counts(programs: &Programs) -> Result<BTreeMap<&'static str, Count>> {
    let ours = cases().into_iter().filter(|(side, _)| *side == Side::Ours);
    ours.map(|(side, case)| {
        let instructions = instructions_of(programs, side, case)?;
        let allocations = allocations_of(programs, case)?;
        Ok((
            case,
            Count {
                instructions,
                allocations,
            },
        ))
    })
    .collect()
}

/// Cost of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Count {
    pub(super) instructions: f64,
    pub(super) allocations: f64,
}

/// The distinct cases of both programs.
fn cases() -> BTreeSet<(Side, &'static str)> {
    let pairs = CONTESTS
        .iter()
        .flat_map(|it| [(Side::Ours, it.ours), (Side::Reference, it.reference)]);
    pairs.collect()
}

fn instructions(programs: &Programs) -> Result<Figures> {
    let mut figures = Figures::new();
    for (side, case) in cases() {
        figures.insert((side, case), instructions_of(programs, side, case)?);
    }
    Ok(figures)
}

fn instructions_of(programs: &Programs, side: Side, case: &str) -> Result<f64> {
    let count = |count| program::instructions(&programs.run(side, case, count, 1));
    Ok((count(MANY)? - count(FEW)?) / f64::from(MANY - FEW))
}

/// For each case, the smallest of the runs' median chunk times.
///
/// A disturbance, such as another virtual machine on the same processor, can last for many runs and only adds time, so
/// a median over the runs would measure the disturbance. The minimum over chunks would measure luck: a processor
/// occasionally executes one of the C loops in a cycle less.
fn times(programs: &Programs) -> Result<Figures> {
    let mut figures = Figures::new();
    for _ in 0..ROUNDS {
        for (side, case) in cases() {
            let typical = one_number(&mut programs.run(side, case, COUNT, CHUNKS))?;
            let least = figures.entry((side, case)).or_insert(typical);
            *least = least.min(typical);
        }
    }
    Ok(figures)
}

fn allocations(programs: &Programs, contest: &Contest) -> Result<Row> {
    Ok(Row {
        case: contest.title.to_owned(),
        unit: "allocations",
        ours: allocations_of(programs, contest.ours)?,
        reference: Some(0.0),
        bar: Some(Bar::Total(0.0)),
    })
}

fn allocations_of(programs: &Programs, case: &str) -> Result<f64> {
    let numbers = program::numbers(&mut programs.run(Side::Ours, case, COUNT, 1))?;
    let count = *numbers.get(1).context("a program printed too little")?;
    Ok(count / f64::from(COUNT))
}

fn one_number(command: &mut Command) -> Result<f64> {
    let numbers = program::numbers(command)?;
    numbers
        .first()
        .copied()
        .context("a program printed nothing")
}
