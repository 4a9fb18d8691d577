//! Reliable Datagram Sockets in user space, wire-compatible with the Linux kernel's RDS over IB.
//!
//! So far there is the protocol itself, without any input or output: [`proto`].
#![forbid(unsafe_code)]

pub mod proto;
