//! Messages sent faster than the device can transmit.

use std::net::SocketAddr;

use rds::Socket;

use crate::{
    addr, any, other,
    prober::{Prober, Wire},
    socket,
};

/// Length of the peer's receive queue, which the device fills without waiting.
const AT_ONCE: u32 = 64;

/// A peer connected to `a`.
fn peer_of(a: &Socket) -> (Prober, Wire, SocketAddr) {
    let ip = other().ip();
    let prober = Prober::new(ip).unwrap();
    let data = prober.proposal(addr(a).ip(), 0).encode();
    let wire = prober.dial(addr(a).ip(), &data).unwrap();
    (prober, wire.accepted().unwrap(), SocketAddr::new(ip, 7))
}

/// Sends `count` messages, the last ones beyond the peer's receive queue.
fn flood(a: &Socket, wire: &mut Wire, to: SocketAddr, count: u32) {
    a.send_to(&u32::MAX.to_le_bytes(), to).unwrap();
    let (first, _) = wire.recv_frame().unwrap().unwrap();
    assert!(wire.acknowledge(first.sequence).unwrap());
    for number in 0..count {
        a.send_to(&number.to_le_bytes(), to).unwrap();
    }
}

/// Receives and acknowledges `count` messages.
fn arrives(wire: &mut Wire, count: u32) {
    let mut last = 0;
    for number in 0..count {
        let (header, body) = wire.recv_frame().unwrap().unwrap();
        assert_eq!(body, number.to_le_bytes(), "of {count}");
        last = header.sequence;
    }
    assert!(wire.acknowledge(last).unwrap());
}

/// Messages are posted by their sends, and need no later call.
#[test]
fn flood_is_posted_without_later_calls() {
    let a = socket(any());
    let (_prober, mut wire, to) = peer_of(&a);
    for count in [1, 2 * AT_ONCE, 2 * AT_ONCE + 7] {
        flood(&a, &mut wire, to, count);
        arrives(&mut wire, count);
    }
}
