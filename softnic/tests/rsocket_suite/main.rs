//! The device tests of `rsocket`, from the same source as on Soft-RoCE in a guest, on one host of a fabric.
//!
//! Missing modules need other processes on the same fabric, or the kernel's tools for RDMA; the README of the crate has
//! the list.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../rsocket/tests/device/asynchronous.rs"]
mod asynchronous;
#[path = "../../../rsocket/tests/device/edge_sizes.rs"]
mod edge_sizes;
#[path = "../../../rsocket/tests/device/exits.rs"]
mod exits;
#[path = "../../../rsocket/tests/device/handshakes.rs"]
mod handshakes;
#[path = "../../../rsocket/tests/device/isolation.rs"]
mod isolation;
#[path = "../../../rsocket/tests/device/mapped_addresses.rs"]
mod mapped_addresses;
#[path = "../../../rsocket/tests/device/probe.rs"]
mod probe;
#[path = "../../../rsocket/tests/device/settings.rs"]
mod settings;
#[path = "../../../rsocket/tests/device/sockets.rs"]
mod sockets;
#[path = "../../../rsocket/tests/device/stalled_peers.rs"]
mod stalled_peers;
#[path = "../../../rsocket/tests/device/streams.rs"]
mod streams;
#[path = "../../../rsocket/tests/device/support.rs"]
mod support;
#[path = "../../../rsocket/tests/device/tasks.rs"]
mod tasks;
mod unresponsive_hosts;
#[path = "../../../rsocket/tests/device/wire.rs"]
mod wire;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::OnceLock,
};

use softnic::Fabric;
use support::{connected, listening, local, local_v6, often};

/// Puts all threads of the process on a host, before any test starts.
extern "C" fn put_threads_on_a_host() {
    // Datagram sockets start with UDP sockets of the kernel on the same addresses.
    let addrs: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
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
