//! Tests of `cm` on a real device. `cargo xtask test` runs these tests in the soft-roce guest.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod connections;
mod datagrams;
mod depths;
mod endpoints;
mod environment;
mod event_loop;
mod faults;
mod hints;
mod identifiers;
#[path = "../../../verbs/tests/shared/machine.rs"]
mod machine;
mod overtaking;
mod pyverbs;
mod refused_batches;
#[path = "../shared/resources.rs"]
mod resources;
mod shared_queues;
mod support;
mod tasks;
#[path = "../shared/unresponsive_hosts.rs"]
mod unresponsive_hosts;

use support::local;
