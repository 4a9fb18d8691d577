//! Streams and messages between hosts of one process: `rsocket` with one engine for all hosts, `rds` with an engine for
//! each host.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../services/child.rs"]
mod child;
mod doorbells;
mod extended;
mod identifiers;
mod limited;
mod longest_times;
mod messages;
mod newcomers;
#[path = "../../../rds/tests/prober/mod.rs"]
mod prober;
mod refusals;
mod strangers;
mod streams;
mod unlocked;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use softnic::{Fabric, Host};

/// Time-out of a wait that a correct test never reaches.
const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// Two hosts. The engine of `rsocket` keeps its objects until the process ends.
fn hosts(fabric: &Fabric, net: u8) -> [Host; 2] {
    [1, 2].map(|host| fabric.host(IpAddr::from([10, 9, net, host])))
}

/// A port of a host's first address; 0 for any.
fn at(host: &Host, port: u16) -> SocketAddr {
    SocketAddr::new(host.addr(), port)
}

/// Bytes that depend on the seed.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 9).to_le_bytes()[0] ^ seed)
        .collect()
}
