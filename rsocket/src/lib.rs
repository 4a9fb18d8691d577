//! The rsockets protocol: sockets over RDMA, wire-compatible with librdmacm's.
//!
//! So far this is the protocol itself, in [`proto`].
#![forbid(unsafe_code)]

pub mod proto;
