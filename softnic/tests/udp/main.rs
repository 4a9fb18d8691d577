//! Hosts over UDP: sockets of this machine's loopback interface. Each fabric stands for a process of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod end;
mod hostile;
mod messages;
mod streams;

use std::{net::IpAddr, process, time::Duration};

/// Time-out of a wait that a correct test never reaches.
const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// A loopback address of a host of a test, other than those of a run of another process.
fn addr(test: u8, host: u8) -> IpAddr {
    let [.., run] = process::id().to_be_bytes();
    IpAddr::from([127, 64 | run & 0x7f, test, host])
}

/// Bytes that depend on the seed.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 9).to_le_bytes()[0] ^ seed)
        .collect()
}
