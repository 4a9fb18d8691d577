//! Running many schedules, and making a failed one smaller.

use std::{
    any::Any,
    env,
    io::{self, Write},
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use crate::{HOSTS, schedule::Schedule, tally::Tally};

/// The variable with the only schedule to run.
const VARIABLE: &str = "SWARM_SCHEDULE";

/// The variable with the seeds to run in place of a test's own, such as `10000..20000`.
const SEEDS: &str = "SWARM_SEEDS";

/// Maximum number of runs of the minimizer.
const MAX_ATTEMPTS: u32 = 200;

/// Number of runs of a smaller schedule before the minimizer takes the schedule as passing, where threads decide.
const RUNS: u32 = 3;

/// A broken invariant.
pub(crate) type Violation = String;

/// Runs a schedule.
pub(crate) type Runner = fn(&Schedule) -> Result<Tally, Violation>;

/// Runs a number of schedules by parallel workers, or the seeds or the schedule of a variable. Prints the tally.
///
/// # Panics
/// If a schedule violates an invariant.
pub(crate) fn run(name: &str, count: u64, workers: usize, runner: Runner) {
    if let Ok(text) = env::var(VARIABLE) {
        let schedule = text
            .parse::<Schedule>()
            .unwrap_or_else(|wrong| panic!("{wrong}"));
        match outcome(&schedule, runner) {
            Ok(tally) => print(name, &tally),
            Err(violation) => panic!("{schedule:?}: {violation}"),
        }
        return;
    }
    let seeds = seeds(count);
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new((Tally::default(), None));
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let seed @ 0.. = next.fetch_add(1, Relaxed)
                    && seed < seeds.end
                {
                    let schedule = Schedule::new(seed, HOSTS);
                    let result = outcome(&schedule, runner);
                    let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                    match result {
                        Ok(tally) => total.0 += tally,
                        Err(violation) => {
                            total.0.schedules += 1;
                            total.0.violations += 1;
                            next.store(seeds.end, Relaxed);
                            total.1 = Some((schedule, violation));
                        }
                    }
                }
            });
        }
    });
    let (tally, failed) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    print(name, &tally);
    if let Some((schedule, violation)) = failed {
        let runs = if workers > 1 { RUNS } else { 1 };
        let (schedule, violation) = minimized(schedule, violation, |smaller| {
            (0..runs).find_map(|_| outcome(smaller, runner).err())
        });
        panic!(
            "{schedule:?}: {violation}\nRepeat it with: {VARIABLE}={schedule} cargo test -p softnic --test swarm {name}"
        );
    }
}

/// The seeds of a run: those of the variable, or else the first ones.
fn seeds(count: u64) -> Range<u64> {
    let Ok(text) = env::var(SEEDS) else {
        return 0..env::var_os("LONG").map_or(count, |_| 100 * count);
    };
    parsed(&text).unwrap_or_else(|| panic!("{SEEDS}={text} is no range, such as 10000..20000"))
}

fn parsed(seeds: &str) -> Option<Range<u64>> {
    let (start, end) = seeds.split_once("..")?;
    Some(start.parse().ok()?..end.parse().ok()?)
}

/// Prints past the capture of the test's output.
fn print(name: &str, tally: &Tally) {
    // A closed stderr is no failure of the test.
    drop(writeln!(io::stderr(), "swarm of {name}: {tally}"));
}

/// Runs a schedule; a panic counts as a violation.
fn outcome(schedule: &Schedule, runner: Runner) -> Result<Tally, Violation> {
    panic::catch_unwind(AssertUnwindSafe(|| runner(schedule)))
        .unwrap_or_else(|panic| Err(format!("panic: {}", message(&*panic))))
}

fn message(panic: &dyn Any) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// Makes a failed schedule smaller while it still fails.
fn minimized(
    mut schedule: Schedule,
    mut violation: Violation,
    fails: impl Fn(&Schedule) -> Option<Violation>,
) -> (Schedule, Violation) {
    let mut attempts = 0;
    let mut candidates = schedule.smaller();
    candidates.reverse();
    while let Some(smaller) = candidates.pop()
        && attempts < MAX_ATTEMPTS
    {
        attempts += 1;
        if let Some(found) = fails(&smaller) {
            candidates = smaller.smaller();
            candidates.reverse();
            (schedule, violation) = (smaller, found);
        }
    }
    (schedule, violation)
}

#[test]
fn minimized_schedule_keeps_only_causes_of_the_failure() {
    let complete = (0..)
        .map(|seed| Schedule::new(seed, HOSTS))
        .find(|schedule| {
            schedule.connections > 1 && schedule.messages > 4 && schedule.outages().count() > 1
        })
        .unwrap();
    let needed = complete.outages().last();
    let (schedule, violation) = minimized(complete, "large".to_owned(), |smaller| {
        let has_outage = smaller.outages().any(|outage| Some(outage) == needed);
        (has_outage && smaller.messages >= 3).then(|| "small".to_owned())
    });
    assert_eq!((schedule.connections, schedule.messages), (1, 3));
    assert_eq!(
        schedule.outages().collect::<Vec<_>>(),
        needed.into_iter().collect::<Vec<_>>()
    );
    assert_eq!(schedule.to_string().matches('+').count(), 1, "{schedule}");
    assert_eq!(violation, "small");
}

#[test]
fn range_of_seeds_is_parsed_or_refused() {
    assert_eq!(parsed("10000..20000"), Some(10_000..20_000));
    for wrong in ["", "7", "..7", "7..", "7..x", "0..=7"] {
        assert_eq!(parsed(wrong), None, "{wrong}");
    }
}
