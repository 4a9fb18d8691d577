//! Streams and datagrams without a device: a wire with arbitrary delays, and failing or hostile hosts.
//!
//! Each run is determined by its seed, printed on failure: `SEED=… cargo test -p rdma-rsocket-proto --test simulator`
//! repeats a single run. `LONG=1` runs a hundred thousand of each kind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod datagrams;
mod growth;
mod probe;
mod schedule;
mod side;
mod sleepers;
mod wire;

use std::{env, panic};

use schedule::{Run, Trouble};
use sleepers::Sleepers;

/// Seeds of the schedules to run.
fn seeds() -> std::ops::Range<u64> {
    if let Ok(seed) = env::var("SEED") {
        let seed = seed.parse().unwrap();
        return seed..seed + 1;
    }
    if env::var_os("LONG").is_some() {
        0..100_000
    } else {
        0..400
    }
}

/// Returns the numbers of grown receive and send buffers.
fn run(trouble: Trouble) -> [usize; 2] {
    let mut grown = [0; 2];
    for seed in seeds() {
        let result = panic::catch_unwind(|| Run::new(seed, trouble).run());
        assert!(result.is_ok(), "{trouble:?}: SEED={seed} fails");
        for (sum, more) in grown.iter_mut().zip(result.into_iter().flatten()) {
            *sum += more;
        }
    }
    grown
}

#[test]
fn streams_with_any_schedule_deliver_everything() {
    let grown = run(Trouble::None);
    if env::var_os("SEED").is_none() {
        assert!(grown.iter().all(|&grown| grown > 10), "{grown:?}");
    }
}

#[test]
fn host_death_leaves_a_prefix_and_an_error() {
    run(Trouble::Death);
}

#[test]
fn stuck_device_times_out() {
    run(Trouble::Stuck);
}

#[test]
fn hostile_peer_does_no_damage() {
    run(Trouble::Hostile);
}

#[test]
fn sleeping_threads_are_woken_by_their_events() {
    for seed in seeds() {
        let result = panic::catch_unwind(|| Sleepers::new(seed).run());
        assert!(result.is_ok(), "SEED={seed} fails");
    }
}

fn run_datagrams(trouble: datagrams::Trouble) {
    for seed in seeds() {
        let result = panic::catch_unwind(|| datagrams::Run::new(seed, trouble).run());
        assert!(result.is_ok(), "datagrams, {trouble:?}: SEED={seed} fails");
    }
}

#[test]
fn datagrams_with_any_schedule_arrive_once() {
    run_datagrams(datagrams::Trouble::None);
}

#[test]
fn datagrams_to_restarted_host_arrive() {
    run_datagrams(datagrams::Trouble::Loss);
}

#[test]
fn datagrams_of_hostile_host_do_no_damage() {
    run_datagrams(datagrams::Trouble::Hostile);
}
