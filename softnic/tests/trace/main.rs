//! The events of the crates for a subscriber of `tracing`, and their counters.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod connections;
mod messages;
mod recorder;
mod streams;

use std::{net::IpAddr, time::Duration};

use softnic::{Fabric, Host};

/// Time-out of a wait that a correct test never reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Two hosts of a network, the server first. The engine of `rsocket` keeps its objects until the process ends.
fn hosts(fabric: &Fabric, net: u8) -> [Host; 2] {
    [1, 2].map(|host| fabric.host(IpAddr::from([10, 9, net, host])))
}

/// Fails unless the only lines are those with these texts, in this order.
fn assert_lines(lines: &[String], expected: &[&str]) {
    let matches = lines.len() == expected.len()
        && lines
            .iter()
            .zip(expected)
            .all(|(line, text)| line.contains(text));
    assert!(matches, "{lines:#?}\nexpected {expected:#?}");
}
