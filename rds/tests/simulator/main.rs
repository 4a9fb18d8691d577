//! Hosts without a device: two of them, with connections between them that are lost at any time, and
//! peers that lie.
//!
//! Every run follows from its seed, which a failing one prints: `SEED=… cargo test -p rds --test
//! simulator` runs that alone. `LONG=1` runs a hundred thousand of each kind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod flow;
mod host;
mod kernel;
mod schedule;
mod wire;

use std::{env, panic};

use schedule::{Run, Trouble};

/// How many schedules of a kind are run.
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

/// U-P10
#[test]
fn everything_arrives_once_and_in_order() {
    run(Trouble::None);
}

/// U-P10, U-P13: the hosts dial each other as they like.
#[test]
fn nothing_is_lost_with_the_connections() {
    run(Trouble::Loss);
}

/// U-P10, U-P12: sockets are closed, and messages taken back.
#[test]
fn what_is_taken_back_leaves_no_trace() {
    run(Trouble::Cancel);
}

/// U-P16
#[test]
fn a_host_that_lies_harms_nobody() {
    run(Trouble::Hostile);
}

/// U-P13: whoever dials first, and whichever address is lower.
#[test]
fn a_link_and_a_kernel_come_to_a_connection() {
    for seed in seeds() {
        let took = panic::catch_unwind(|| kernel::meet(seed));
        let took = took.unwrap_or_else(|_| unreachable!("SEED={seed} fails"));
        assert!(
            took < std::time::Duration::from_secs(20),
            "SEED={seed}: {took:?}"
        );
    }
}
