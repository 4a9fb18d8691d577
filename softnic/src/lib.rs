//! RDMA devices in a test's own process: no kernel module, no root, no guest.
//!
//! - [`wire`] has the frames of `RoCEv2`: encoding, decoding and their checksums.
//! - [`engine`] is a device without I/O and without a clock: the transport.
//!
//! # What works today
//!
//! Frames and the transport. The fabric and the functions of libibverbs follow.

pub mod engine;
pub mod wire;
