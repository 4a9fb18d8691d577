//! Streams and datagrams over a real device, of this host with itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asynchronous;
mod datagrams;
mod endings;
mod handshakes;
mod limits;
mod sockets;
mod streams;

use std::net::SocketAddr;

/// The address of the guest's RDMA device, with any port.
fn local() -> SocketAddr {
    let address = std::env::var("A").expect("these tests run in the guest: `cargo xtask test`");
    SocketAddr::new(address.parse().unwrap(), 0)
}

/// Its IPv6 address.
fn local_v6() -> SocketAddr {
    let address = std::env::var("A6").expect("these tests run in the guest: `cargo xtask test`");
    SocketAddr::new(address.parse().unwrap(), 0)
}
