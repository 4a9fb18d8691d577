//! Examples that need a device, and only one. `cargo xtask test` runs them in the soft-roce guest.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod devinfo;
mod pingpong;
mod rdma_xclient;
