//! Faults of programs that use verbs as in C.
//!
//! - `checks`: each check of programs, with a program that it reports, and the corrected program.
//! - `lifetime`: the checks of destructions, critical regions and receive queues.
//! - `rules`: each rule of an adversarial device, with a program that breaks by it, and the corrected program.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod checks;
mod lifetime;
mod raw;
mod rules;
