//! The examples on two hosts: each test boots two soft-roce guests. `cargo xtask test` runs these tests.

mod basic_client_server;
mod faults;
mod frames;
mod guests;
mod interop;
mod kernel_rds;
mod link;
mod pingpong;
mod stream_faults;
