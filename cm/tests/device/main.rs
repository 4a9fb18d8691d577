//! Tests of `cm` on a real device. `cargo xtask test` runs these tests in the soft-roce guest.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod connections;
mod datagrams;
#[path = "../shared/deaf.rs"]
mod deaf;
mod endpoints;
mod faults;
mod hints;
mod identifiers;
mod overtaking;
mod pyverbs;
mod resources;
mod support;
mod tasks;

use support::local;
