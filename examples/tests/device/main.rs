//! Examples on a single device. `cargo xtask test` runs these tests in the soft-roce guest.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counters;
mod devinfo;
mod namespaces;
mod pingpong;
mod rdma_xclient;
