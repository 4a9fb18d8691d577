//! The device tests of `verbs`, from the same source as on Soft-RoCE in a guest, on one host of a fabric.
//!
//! Missing modules are in `ci/left_out.md`, each with its reason.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../verbs/tests/device/absent.rs"]
mod absent;
#[path = "../../../verbs/tests/device/attributes.rs"]
mod attributes;
#[path = "../../../verbs/tests/device/capabilities.rs"]
mod capabilities;
#[path = "../../../verbs/tests/device/cqs.rs"]
mod cqs;
#[path = "../../../verbs/tests/device/datagrams.rs"]
mod datagrams;
#[path = "../../../verbs/tests/device/environment.rs"]
mod environment;
#[path = "../../../verbs/tests/device/events.rs"]
mod events;
#[path = "../../../verbs/tests/device/extended_posting.rs"]
mod extended_posting;
#[path = "../../../verbs/tests/device/hints.rs"]
mod hints;
#[path = "../../../verbs/tests/shared/limited_calls.rs"]
mod limited_calls;
#[path = "../../../verbs/tests/device/loopback.rs"]
mod loopback;
#[path = "../../../verbs/tests/device/memory.rs"]
mod memory;
mod memory_limit;
#[path = "../../../verbs/tests/device/multicast.rs"]
mod multicast;
#[path = "../../../verbs/tests/device/objects.rs"]
mod objects;
#[path = "../../../verbs/tests/device/on_demand.rs"]
mod on_demand;
#[path = "../../../verbs/tests/device/orders.rs"]
mod orders;
#[path = "../../../verbs/tests/device/pyverbs/mod.rs"]
mod pyverbs;
#[path = "../../../verbs/tests/device/queue_pairs.rs"]
mod queue_pairs;
#[path = "../../../verbs/tests/device/rdma.rs"]
mod rdma;
#[path = "../../../verbs/tests/device/read_depths.rs"]
mod read_depths;
#[path = "../../../verbs/tests/device/scoped.rs"]
mod scoped;
#[path = "../../../verbs/tests/device/shared_receives.rs"]
mod shared_receives;
#[path = "../../../verbs/tests/device/teardown.rs"]
mod teardown;
#[path = "../../../verbs/tests/device/traffic.rs"]
mod traffic;
#[path = "../../../verbs/tests/device/waiting.rs"]
mod waiting;
#[path = "../../../verbs/tests/device/windows.rs"]
mod windows;

use std::sync::OnceLock;

use softnic::{Fabric, Host};

/// Puts all threads of the process on a host, before any test starts.
extern "C" fn put_threads_on_a_host() {
    // A test joins a multicast group of the kernel with the address.
    let host = || FABRIC.get_or_init(Fabric::new).host([127, 0, 0, 1].into());
    HOST.get_or_init(host).make_default();
    // Tests run one at a time, as in a guest: some compare the handles of objects made one after another.
    // SAFETY: no other thread uses the environment before `main`.
    unsafe { std::env::set_var("RUST_TEST_THREADS", "1") };
}

/// The fabric of all tests, which is never dropped.
static FABRIC: OnceLock<Fabric> = OnceLock::new();

/// The host of all threads.
static HOST: OnceLock<Host> = OnceLock::new();

// The C library calls the functions of `.init_array` once, before `main`. Their arguments are ignored here. The
// standard library's locks and threads work by then.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = put_threads_on_a_host;
