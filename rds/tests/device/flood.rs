//! Messages sent faster than the device can transmit, to fill doorbell batches.

use std::net::SocketAddr;

use rds::{EngineOptions, Socket};

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

/// Sends `count` messages; the last ones wait for a batch to fill.
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

/// An incomplete batch is posted after the delay.
#[test]
fn doorbell_batch_is_flushed_at_the_end() {
    let a = socket(any());
    let (_prober, mut wire, to) = peer_of(&a);
    for count in (2 * AT_ONCE)..(2 * AT_ONCE + 10) {
        flood(&a, &mut wire, to, count);
        arrives(&mut wire, count);
    }
}

/// An incomplete batch is posted when its socket is closed.
#[test]
fn doorbell_batch_is_flushed_by_drop() {
    let engine = EngineOptions::new().start().unwrap();
    let stays = engine.socket().unwrap();
    stays.bind_to(any()).unwrap();
    let (_prober, mut wire, to) = peer_of(&stays);
    for count in (2 * AT_ONCE)..(2 * AT_ONCE + 10) {
        let a = engine.socket().unwrap();
        a.bind_to(SocketAddr::new(addr(&stays).ip(), 0)).unwrap();
        flood(&a, &mut wire, to, count);
        drop(a);
        arrives(&mut wire, count);
    }
}
