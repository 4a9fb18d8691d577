//! Tests of `cm` on a real device. `cargo xtask test` runs them in the soft-roce guest.

mod connections;
