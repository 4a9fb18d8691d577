//! Events and statistics of `rds`.

use rds::{EngineOptions, Socket};
use softnic::{Fabric, Host};

use crate::{hosts, recorder::Recorder};

/// A bound socket on an engine of its own.
fn socket(host: &Host) -> Socket {
    host.run(|| {
        let engine = EngineOptions::new().start().unwrap();
        let socket = engine.socket().unwrap();
        socket.bind_to((host.addr(), 4000).into()).unwrap();
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
            "established qp=0x0000",
        ),
        (
            "DEBUG connection{local=10.9.34.2 peer=10.9.34.1 tos=0}: rds: ",
            "accepting",
        ),
        (
            "DEBUG connection{local=10.9.34.2 peer=10.9.34.1 tos=0}: rds: ",
            "established qp=0x0000",
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
