//! Seeded schedules over the whole stack: `cm`, `rsocket` and `rds` between three hosts of a fabric, with lost,
//! duplicated, corrupted and delayed frames, cut links, links going down, and hosts killed and started again.
//!
//! | test | drives | time |
//! |---|---|---|
//! | `connections` | `cm` and `verbs`, all hosts by one thread | virtual; a seed has exactly one course |
//! | `streams` | `rsocket`, with its engine's thread and two threads for each end of a stream | the fabric's, 10 times as fast as real time |
//! | `messages` | `rds`, with an engine's thread for each host | as for `streams` |
//! | `strangers` | random peers of an `rds` engine with little memory, without faults | real |
//!
//! A seed of `streams` and `messages` has the same faults in each run, but not the same order of threads.
//!
//! A run prints its tally. A failed schedule is made smaller while it still fails: fewer connections, fewer messages,
//! fewer faults. The panic prints the violation, and the command that repeats the smallest schedule. `LONG=1` runs a
//! hundred times as many schedules, and `SWARM_SEEDS=10000..20000` those of other seeds.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod connections;
mod messages;
mod outages;
#[path = "../../../rds/tests/prober/mod.rs"]
mod prober;
mod schedule;
mod strangers;
mod streams;
mod swarm;
mod tally;

/// Number of hosts of a schedule.
const HOSTS: usize = 3;

/// Speed of the fabric's time where threads run the schedule. A thread late by 400 ms is late by all retries of the
/// connection manager then.
const SPEED: u32 = 10;

/// Number of schedules that run at the same time where most of their time is waiting.
const AT_ONCE: usize = 8;

#[test]
fn connections_deliver_messages_once_and_in_order() {
    swarm::run("connections", 9400, 1, connections::run);
}

#[test]
fn streams_deliver_bytes_in_order() {
    swarm::run("streams", 300, AT_ONCE, streams::run);
}

#[test]
fn messages_are_delivered_once_and_in_order() {
    swarm::run("messages", 300, AT_ONCE, messages::run);
}
