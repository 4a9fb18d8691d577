//! What the tests share: addresses of the device, and connected sockets.

use std::net::SocketAddr;

use rsocket::{Family, Socket};

/// The address of the guest's RDMA device, with any port.
pub(crate) fn local() -> SocketAddr {
    let address = std::env::var("A").expect("these tests run in the guest: `cargo xtask test`");
    SocketAddr::new(address.parse().unwrap(), 0)
}

/// Its IPv6 address.
pub(crate) fn local_v6() -> SocketAddr {
    let address = std::env::var("A6").expect("these tests run in the guest: `cargo xtask test`");
    SocketAddr::new(address.parse().unwrap(), 0)
}

/// How often something is done: more often in the long test.
pub(crate) fn often(short: u32, long: u32) -> u32 {
    match std::env::var_os("LONG") {
        Some(_) => long,
        None => short,
    }
}

/// A socket that listens at the device's address.
pub(crate) fn listening() -> Socket {
    let listener = Socket::new(Family::V4).unwrap();
    listener.bind(local()).unwrap();
    listener.listen(256).unwrap();
    listener
}

/// Two sockets that are connected.
pub(crate) fn connected() -> (Socket, Socket) {
    let listener = listening();
    let client = Socket::new(Family::V4).unwrap();
    client.connect(listener.local_addr()).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr());
    assert_eq!(client.peer_addr().unwrap(), server.local_addr());
    (client, server)
}
