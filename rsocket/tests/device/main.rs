//! Streams and datagrams over a real device, from this host to itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asynchronous;
mod datagrams;
mod edge_sizes;
mod endings;
mod exits;
mod growth;
mod half_open;
mod handshakes;
mod isolation;
mod leaks;
#[path = "../../../verbs/tests/shared/machine.rs"]
mod machine;
mod mapped_addresses;
mod probe;
mod settings;
mod sockets;
mod stalled_peers;
mod streams;
mod support;
mod tasks;
#[path = "../../../cm/tests/shared/unresponsive_hosts.rs"]
mod unresponsive_hosts;
mod wire;
mod wrong_keys;

use support::{connected, listening, local, local_v6, often};
