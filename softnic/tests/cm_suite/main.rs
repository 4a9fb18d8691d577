//! The device tests of `cm`, from the same source as on Soft-RoCE in a guest, on one host of a fabric.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../../../cm/tests/device/connections.rs"]
mod connections;
#[path = "../../../cm/tests/device/datagrams.rs"]
mod datagrams;
#[path = "../../../cm/tests/device/depths.rs"]
mod depths;
#[path = "../../../cm/tests/device/endpoints.rs"]
mod endpoints;
#[path = "../../../cm/tests/device/environment.rs"]
mod environment;
#[path = "../../../cm/tests/device/event_loop.rs"]
mod event_loop;
#[path = "../../../cm/tests/device/faults.rs"]
mod faults;
#[path = "../../../cm/tests/device/hints.rs"]
mod hints;
#[path = "../../../cm/tests/device/identifiers.rs"]
mod identifiers;
#[path = "../../../cm/tests/device/overtaking.rs"]
mod overtaking;
#[path = "../../../cm/tests/device/pyverbs.rs"]
mod pyverbs;
#[path = "../../../cm/tests/device/refused_batches.rs"]
mod refused_batches;
mod resources;
#[path = "../../../cm/tests/device/shared_queues.rs"]
mod shared_queues;
#[path = "../../../cm/tests/device/support.rs"]
mod support;
#[path = "../../../cm/tests/device/tasks.rs"]
mod tasks;
#[path = "../rsocket_suite/unresponsive_hosts.rs"]
mod unresponsive_hosts;

use std::{net::IpAddr, sync::OnceLock};

use softnic::Fabric;
use support::local;

/// Puts all threads of the process on a host, before any test starts.
extern "C" fn put_threads_on_a_host() {
    let addrs: [IpAddr; 2] = [[10, 9, 0, 1].into(), [0xfd00, 9, 0, 0, 0, 0, 0, 1].into()];
    let fabric = FABRIC.get_or_init(Fabric::new);
    fabric.host_with_addrs(&addrs).make_default();
    // Tests run one at a time, as in a guest: some compare counts of the process' objects.
    let variables = [
        ("A", addrs[0].to_string()),
        ("A6", addrs[1].to_string()),
        ("RUST_TEST_THREADS", "1".to_owned()),
    ];
    for (name, value) in variables {
        // SAFETY: no other thread uses the environment before `main`.
        unsafe { std::env::set_var(name, value) };
    }
}

/// The fabric of all tests, which is never dropped.
static FABRIC: OnceLock<Fabric> = OnceLock::new();

// The C library calls the functions of `.init_array` once, before `main`. Their arguments are ignored here. The
// standard library's locks and threads work by then.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = put_threads_on_a_host;
