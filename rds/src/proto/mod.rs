//! The protocol without I/O: frames and completions in, requests out.
//!
//! Free of devices, threads and clocks, so the same code runs over RDMA, in a simulator and under a
//! fuzzer.

pub mod connection;
pub mod control;
mod host;
pub mod link;
pub mod node;
mod pending_set;
mod socket_id;
pub mod wire;

pub(crate) use host::Host;
pub(crate) use pending_set::PendingSet;
pub use socket_id::SocketId;
