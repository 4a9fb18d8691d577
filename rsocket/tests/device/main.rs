//! Streams and datagrams over a real device, from this host to itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asynchronous;
mod datagrams;
#[path = "../../../cm/tests/shared/deaf.rs"]
mod deaf;
mod endings;
mod floods;
mod growth;
mod handshakes;
mod held;
mod isolation;
mod limits;
mod probe;
mod sockets;
mod streams;
mod support;
mod turns;
mod wire;
mod wrong_keys;

use support::{connected, listening, local, local_v6, often};
