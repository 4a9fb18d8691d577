//! Reliable Datagram Sockets in user space, wire-compatible with the Linux kernel's RDS over IB.
//!
//! So far there is the protocol itself, without any input or output: [`proto`].
//!
//! | tested | where |
//! |---|---|
//! | frames, private data, control messages | beside each in `src/proto`; `tests/fuzz` |
//! | connections: once, in order, and what may go wrong | `src/proto/connection/tests`; `tests/simulator` |
//! | dialling, giving way, waiting | `src/proto/link.rs`; `tests/simulator` |
//! | sockets, congestion | `src/proto/node/tests.rs`; `tests/simulator` |
//!
//! Not in it: credits, which kernels do not advertise, and fragments of other sizes than 4096.
#![forbid(unsafe_code)]

pub mod proto;
