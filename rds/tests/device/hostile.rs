//! Protocol violations, and peers lost at inconvenient times.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use rds::{
    Engine, EngineOptions, Event, ExportOptions, SendOptions, Socket,
    proto::{
        info::{ConnectionFlags, ConnectionInfo},
        wire::{ConnectData, Cookie, Extension, Family, Flags, Header, REJECTED, Version},
    },
};

use crate::{
    TEST_TIMEOUT, addr, any, counter, other, pattern, prober,
    prober::{Prober, Wire, early_data::EarlyData},
    socket, third,
};

const V3_0: Version = Version { major: 3, minor: 0 };
const V4_0: Version = Version { major: 4, minor: 0 };
const V4_1: Version = Version { major: 4, minor: 1 };
const V5_1: Version = Version { major: 5, minor: 1 };

/// The prober's port.
const PORT: u16 = 4000;

fn prober() -> (Prober, SocketAddr) {
    let ip = other().ip();
    (Prober::new(ip).unwrap(), SocketAddr::new(ip, PORT))
}

fn header(sequence: u64, to: SocketAddr, len: usize) -> Header {
    Header {
        sequence,
        len: len.try_into().unwrap(),
        from: PORT,
        to: to.port(),
        ..Header::default()
    }
}

fn message(socket: &Socket) -> Vec<u8> {
    match socket.recv_event().unwrap() {
        Event::Message(message) => message.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// With an engine as the peer.
#[test]
fn request_versions_are_answered_or_rejected() {
    let a = socket(any());
    let to = addr(&a).ip();
    let (prober, _) = prober();
    let mut wires = Vec::new();
    for (tos, version, minors, answer) in [
        (0, V4_1, 3, Some(V4_1)),
        (1, V4_0, 1, Some(V4_0)),
        (2, V4_1, 3, Some(V4_1)),
        (3, Version::V3_1, 0, Some(Version::V3_1)),
        (4, V3_0, 3, None),
        (5, V5_1, 3, None),
        (6, V4_1, 4, None),
    ] {
        let data = ConnectData {
            version,
            minors,
            ..prober.proposal(to, tos)
        };
        let response = prober.dial(to, &data.encode()).unwrap();
        match answer {
            Some(answer) => {
                let wire = response.accepted().unwrap();
                let reply = ConnectData::decode(&wire.private_data, Family::V4).unwrap();
                assert_eq!((reply.version, reply.tos), (answer, tos));
                assert_eq!(reply.hosts, data.hosts.reversed());
                wires.push(wire);
            }
            None => assert_eq!(response.rejected().unwrap(), (28, REJECTED.to_vec())),
        }
    }
    // Short private data, padded with zeros by the connection manager.
    let short = prober.proposal(to, 0).encode();
    for data in [&[][..], &short[..8]] {
        let response = prober.dial(to, data).unwrap();
        assert_eq!(response.rejected().unwrap(), (28, REJECTED.to_vec()));
    }
    // The other connections stay up.
    for wire in &mut wires {
        assert!(wire.is_there().unwrap());
    }
}

/// The violations in section 12 of the specification, as sequences of frames.
fn violations(to: SocketAddr) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let frame =
        |header: &Header, body: usize| [&header.encode()[..], &pattern(body, 9)[..]].concat();
    let long = header(100, to, 10_000);
    let first = || frame(&long, 4096);
    let mut damaged = frame(&header(100, to, 0), 0);
    damaged[30] ^= 0x40;
    let other = |change: fn(&mut Header)| {
        let mut other = long;
        change(&mut other);
        vec![first(), frame(&other, 4096)]
    };
    vec![
        ("20 bytes", vec![vec![0; 20]]),
        ("nothing", vec![vec![]]),
        ("the wrong checksum", vec![damaged]),
        ("more than a frame has", vec![frame(&long, 4097)]),
        ("another number", other(|other| other.sequence += 1)),
        ("another length", other(|other| other.len += 1)),
        ("another sender", other(|other| other.from += 1)),
        ("another port", other(|other| other.to ^= 2)),
        ("a short first frame", vec![frame(&long, 100)]),
        ("a short frame", vec![first(), frame(&long, 100)]),
        (
            "a short last frame",
            vec![first(), first(), frame(&long, 1807)],
        ),
        (
            "a long last frame",
            vec![first(), first(), frame(&long, 1809)],
        ),
        (
            "a body where there is none",
            vec![frame(&header(100, to, 0), 1)],
        ),
        (
            "more than a message has",
            vec![frame(&header(100, to, (1 << 20) + 1), 4096)],
        ),
    ]
}

/// Receives a message and compares its content; returns its header.
fn retransmitted(wire: &mut Wire, from: SocketAddr, body: &[u8]) -> Header {
    let mut got = Vec::new();
    let first = loop {
        let (header, part) = wire.recv_frame().unwrap().expect("the connection is lost");
        assert_eq!((header.from, header.to), (from.port(), PORT));
        assert_eq!(header.len as usize, body.len());
        got.extend(part);
        if got.len() >= body.len() {
            break header;
        }
    };
    assert_eq!(got, body);
    first
}

/// Each bad frame resets its own connection only, and unacknowledged
/// messages are retransmitted on the next one.
#[test]
fn malformed_frame_resets_connection_without_loss() {
    let (a, bystander) = (socket(any()), socket(third()));
    let at_a = addr(&a);
    a.send_to(b"hello", addr(&bystander)).unwrap();
    assert_eq!(message(&bystander), b"hello");
    let (prober, at_prober) = prober();
    let data = prober.proposal(at_a.ip(), 0).encode();
    let dialled = prober.dial(at_a.ip(), &data).unwrap();
    let mut wire = dialled.accepted().unwrap();
    let body = pattern(10_000, 1);
    a.send_to(&body, at_prober).unwrap();
    let first = retransmitted(&mut wire, at_a, &body);
    assert!(!first.flags.contains(Flags::RETRANSMITTED));
    let resets = counter(a.engine(), "conn_reset");
    let rows = violations(at_a);
    for (what, frames) in &rows {
        for frame in frames {
            wire.send(frame, true).unwrap();
        }
        assert!(wire.is_lost().unwrap(), "{what} is accepted");
        drop(wire);
        wire = prober.accept().unwrap();
        // Unacknowledged, so retransmitted.
        let again = retransmitted(&mut wire, at_a, &body);
        assert_eq!(again.sequence, first.sequence);
        assert_eq!(again.flags, Flags::RETRANSMITTED | Flags::ACK_REQUIRED);
    }
    wire.acknowledge(first.sequence).unwrap();
    while a.queued().unwrap().0 > 0 {
        assert!(wire.is_there().unwrap());
    }
    assert_eq!(
        counter(a.engine(), "conn_reset") - resets,
        rows.len() as u64
    );
    assert_eq!(counter(a.engine(), "recv_drop_bad_checksum"), 1);
    assert_eq!(a.queued().unwrap(), (0, 0), "nothing of all that is kept");
    // The other connection is unaffected.
    assert_eq!(counter(bystander.engine(), "conn_reset"), 0);
    bystander.send_to(b"still here", at_a).unwrap();
    assert_eq!(message(&a), b"still here");
}

/// Unusual frames without a violation.
#[test]
fn odd_frames_are_ignored_or_accepted() {
    let a = socket(any());
    let at_a = addr(&a);
    let (prober, at_prober) = prober();
    let data = prober.proposal(at_a.ip(), 0).encode();
    let dialled = prober.dial(at_a.ip(), &data).unwrap();
    let mut wire = dialled.accepted().unwrap();
    let map = |flags: u8, len: usize| Header {
        flags: Flags::from_bits_retain(flags),
        len: len.try_into().unwrap(),
        ..Header::default()
    };
    // Malformed maps with every port congested.
    assert!(wire.message(&map(1, 100), &[0xff; 100]).unwrap());
    assert!(wire.message(&map(3, 8192), &[0xff; 8192]).unwrap());
    let mut one = |sequence, flags: u8, extension: Option<Extension>, body: &[u8]| {
        let mut header = header(sequence, at_a, body.len());
        header.flags = Flags::from_bits_retain(flags);
        if let Some(extension) = extension {
            header.extensions.add(extension).unwrap();
        }
        assert!(wire.message(&header, body).unwrap());
    };
    // Low sequence numbers, unknown flags and unknown keys.
    one(5, 0, None, b"five");
    one(4, 0, None, b"four, too late");
    one(5, 0, None, b"five, reported again by a device");
    one(5, 6, None, b"five, again");
    one(6, 0x38, None, b"six");
    one(7, 0, Some(Extension::Rdma(0xdead)), b"seven");
    let cookie = Cookie {
        rkey: 0xdead,
        offset: 0xfff,
    };
    one(8, 0, Some(Extension::Destination(cookie)), b"eight");
    for body in [&b"five"[..], b"six", b"seven", b"eight"] {
        assert_eq!(message(&a), body);
    }
    assert_eq!(counter(a.engine(), "recv_drop_old_seq"), 3);
    // An acknowledgement of unsent messages, then one of sent messages.
    a.set_nonblocking(true);
    a.send_to(b"to whom?", at_prober).unwrap();
    let first = retransmitted(&mut wire, at_a, b"to whom?");
    assert!(wire.acknowledge(first.sequence + 1000).unwrap());
    while a.queued().unwrap().0 > 0 {
        assert!(wire.is_there().unwrap());
    }
    a.send_to(b"the next", at_prober).unwrap();
    let second = retransmitted(&mut wire, at_a, b"the next");
    assert_eq!(second.sequence, first.sequence + 1);
    assert!(wire.is_there().unwrap());
    assert_eq!(counter(a.engine(), "conn_reset"), 0);
}

/// False addresses, and too many connections.
#[test]
fn request_with_false_address_or_over_limit_is_rejected() {
    let engine = EngineOptions::new().receives(64).max_connections(10, 3);
    let engine = engine.start().unwrap();
    let a = bound(&engine);
    let to = addr(&a).ip();
    let (prober, _) = prober();
    let refused = (28, REJECTED.to_vec());
    for hosts in [
        // False sender, false receiver, and both swapped.
        prober::proposal(third().ip(), to, 0),
        prober::proposal(other().ip(), third().ip(), 0),
        prober::proposal(to, other().ip(), 0),
    ] {
        let response = prober.dial(to, &hosts.encode()).unwrap();
        assert_eq!(response.rejected().unwrap(), refused);
    }
    let dial = |tos| {
        let data = prober.proposal(to, tos).encode();
        prober.dial(to, &data).unwrap()
    };
    let mut wires: Vec<Wire> = (0..3).map(|tos| dial(tos).accepted().unwrap()).collect();
    for tos in 3..20 {
        assert_eq!(dial(tos).rejected().unwrap(), refused);
    }
    for wire in &mut wires {
        assert!(wire.is_there().unwrap());
    }
    assert_eq!(engine.info().unwrap().connections.len(), 3);
}

fn bound(engine: &Engine) -> Socket {
    let socket = engine.socket().unwrap();
    socket.bind_to(any()).unwrap();
    socket.set_read_timeout(TEST_TIMEOUT);
    socket
}

/// With an engine as the peer: a new request replaces the connection.
#[test]
fn request_while_up_takes_over_the_connection() {
    let a = socket(any());
    let at_a = addr(&a);
    let (prober, at_prober) = prober();
    let data = prober.proposal(at_a.ip(), 0).encode();
    let dial = || prober.dial(at_a.ip(), &data).unwrap().accepted().unwrap();
    let mut first = dial();
    a.send_to(b"for the first", at_prober).unwrap();
    retransmitted(&mut first, at_a, b"for the first");
    let mut second = dial();
    assert!(first.is_lost().unwrap());
    let again = retransmitted(&mut second, at_a, b"for the first");
    assert!(again.flags.contains(Flags::RETRANSMITTED));
    assert!(second.message(&header(1, at_a, 5), b"hello").unwrap());
    assert_eq!(message(&a), b"hello");
    assert!(second.is_there().unwrap());
}

/// The RTU is lost, but data has arrived.
#[test]
fn handshake_without_rtu_completes_on_timeout() {
    let a = socket(any());
    let at_a = addr(&a);
    let (prober, at_prober) = prober();
    let data = prober.proposal(at_a.ip(), 0).encode();
    let mut hasty = EarlyData::dial(at_prober.ip(), at_a.ip(), &data).unwrap();
    let frame = [&header(1, at_a, 5).encode()[..], b"hello"].concat();
    assert!(hasty.send(&frame).unwrap());
    assert_eq!(message(&a), b"hello");
    a.send_to(b"and you", at_prober).unwrap();
    while !hasty.frame().unwrap().ends_with(b"and you") {}
}

/// The connection is lost within a message, in both directions.
#[test]
fn reconnect_delivers_partial_message_once() {
    let a = socket(any());
    let at_a = addr(&a);
    a.set_send_limit(2 << 20).unwrap();
    a.set_recv_limit(2 << 20).unwrap();
    let (prober, at_prober) = prober();
    let body = pattern(1 << 20, 4);
    a.send_to(&body, at_prober).unwrap();
    for frames in [1, 100, 255] {
        let mut wire = prober.accept().unwrap();
        for _ in 0..frames {
            let (header, part) = wire.recv_frame().unwrap().expect("the connection is lost");
            assert_eq!((header.len, part.len()), (1 << 20, 4096));
        }
        wire.disconnect();
    }
    let mut wire = prober.accept().unwrap();
    let header_of_ours = retransmitted(&mut wire, at_a, &body);
    wire.acknowledge(header_of_ours.sequence).unwrap();
    // The reverse direction.
    let header = header(77, at_a, body.len());
    for frames in [1, 100, 255] {
        for part in body.chunks(4096).take(frames) {
            assert!(
                wire.send(&[&header.encode(), part].concat(), false)
                    .unwrap()
            );
        }
        wire.disconnect();
        wire = prober.accept().unwrap();
    }
    let again = Header {
        flags: Flags::RETRANSMITTED | Flags::ACK_REQUIRED,
        ..header
    };
    assert!(wire.message(&again, &body).unwrap());
    assert!(wire.message(&again, &body).unwrap(), "a duplicate");
    assert_eq!(message(&a), body);
    let last = Header {
        sequence: 78,
        len: 4,
        ..header
    };
    assert!(wire.message(&last, b"last").unwrap());
    assert_eq!(message(&a), b"last", "it has come once");
    assert_eq!(a.queued().unwrap(), (0, 0));
}

/// Congestion changes many times while the peer has no receives.
#[test]
fn congestion_map_changes_are_coalesced() {
    let engine = EngineOptions::new().sends(16).start().unwrap();
    let (a, sibling) = (bound(&engine), bound(&engine));
    let at_a = addr(&a);
    a.set_recv_limit(10).unwrap();
    let (_prober, at_prober) = prober();
    let data = prober::proposal(at_prober.ip(), at_a.ip(), 0).encode();
    // Receives for the first map only.
    let dialled = prober::dial(at_prober.ip(), at_a.ip(), &data, 2).unwrap();
    let mut wire = dialled.accepted().unwrap();
    for _ in 0..2 {
        assert!(wire.frame().unwrap().is_some());
    }
    let queued = counter(&engine, "cong_update_queued");
    for _ in 0..1000 {
        sibling.send_to(&[0; 20], at_a).unwrap();
        assert_eq!(message(&a).len(), 20);
    }
    // A final map with two congested ports, distinct from all earlier ones.
    sibling.set_recv_limit(10).unwrap();
    for (from, to) in [(&sibling, &a), (&a, &sibling)] {
        from.send_to(&[0; 20], addr(to)).unwrap();
    }
    assert_eq!(counter(&engine, "cong_update_queued") - queued, 2002);
    wire.receive(400).unwrap();
    let ports = [&a, &sibling].map(|socket| usize::from(addr(socket).port()));
    let is_last = |map: &[u8]| {
        let bits = map.iter().map(|byte| byte.count_ones()).sum::<u32>();
        bits == 2
            && ports
                .iter()
                .all(|port| map[port / 8] >> (port % 8) & 1 == 1)
    };
    let mut map = Vec::new();
    let mut count = 0;
    while count == 0 || !is_last(&map) {
        map.clear();
        while map.len() < 8192 {
            let frame = wire.frame().unwrap().expect("the connection is lost");
            let header = Header::decode(&frame, false).unwrap();
            assert_eq!(header.flags, Flags::CONG_BITMAP);
            map.extend_from_slice(&frame[Header::SIZE..]);
        }
        count += 1;
    }
    // Two maps with receives, one waiting, and the last.
    assert!(count <= 4, "{count} maps");
}

/// Without a cut: keepalive probes detect the loss of a silent peer, and the engine
/// reconnects.
#[test]
fn keepalive_detects_a_lost_peer_on_idle_connection() {
    let engine = EngineOptions::new().keepalive(Some(Duration::from_secs(1)));
    let engine = engine.retry_count(0).start().unwrap();
    let a = bound(&engine);
    let (prober, _) = prober();
    let data = prober.proposal(addr(&a).ip(), 0).encode();
    let dialled = prober.dial(addr(&a).ip(), &data).unwrap();
    let mut first = dialled.accepted().unwrap();
    for _ in 0..2 {
        assert!(first.frame().unwrap().is_some(), "a part of the map");
    }
    first.fall_silent().unwrap();
    let mut second = prober.accept().unwrap();
    assert!(second.is_there().unwrap());
    second.message(&header(1, addr(&a), 5), b"hello").unwrap();
    assert_eq!(message(&a), b"hello");
}

/// Disconnected peers are evicted. Before, 4096 requests locked out new peers permanently.
#[test]
fn connection_limit_evicts_disconnected_peers() {
    let engine = EngineOptions::new().receives(64).max_connections(8, 16);
    let engine = engine.start().unwrap();
    let a = bound(&engine);
    let to = addr(&a);
    let (prober, _) = prober();
    let await_flags = |tos: u8, expected: ConnectionFlags| {
        let until = Instant::now() + TEST_TIMEOUT.unwrap();
        let has_flags = |connection: &ConnectionInfo| {
            connection.tos == tos && connection.flags - ConnectionFlags::SENDING == expected
        };
        while !engine.info().unwrap().connections.iter().any(has_flags) {
            assert!(Instant::now() < until, "not {expected:?}");
            thread::sleep(Duration::from_millis(1));
        }
    };
    for tos in 0..16 {
        let data = prober.proposal(to.ip(), tos).encode();
        let mut wire = prober.dial(to.ip(), &data).unwrap().accepted().unwrap();
        assert!(wire.message(&header(1, to, 2), &[tos, 1]).unwrap());
        assert_eq!(message(&a), [tos, 1]);
        await_flags(tos, ConnectionFlags::CONNECTED);
        wire.disconnect();
        // The engine connects once more. The limit does not count the entry while this attempt is being closed.
        prober.reject().unwrap();
        await_flags(tos, ConnectionFlags::empty());
    }
    assert_eq!(counter(&engine, "conn_refused"), 0);
    // 7 entries are for unknown peers.
    assert_eq!(counter(&engine, "conn_evicted"), 9);
    assert_eq!(engine.info().unwrap().connections.len(), 7);
    let third_socket = socket(third());
    third_socket.send_to(b"hello", to).unwrap();
    assert_eq!(message(&a), b"hello");
    assert_eq!(counter(&engine, "conn_evicted"), 10);
    assert_eq!(engine.info().unwrap().connections.len(), 7);
}

/// Only the peer ignoring congestion is reset.
#[test]
fn overload_by_unknown_peer_resets_only_its_connection() {
    let engine = EngineOptions::new().start().unwrap();
    let a = bound(&engine);
    let to = addr(&a);
    a.set_recv_limit(1000).unwrap();
    let dial = |local: SocketAddr| {
        let data = prober::proposal(local.ip(), to.ip(), 0).encode();
        let dialled = prober::dial(local.ip(), to.ip(), &data, 64).unwrap();
        dialled.accepted().unwrap()
    };
    let (mut stranger, mut innocent) = (dial(other()), dial(third()));
    let mut sent = 0;
    while stranger
        .message(&header(1 + sent, to, 500), &[0; 500])
        .unwrap()
    {
        sent += 1;
        assert!(sent < 1000, "it is never too much");
    }
    assert!(stranger.is_lost().unwrap());
    assert!(innocent.message(&header(1, to, 8), b"innocent").unwrap());
    while message(&a) != b"innocent" {}
    assert!(innocent.is_there().unwrap());
    // The engine counts the reset once the device has released the connection.
    let until = Instant::now() + TEST_TIMEOUT.unwrap();
    while counter(&engine, "conn_reset") == 0 {
        assert!(Instant::now() < until, "the reset is not counted");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(counter(&engine, "conn_reset"), 1);
}

/// Only a host with the cookie can end the single use, and only of use-once exports.
#[test]
fn export_use_once_ignores_foreign_hosts() {
    let a = socket(any());
    let to = addr(&a);
    let third_socket = socket(third());
    let memory = a.alloc(4096).unwrap();
    let once = a.export(&memory, ExportOptions::new().use_once()).unwrap();
    let always = a.export(&memory, ExportOptions::new()).unwrap();
    for cookie in [once, always] {
        let options = SendOptions::new().to(addr(&third_socket)).cookie(cookie);
        a.send_msg(&[], &options).unwrap();
        assert_eq!(message(&third_socket), b"");
    }
    let (prober, _) = prober();
    let data = prober.proposal(to.ip(), 0).encode();
    let mut wire = prober.dial(to.ip(), &data).unwrap().accepted().unwrap();
    for (sequence, cookie) in (1..).zip([once, always]) {
        let mut named = header(sequence, to, 1);
        named.extensions.add(Extension::Rdma(cookie.rkey)).unwrap();
        assert!(wire.message(&named, b"!").unwrap());
        assert_eq!(message(&a), b"!");
        assert_eq!(a.exports().unwrap(), 2);
    }
    // The friend performs operations.
    let local = third_socket.alloc(10).unwrap();
    for (cookie, remaining) in [(always, 2), (once, 1)] {
        let write = rds::Rdma::write(vec![local.slice(0..10)], cookie);
        let options = SendOptions::new().to(to).rdma(write);
        third_socket.send_msg(&[], &options).unwrap();
        assert_eq!(message(&a), b"");
        assert_eq!(a.exports().unwrap(), remaining);
    }
}

/// A peer with a known key has to guess the address.
#[test]
fn export_addresses_are_random_on_a_device() {
    let a = socket(any());
    let memory = a.alloc(100).unwrap();
    let pages: std::collections::BTreeSet<u32> = (0..32)
        .map(|_| {
            let cookie = a.export(&memory, ExportOptions::new()).unwrap();
            assert_eq!(cookie.offset % 4096, 0, "as the memory here");
            cookie.offset / 4096
        })
        .collect();
    assert!(pages.len() > 28, "{pages:?}");
    assert!(
        pages.last().unwrap() - pages.first().unwrap() > 1 << 18,
        "{pages:?}"
    );
}
