//! Simulation without devices: two hosts with unreliable connections, and hostile peers.
//!
//! Each run is determined by its seed, printed on failure: `SEED=… cargo test -p rdma-rds-proto --test
//! simulator` repeats the run. `LONG=1` runs 100,000 seeds of each kind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flow;
mod host;
mod kernel;
mod schedule;
mod wire;

use std::{env, panic};

use schedule::{Run, Trouble};

/// Range of seeds.
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

fn run(trouble: Trouble) {
    for seed in seeds() {
        let result = panic::catch_unwind(|| Run::new(seed, trouble).run());
        assert!(result.is_ok(), "{trouble:?}: SEED={seed} fails");
    }
}

#[test]
fn messages_are_delivered_once_and_in_order() {
    run(Trouble::None);
}

/// The hosts dial at any time.
#[test]
fn reconnects_lose_no_messages() {
    run(Trouble::Loss);
}

/// Sockets are closed, and messages cancelled.
#[test]
fn cancel_leaves_no_trace() {
    run(Trouble::Cancel);
}

#[test]
fn hostile_peer_affects_no_other_peer() {
    run(Trouble::Hostile);
}

/// With any order of dialing and of addresses.
#[test]
fn link_connects_with_a_kernel() {
    for seed in seeds() {
        let took = panic::catch_unwind(|| kernel::connect(seed));
        let took = took.unwrap_or_else(|_| unreachable!("SEED={seed} fails"));
        assert!(
            took < std::time::Duration::from_secs(20),
            "SEED={seed}: {took:?}"
        );
    }
}
