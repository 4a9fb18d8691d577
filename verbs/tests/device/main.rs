//! Tests of `verbs` on a real device. `cargo xtask test` runs them in the soft-roce guest.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod absent;
mod attributes;
mod capabilities;
mod counters;
mod cqs;
mod datagrams;
mod doorbells;
mod environment;
mod events;
mod extended_posting;
mod failed_calls;
mod hints;
#[path = "../shared/limited_calls.rs"]
mod limited_calls;
mod locked_memory;
mod loopback;
#[path = "../shared/machine.rs"]
mod machine;
mod memory;
mod multicast;
mod objects;
mod on_demand;
mod orders;
mod pyverbs;
mod queue_pairs;
mod rdma;
mod read_depths;
mod scoped;
mod shared_receives;
mod soft_roce_events;
mod teardown;
mod traffic;
mod waiting;
mod windows;
