//! Streams and datagrams over a real device, of this host with itself.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asynchronous;
mod datagrams;
mod deaf;
mod endings;
mod floods;
mod growth;
mod handshakes;
mod held;
mod isolation;
mod limits;
mod probe;
mod sockets;
mod streams;
mod turns;
mod wire;

use std::net::SocketAddr;

use rsocket::{Family, Socket};

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

/// How often something is done: more often in the long test.
fn often(short: u32, long: u32) -> u32 {
    match std::env::var_os("LONG") {
        Some(_) => long,
        None => short,
    }
}

/// A socket that listens at the device's address.
fn listening() -> Socket {
    let listener = Socket::new(Family::V4).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(256).unwrap();
    listener
}

/// Two sockets that are connected.
fn connected() -> (Socket, Socket) {
    let listener = listening();
    let client = Socket::new(Family::V4).unwrap();
    client.connect(listener.local_addr()).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr());
    assert_eq!(client.peer_addr().unwrap(), server.local_addr());
    (client, server)
}
