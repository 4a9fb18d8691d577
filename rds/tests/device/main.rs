//! Device tests of sockets.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod addresses;
mod bidirectional;
mod cq_failure;
mod flood;
mod hostile;
#[path = "../../../verbs/tests/shared/machine.rs"]
mod machine;
mod memory;
#[path = "../prober/mod.rs"]
mod prober;
#[path = "../../../cm/tests/shared/resources.rs"]
mod resources;
mod semantics;
mod sockets;
mod support;
mod tasks;
mod third_party;
mod waiting;

use support::{
    TEST_TIMEOUT, addr, another_of, any, counter, local, other, pattern, socket, third, v6_pair,
};
