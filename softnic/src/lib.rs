//! RDMA devices in a test's own process: no kernel module, no root, no guest.
//!
//! [`wire`] has the frames of `RoCEv2`: encoding, decoding and their checksums.
//!
//! # What works today
//!
//! Frames only. The transport, the fabric and the functions of libibverbs follow.

pub mod wire;
