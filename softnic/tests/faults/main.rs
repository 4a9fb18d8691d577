//! Faults of programs that use verbs as in C.
//!
//! - `rules`: each rule of an adversarial device, with a program that breaks by it, and the corrected program.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod raw;
mod rules;
