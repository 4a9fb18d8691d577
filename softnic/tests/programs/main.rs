//! Random programs over the safe API of `verbs` on two hosts of a fabric. The memory of a program keeps its bytes: a buffer
//! that the program owns is written by no device, a posted one only as its request describes, and each buffer has one owner.
//!
//! | fault | found by |
//! |---|---|
//! | a buffer is returned while the device has it | the bytes of owned buffers, compared after each step; stale completions |
//! | a request beyond its token | guard slots between the slots of the region |
//! | a window that still opens memory after its end | the bytes of its region |
//! | a write to memory behind a shared reference | the bytes of a frozen buffer in a request |
//! | a write to borrowed memory after its scope | the bytes of the array |
//! | memory is lost | the number of buffers at the end, and the books of the fabric |
//! | fields of a failed completion are read | `imm_data` and others of failed completions |
//! | a completion is lost | requests in flight after the end of the queue pairs |
//! | a queue is used after a failed resize | polls of that queue |
//!
//! A program has one course: the fabric is manual, and one thread runs both hosts. The exception is the step that gives up the
//! handles of a buffer by two threads. A failed program is made smaller while it fails; the panic prints the command that
//! repeats the smallest one. `LONG=1` runs a million programs, and `PROGRAM_SEEDS=10000..20000` those of other seeds.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod end;
mod machine;
mod program;
mod sharing;

use std::{
    any::Any,
    env,
    io::{self, Write},
    ops::Range,
    panic::{self, AssertUnwindSafe},
};

use machine::{Machine, Tally};
use program::Program;

/// The variable with the only program to run.
const VARIABLE: &str = "PROGRAM";

/// The variable with the seeds to run in place of the first ones, such as `10000..20000`.
const SEEDS: &str = "PROGRAM_SEEDS";

/// Number of programs, and with `LONG=1`.
const PROGRAMS: u64 = 3000;
const LONG_PROGRAMS: u64 = 1_000_000;

/// Maximum number of runs of the minimizer.
const MAX_ATTEMPTS: u32 = 500;

/// Runs a program. The violation, if the program's memory changed, or a call panicked.
fn violation(program: &Program, tally: &mut Tally) -> Option<String> {
    let run = AssertUnwindSafe(|| Machine::run(program, tally));
    match panic::catch_unwind(run) {
        Ok(()) => None,
        Err(panic) => Some(message(&*panic).to_owned()),
    }
}

fn message(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}

/// The smallest program found that still fails.
fn minimized(mut program: Program, mut found: String) -> (Program, String) {
    let mut attempts = 0;
    let mut candidates = program.smaller().into_iter();
    while let Some(smaller) = candidates.next()
        && attempts < MAX_ATTEMPTS
    {
        attempts += 1;
        if let Some(text) = violation(&smaller, &mut Tally::default()) {
            candidates = smaller.smaller().into_iter();
            (program, found) = (smaller, text);
        }
    }
    (program, found)
}

fn seeds() -> Range<u64> {
    let Ok(text) = env::var(SEEDS) else {
        return 0..env::var_os("LONG").map_or(PROGRAMS, |_| LONG_PROGRAMS);
    };
    let parsed = text
        .split_once("..")
        .and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    parsed.unwrap_or_else(|| panic!("{SEEDS}={text} is no range, such as 10000..20000"))
}

#[test]
fn memory_of_random_programs_keeps_its_bytes() {
    let mut tally = Tally::default();
    if let Ok(text) = env::var(VARIABLE) {
        let program: Program = text.parse().unwrap_or_else(|wrong| panic!("{wrong}"));
        Machine::run(&program, &mut tally);
        return;
    }
    let seeds = seeds();
    let is_short = seeds.end.saturating_sub(seeds.start) < PROGRAMS;
    for seed in seeds {
        let program = Program::new(seed);
        if let Some(found) = violation(&program, &mut tally) {
            let (program, found) = minimized(program, found);
            panic!(
                "{program:?}: {found}\nRepeat it with: {VARIABLE}={program} cargo test -p softnic --test programs random"
            );
        }
    }
    // A closed stderr is no failure of the test.
    drop(writeln!(io::stderr(), "programs: {tally:?}"));
    assert!(is_short || tally.is_complete(), "{tally:?}");
}
