//! Events and counters of `rsocket`.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rsocket::{Family, Listener, Options, Socket, Stream};
use softnic::{Fabric, Host};

use crate::{TEST_TIMEOUT, assert_lines, hosts, recorder::Recorder};

/// Two connected streams, the active side first.
fn connected([server, client]: &[Host; 2]) -> (Stream, Stream) {
    let listener = server.run(|| Listener::bind((server.addr(), 7471)).unwrap());
    let accepting = server.spawn(move || listener.accept().unwrap().0);
    let active = client.run(|| Stream::connect((server.addr(), 7471)).unwrap());
    (active, accepting.join().unwrap())
}

#[test]
fn stream_is_reported_with_its_peer_on_both_sides() {
    let recorder = Recorder::of_process();
    let fabric = Fabric::seeded(0).keep_objects();
    let (mut active, mut passive) = connected(&hosts(&fabric, 31));
    active.write_all(b"hello").unwrap();
    passive.read_exact(&mut [0; 5]).unwrap();
    drop(active);
    assert_eq!(passive.read(&mut [0]).unwrap(), 0);
    let steps = recorder.lines_with(" rsocket: ");
    let of = |peer: &str| {
        let mut lines = steps.clone();
        lines.retain(|line| line.starts_with("DEBUG stream{") && line.contains(peer));
        lines
    };
    let connected = "local=10.9.31.2:32768 qp=0xab04fc}: rsocket: connected";
    let active = of("{peer=10.9.31.1:7471");
    assert_lines(
        &active[..3],
        &[
            "}: rsocket: connecting",
            connected,
            "shutting down direction=Both",
        ],
    );
    let passive = of("{peer=10.9.31.2:32768");
    let connected = "local=10.9.31.1:7471 qp=0xcb9f33}: rsocket: connected";
    assert_lines(&passive[..2], &["}: rsocket: accepting", connected]);
}

#[test]
fn failed_stream_is_a_warning_with_its_peer() {
    let recorder = Recorder::of_process();
    let fabric = Fabric::new().keep_objects();
    let both = hosts(&fabric, 32);
    let [server, client] = &both;
    let addr = (server.addr(), 7472);
    drop(client.run(|| Stream::connect(addr).unwrap_err()));
    recorder.wait_for(&[
        "WARN stream{peer=10.9.32.1:7472}: rsocket: not connected error=",
        "no listener there",
    ]);
    let (mut active, _passive) = connected(&both);
    fabric.kill(server);
    while active.write(&[0; 4096]).is_ok() {}
    recorder.wait_for(&["WARN stream{peer=10.9.32.1:7471 local=10.9.32.2:", " qp=0x"]);
}

/// The set-up stalls in the subscriber, as it may in a call into the kernel.
#[test]
fn keepalive_probes_are_sent_while_a_connection_is_set_up() {
    let recorder = Recorder::of_process();
    let fabric = Fabric::new().keep_objects();
    let both = hosts(&fabric, 37);
    let (active, _passive) = connected(&both);
    let [server, client] = &both;
    let addr = (server.addr(), 7473);
    let listener = server.run(|| Listener::bind(addr).unwrap());
    let (stalled, end) = recorder.stall_at(&["{peer=10.9.37.2:", "rsocket: accepting"]);
    let connecting = client.spawn(move || Stream::connect(addr).unwrap());
    stalled.recv_timeout(TEST_TIMEOUT).unwrap();
    active.set_keep_alive(Some(Duration::from_millis(1)));
    let until = Instant::now() + TEST_TIMEOUT;
    while active.stats().keep_alive_probes == 0 {
        assert!(Instant::now() < until, "no probe is sent");
        thread::yield_now();
    }
    drop(end);
    listener.accept().unwrap();
    drop(connecting.join().unwrap());
}

#[test]
fn stream_counts_bytes_messages_and_waits() {
    let fabric = Fabric::new().keep_objects();
    let (mut active, mut passive) = connected(&hosts(&fabric, 33));
    active.write_all(&[1; 1000]).unwrap();
    passive.read_exact(&mut [0; 1000]).unwrap();
    let (sent, received) = (active.stats(), passive.stats());
    assert_eq!((sent.bytes_sent, sent.messages_sent), (1000, 1));
    assert_eq!(
        (received.bytes_received, received.messages_received),
        (1000, 1)
    );
    assert_eq!((sent.bytes_received, received.bytes_sent), (0, 0));
    assert_eq!(sent.waits_for_peer_buffer, 0);
    // Until the peer has no room.
    active.set_nonblocking(true);
    while active.write(&[2; 4096]).is_ok() {}
    let full = active.stats();
    let waits = |stats: rsocket::StreamStats| {
        stats.waits_for_credit + stats.waits_for_peer_buffer + stats.waits_for_send_buffer
    };
    assert!(waits(full) > waits(sent), "{full:?}");
    active.write(&[2; 4096]).unwrap_err();
    assert_eq!(active.stats(), full, "the same wait");
}

/// The subscriber panics while a request is accepted. The request is counted, and the thread serves the next ones.
#[test]
fn panic_during_set_up_mutes_no_listener() {
    let recorder = Recorder::of_process();
    let fabric = Fabric::new().keep_objects();
    let [server, client] = hosts(&fabric, 39);
    let addr = (server.addr(), 7471);
    let options = Options::new().backlog(1);
    let listener = server.run(|| options.listen(addr).unwrap());
    let (stalled, end) = recorder.stall_at(&["{peer=10.9.39.2:", "rsocket: accepting"]);
    end.send(()).unwrap();
    drop(client.run(|| Stream::connect(addr)).unwrap_err());
    stalled.recv_timeout(TEST_TIMEOUT).unwrap();
    assert_eq!(listener.refusals().failed, 1);
    // The only entry of the backlog is free again.
    let accepting = server.spawn(move || listener.accept().unwrap().0);
    let options = Options::new().connect_timeout(TEST_TIMEOUT);
    let mut active = client.run(|| options.connect(addr).unwrap());
    active.write_all(b"x").unwrap();
    accepting.join().unwrap().read_exact(&mut [0]).unwrap();
}

/// A socket connected to a server, with its mirror.
fn mirrored(client: &Host, server: &Host) -> (Arc<Socket>, OwnedFd, Stream) {
    let addr = SocketAddr::new(server.addr(), 7471);
    let listener = server.run(|| Listener::bind(addr).unwrap());
    let accepting = server.spawn(move || listener.accept().unwrap().0);
    let (socket, mirror) = client.run(|| {
        let socket = Arc::new(Socket::new(Family::V4).unwrap());
        socket.connect(addr).unwrap();
        let mirror = socket.mirror().unwrap();
        socket.drive_mirror(mirror.as_fd()).unwrap();
        (socket, mirror)
    });
    (socket, mirror, accepting.join().unwrap())
}

/// The subscriber panics while the thread of the mirrors handles the failure of one socket. This mirror shows the end, and the
/// others go on.
#[test]
fn panic_at_one_mirror_mutes_no_other() {
    let recorder = Recorder::of_process();
    let fabric = Fabric::new().keep_objects();
    let [lost, client] = hosts(&fabric, 40);
    let remaining = fabric.host(IpAddr::from([10, 9, 40, 3]));
    let (socket, mirror, _lost_stream) = mirrored(&client, &lost);
    let (other, other_mirror, mut peer) = mirrored(&client, &remaining);
    let is_readable = |mirror: &OwnedFd, timeout| {
        verbs::fd::wait_readable("poll", mirror.as_fd(), Some(timeout)).unwrap()
    };
    assert!(!is_readable(&mirror, Duration::ZERO));
    let (stalled, end) = recorder.stall_at(&["{peer=10.9.40.1:", "rsocket: request failed"]);
    end.send(()).unwrap();
    fabric.kill(&lost);
    // The thread of the mirrors handles the failure: no call follows.
    socket.send(b"x").unwrap();
    stalled.recv_timeout(TEST_TIMEOUT).unwrap();
    assert!(is_readable(&mirror, TEST_TIMEOUT));
    socket.recv(&mut [0]).unwrap_err();
    assert!(!is_readable(&other_mirror, Duration::ZERO));
    peer.write_all(b"y").unwrap();
    assert!(is_readable(&other_mirror, TEST_TIMEOUT));
    assert_eq!(other.recv(&mut [0]).unwrap(), 1);
}
