//! Faults of programs that use verbs as in C.
//!
//! - `checks`: each check of programs, with a program that it reports, and the corrected program.
//! - `early_data`: messages before the event of an established connection.
//! - `lifetime`: the checks of destructions, critical regions and receive queues.
//! - `litmus`: programs of a memory model of RDMA, with all of their outcomes.
//! - `objects`: the rules about shared receive queues, memory windows and requests without bytes.
//! - `placement`: the rules about the time at which a device accesses memory, and about failures.
//! - `protocol`: faults that need no rule: lost datagrams, events before arming, depths of reads.
//! - `rules`: each rule of an adversarial device, with a program that breaks by it, and the corrected program.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod checks;
mod early_data;
mod lifetime;
mod litmus;
mod objects;
mod placement;
mod protocol;
mod raw;
mod rules;
