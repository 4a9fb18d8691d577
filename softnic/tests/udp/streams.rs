//! Connections: the messages of the connection manager travel over UDP, too.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    thread,
};

use rsocket::{Listener, Stream};
use softnic::Fabric;

use crate::{TEST_TIMEOUT, addr, pattern};

#[test]
fn stream_over_udp_carries_bytes_despite_losses() {
    const LEN: usize = 1 << 20;
    let fabric = Fabric::seeded(3).keep_objects().loss(0.01);
    let [client, server] = [1, 2].map(|host| fabric.host_over_udp(addr(7, host)).unwrap());
    let at = SocketAddr::new(server.addr(), 0);
    let listener = server.run(|| Listener::bind(at).unwrap());
    let to = listener.local_addr().unwrap();
    let accepting = server.spawn(move || listener.accept().unwrap().0);
    let active = client.run(|| Stream::connect(to).unwrap());
    let passive = accepting.join().unwrap();
    for stream in [&active, &passive] {
        stream.set_read_timeout(TEST_TIMEOUT);
        stream.set_write_timeout(TEST_TIMEOUT);
    }
    for (from, to, seed) in [(&active, &passive, 1), (&passive, &active, 2)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let sending = thread::spawn(move || from.write_all(&pattern(LEN, seed)));
        let mut received = vec![0; LEN];
        to.read_exact(&mut received).unwrap();
        assert!(received == pattern(LEN, seed));
        sending.join().unwrap().unwrap();
    }
    assert!(fabric.traffic().lost > 0);
}
