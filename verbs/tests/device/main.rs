//! Tests of `verbs` on a real device. `cargo xtask test` runs them in the soft-roce guest.

mod loopback;
mod objects;
mod traffic;
