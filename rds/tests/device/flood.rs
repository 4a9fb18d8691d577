//! Messages that come faster than the device sends them.

use std::net::SocketAddr;

use rds::{EngineOptions, Socket};

use crate::{
    addr, any, other,
    prober::{Prober, Wire},
    socket,
};

/// So many does the device send at once; the peer then has no room.
const AT_ONCE: u32 = 64;

/// A peer with a connection to `a`.
fn peer_of(a: &Socket) -> (Prober, Wire, SocketAddr) {
    let ip = other().ip();
    let prober = Prober::new(ip).unwrap();
    let data = prober.proposal(addr(a).ip(), 0).encode();
    let wire = prober.dial(addr(a).ip(), &data).unwrap();
    (prober, wire.accepted().unwrap(), SocketAddr::new(ip, 7))
}

/// Sends more than the device does at once: the last of them wait for others, which do not come.
fn flood(a: &Socket, wire: &mut Wire, to: SocketAddr, count: u32) {
    a.send_to(&u32::MAX.to_le_bytes(), to).unwrap();
    let (first, _) = wire.hear().unwrap().unwrap();
    assert!(wire.acknowledge(first.sequence).unwrap());
    for number in 0..count {
        a.send_to(&number.to_le_bytes(), to).unwrap();
    }
}

/// All of them come.
fn arrives(wire: &mut Wire, count: u32) {
    let mut last = 0;
    for number in 0..count {
        let (header, body) = wire.hear().unwrap().unwrap();
        assert_eq!(body, number.to_le_bytes(), "of {count}");
        last = header.sequence;
    }
    assert!(wire.acknowledge(last).unwrap());
}

/// What waits to be posted with more is posted without.
#[test]
fn a_flood_arrives_to_its_end() {
    let a = socket(any());
    let (_prober, mut wire, to) = peer_of(&a);
    for count in (2 * AT_ONCE)..(2 * AT_ONCE + 10) {
        flood(&a, &mut wire, to, count);
        arrives(&mut wire, count);
    }
}

/// And so it is when its socket is closed.
#[test]
fn a_flood_outlives_its_socket() {
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
