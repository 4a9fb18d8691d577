//! Addresses and connected sockets for the tests.

use std::net::SocketAddr;

use rsocket::{Family, Socket};

/// Address of the guest's RDMA device, with port 0.
pub(crate) fn local() -> SocketAddr {
    let address = std::env::var("A").expect("these tests run in the guest: `cargo xtask test`");
    SocketAddr::new(address.parse().unwrap(), 0)
}

/// IPv6 address of the guest's RDMA device, with port 0.
pub(crate) fn local_v6() -> SocketAddr {
    let address =
        std::env::var("A6").expect("left out: the device has no IPv6 address (variable A6)");
    SocketAddr::new(address.parse().unwrap(), 0)
}

/// Number of repetitions, higher in the long test.
pub(crate) fn often(short: u32, long: u32) -> u32 {
    match std::env::var_os("LONG") {
        Some(_) => long,
        None => short,
    }
}

/// Creates a socket listening at the device's address.
pub(crate) fn listening() -> Socket {
    let listener = Socket::new(Family::V4).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(256).unwrap();
    listener
}

/// Creates two connected sockets.
pub(crate) fn connected() -> (Socket, Socket) {
    let listener = listening();
    let client = Socket::new(Family::V4).unwrap();
    client.connect(listener.local_addr().unwrap()).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
    (client, server)
}
