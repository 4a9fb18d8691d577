//! Long runs of servers: once all peers have left, the process has as much memory and as many descriptors as before.
//!
//! | test | peers |
//! |---|---|
//! | `ended_streams_leave_no_memory` | streams of `rsocket`, connected and closed one after the other |
//! | `strangers_of_a_listener_leave_nothing` | random peers of an `rsocket` listener |
//! | `strangers_of_an_event_loop_leave_nothing` | random peers of a `cm` event loop |
//!
//! Random peers of `rds` are in the swarm. The bytes are those of the allocator, so the tests run one at a time. `LONG=1` runs
//! each for 10 min, and `SOAK_SECONDS` sets another time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocations;
mod event_loop;
#[path = "../services/half_open.rs"]
mod half_open;
mod streams;

use std::{
    env, fs,
    io::{self, Write as _},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use allocations::live_bytes;
use softnic::Fabric;

/// Timeout of everything that must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of rounds of a short run, and those before the first comparison: tables have grown by then.
const ROUNDS: u64 = 12;
const WARM_UP: u64 = 4;

/// Time of a long run.
const LONG: Duration = Duration::from_secs(600);

/// Bytes that may be allocated in addition: tables of the fabric grow by doubling.
const SLACK: usize = 256 << 10;

/// Number of ended connections that the fabric remembers, to know copies of their requests, and the bytes of each.
const REMEMBERED: usize = 1 << 16;
const REMEMBERED_LEN: usize = 160;

/// Permission to run, for one test at a time.
fn run_exclusively() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time of a long run; `None` for a short one.
fn duration() -> Option<Duration> {
    let seconds = env::var("SOAK_SECONDS").ok();
    let seconds = seconds.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    seconds.or_else(|| env::var_os("LONG").map(|_| LONG))
}

/// Resources of the process.
#[derive(Clone, Copy, Debug)]
struct Resources {
    objects: usize,
    locked: u64,
    descriptors: usize,
    bytes: usize,
}

/// Descriptors of threads that begin or end at the time of a count: fewer than the connections of one round.
const OPEN_DESCRIPTORS: usize = 8;

impl Resources {
    fn now(fabric: &Fabric) -> Self {
        let books = fabric.books();
        Self {
            objects: books.len(),
            locked: books.locked_bytes(),
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            bytes: live_bytes(),
        }
    }

    /// Whether nothing has been added, but for the fabric's memory of ended connections.
    fn are_within(&self, before: &Self, ended: usize) -> bool {
        self.objects <= before.objects
            && self.locked <= before.locked
            && self.descriptors <= before.descriptors + OPEN_DESCRIPTORS
            && self.bytes <= before.bytes + SLACK + ended.min(REMEMBERED) * REMEMBERED_LEN
    }
}

/// Makes rounds of `act`, after each of which the resources return to those after the first rounds. A round has at most
/// `connections`.
fn soak(fabric: &Fabric, connections: usize, mut act: impl FnMut()) {
    let (start, limit) = (Instant::now(), duration());
    let mut before: Option<Resources> = None;
    let mut ended = 0;
    for round in 1.. {
        act();
        let is_over = match limit {
            Some(limit) => start.elapsed() >= limit,
            None => round >= ROUNDS,
        };
        match before {
            None if round >= WARM_UP => before = Some(settled(fabric)),
            None => {}
            Some(before) => {
                ended += connections;
                let until = Instant::now() + TEST_TIMEOUT;
                loop {
                    let now = Resources::now(fabric);
                    if now.are_within(&before, ended) {
                        break;
                    }
                    assert!(Instant::now() < until, "round {round}: {before:?}, {now:?}");
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
        if is_over && before.is_some() {
            let now = Resources::now(fabric);
            drop(writeln!(
                io::stdout(),
                "{round} rounds: {before:?}, {now:?}"
            ));
            return;
        }
    }
}

/// The resources once they no longer become fewer.
fn settled(fabric: &Fabric) -> Resources {
    let mut last = Resources::now(fabric);
    loop {
        thread::sleep(Duration::from_millis(300));
        let now = Resources::now(fabric);
        if now.objects >= last.objects && now.descriptors >= last.descriptors {
            return now;
        }
        last = now;
    }
}
