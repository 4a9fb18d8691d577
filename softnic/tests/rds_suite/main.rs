//! The device tests of `rds`, from the same source as on Soft-RoCE in a guest, on one host of a fabric.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod addresses;
#[path = "../../../rds/tests/device/bidirectional.rs"]
mod bidirectional;
#[path = "../../../rds/tests/device/cq_failure.rs"]
mod cq_failure;
#[path = "../../../rds/tests/device/flood.rs"]
mod flood;
#[path = "../../../rds/tests/device/hostile.rs"]
mod hostile;
#[path = "../../../rds/tests/device/memory.rs"]
mod memory;
#[path = "../../../rds/tests/prober/mod.rs"]
mod prober;
#[path = "../cm_suite/resources.rs"]
mod resources;
#[path = "../../../rds/tests/device/semantics.rs"]
mod semantics;
#[path = "../../../rds/tests/device/sockets.rs"]
mod sockets;
#[path = "../../../rds/tests/device/support.rs"]
mod support;
#[path = "../../../rds/tests/device/tasks.rs"]
mod tasks;
#[path = "../../../rds/tests/device/third_party.rs"]
mod third_party;
#[path = "../../../rds/tests/device/waiting.rs"]
mod waiting;

use std::{net::IpAddr, sync::OnceLock};

use softnic::Fabric;
use support::{
    TEST_TIMEOUT, addr, another_of, any, counter, local, other, pattern, socket, third, v6_pair,
};

/// Puts all threads of the process on a host, before any test starts.
extern "C" fn put_threads_on_a_host() {
    let fabric = FABRIC.get_or_init(Fabric::new);
    let addrs = addresses::ALL.map(|addr| addr.parse::<IpAddr>().unwrap());
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
