//! Events and statistics of `rds`.

use std::net::IpAddr;

use rds::{EngineOptions, Socket};
use softnic::{Fabric, Host};

use crate::{TEST_TIMEOUT, hosts, recorder::Recorder};

/// A bound socket on an engine of its own.
fn socket(host: &Host) -> Socket {
    host.run(|| {
        let engine = EngineOptions::new().start().unwrap();
        let socket = engine.socket().unwrap();
        socket.bind_to((host.addr(), 4000).into()).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT));
        socket
    })
}

#[test]
fn connection_of_messages_is_reported_on_both_sides() {
    let recorder = Recorder::of_process();
    let fabric = Fabric::new().keep_objects();
    let [a, b] = hosts(&fabric, 34).map(|host| socket(&host));
    a.send_to(b"hello", b.local_addr().unwrap()).unwrap();
    assert_eq!(b.recv(&mut [0; 5]).unwrap(), 5);
    for (text, step) in [
        (
            "DEBUG connection{local=10.9.34.1 peer=10.9.34.2 tos=0}: rds: ",
            "connecting",
        ),
        (
            "DEBUG connection{local=10.9.34.1 peer=10.9.34.2 tos=0}: rds: ",
            "established qp=0x",
        ),
        (
            "DEBUG connection{local=10.9.34.2 peer=10.9.34.1 tos=0}: rds: ",
            "accepting",
        ),
        (
            "DEBUG connection{local=10.9.34.2 peer=10.9.34.1 tos=0}: rds: ",
            "established qp=0x",
        ),
    ] {
        recorder.wait_for(&[&format!("{text}{step}")]);
    }
}

#[test]
fn connection_to_a_host_without_rds_is_a_warning() {
    let recorder = Recorder::of_process();
    let fabric = Fabric::new().keep_objects();
    let [host, other] = hosts(&fabric, 35);
    let a = socket(&host);
    a.send_to(b"hello", (other.addr(), 4000).into()).unwrap();
    recorder.wait_for(&[
        "WARN connection{local=10.9.35.1 peer=10.9.35.2 tos=0}: rds: connection failed failure=",
    ]);
}

#[test]
fn statistics_count_messages_of_sockets_connections_and_engines() {
    let fabric = Fabric::new().keep_objects();
    let both = hosts(&fabric, 36);
    let [a, b] = both.each_ref().map(socket);
    let dest = b.local_addr().unwrap();
    for len in [5, 0, 10_000] {
        a.send_to(&vec![0; len], dest).unwrap();
        assert_eq!(b.recv(&mut vec![0; len]).unwrap(), len);
    }
    let (sent, received) = (a.stats().unwrap(), b.stats().unwrap());
    assert_eq!((sent.messages_sent, sent.bytes_sent), (3, 10_005));
    assert_eq!(
        (received.messages_received, received.bytes_received),
        (3, 10_005)
    );
    assert_eq!((sent.messages_received, received.messages_sent), (0, 0));
    let engine = a.engine().stats().unwrap();
    assert_eq!((engine.sent, engine.queued, engine.resets), (3, 0, 0));
    let engine = b.engine().stats().unwrap();
    assert_eq!(
        (engine.queued, engine.delivered, engine.duplicates),
        (3, 3, 0)
    );
    let connections = a.engine().connection_stats().unwrap();
    let [(route, stats)] = &connections[..] else {
        panic!("{connections:?}");
    };
    assert_eq!((route.local, route.peer), (both[0].addr(), both[1].addr()));
    assert_eq!((stats.established, stats.retransmitted), (1, 0));
    // A local message is one of the socket, and not of a connection.
    a.send_to(b"here", a.local_addr().unwrap()).unwrap();
    a.recv(&mut [0; 4]).unwrap();
    let local = a.stats().unwrap();
    assert_eq!((local.messages_sent, local.messages_received), (4, 1));
    assert_eq!(a.engine().stats().unwrap().sent, 3);
}

/// A message from one socket to the other.
fn send(from: &Socket, to: &Socket, text: &[u8]) {
    from.send_to(text, to.local_addr().unwrap()).unwrap();
    let mut buf = [0; 20];
    let len = to.recv(&mut buf).unwrap();
    assert_eq!(&buf[..len], text);
}

/// The subscriber panics in a step of one connection: in a thread of the engine, or in a call of a program. The connection is
/// set up again, and no other is concerned.
#[test]
fn panic_in_a_step_of_a_connection_mutes_no_socket() {
    let recorder = Recorder::of_process();
    for (net, host, step) in [
        (40, 1, "rds: accepting"),
        (41, 1, "rds: established"),
        (42, 2, "rds: connecting"),
        (43, 2, "rds: established"),
    ] {
        let fabric = Fabric::new().keep_objects();
        let [server, client] = hosts(&fabric, net).map(|host| socket(&host));
        let bystander = socket(&fabric.host(IpAddr::from([10, 9, net, 3])));
        send(&bystander, &server, b"before");
        let (peer, this) = (3 - host, host);
        let span = format!("{{local=10.9.{net}.{this} peer=10.9.{net}.{peer} ");
        let (reached, end) = recorder.stall_at(&[&span, step]);
        end.send(()).unwrap();
        send(&client, &server, b"in spite of it");
        reached.recv_timeout(TEST_TIMEOUT).unwrap();
        send(&server, &client, b"and back");
        for (from, to) in [(&bystander, &server), (&server, &bystander)] {
            send(from, to, b"not concerned");
        }
        let stats = bystander.engine().connection_stats().unwrap();
        assert_eq!(stats[0].1.established, 1);
    }
}

/// The subscriber panics at the end of a connection: the next one of the same peer is not concerned.
#[test]
fn panic_at_the_end_of_a_connection_mutes_no_socket() {
    let recorder = Recorder::of_process();
    for (net, step) in [(44, "rds: connection failed"), (45, "rds: closing")] {
        let fabric = Fabric::new().keep_objects();
        let [host, peer] = hosts(&fabric, net);
        let (server, client) = (socket(&host), socket(&peer));
        send(&client, &server, b"first");
        let span = format!("{{local=10.9.{net}.1 peer=10.9.{net}.2 ");
        let (reached, end) = recorder.stall_at(&[&span, step]);
        end.send(()).unwrap();
        drop(client);
        reached.recv_timeout(TEST_TIMEOUT).unwrap();
        let client = socket(&peer);
        send(&client, &server, b"second");
        send(&server, &client, b"and back");
    }
}
