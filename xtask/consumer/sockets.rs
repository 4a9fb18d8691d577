//! A stream and a message between two hosts of softnic, in a crate that depends on the packages.

use std::io::{Read, Write};

use rds::EngineOptions;
use rsocket::{Listener, Stream};
use softnic::Fabric;

#[test]
fn bytes_of_a_stream_arrive() {
    let fabric = Fabric::new().keep_objects();
    let server = fabric.host("10.9.1.1".parse().unwrap());
    let client = fabric.host("10.9.1.2".parse().unwrap());

    let listener = server.run(|| Listener::bind("10.9.1.1:7471").unwrap());
    let serving = server.spawn(move || {
        let mut received = [0; 5];
        listener
            .accept()
            .unwrap()
            .0
            .read_exact(&mut received)
            .unwrap();
        received
    });
    let mut stream = client.run(|| Stream::connect("10.9.1.1:7471").unwrap());
    stream.write_all(b"hello").unwrap();

    assert_eq!(serving.join().unwrap(), *b"hello");
}

#[test]
fn message_arrives() {
    let fabric = Fabric::new().keep_objects();
    let addrs = ["10.9.2.1:4000", "10.9.2.2:4000"].map(|addr| addr.parse().unwrap());
    let [from, to] = addrs.map(|addr: std::net::SocketAddr| {
        fabric.host(addr.ip()).run(|| {
            let socket = EngineOptions::new().start().unwrap().socket().unwrap();
            socket.bind_to(addr).unwrap();
            socket
        })
    });

    from.send_to(b"hello", addrs[1]).unwrap();

    let mut received = [0; 16];
    let (len, peer) = to.recv_from(&mut received).unwrap();
    assert_eq!((&received[..len], peer), (&b"hello"[..], addrs[0]));
}
