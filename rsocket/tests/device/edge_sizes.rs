//! Extreme sizes, numbers and times.

#[path = "../../../cm/tests/shared/descriptor_limit.rs"]
mod descriptor_limit;

use std::{
    collections::HashMap,
    io::{IoSlice, IoSliceMut, Read, Write},
    net::Shutdown,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rsocket::{
    EventSet, Family, Listener, Options, PollEntry, PollEvents, RecvFlags, Registration, Socket,
    Stream, errno, poll,
};

use descriptor_limit::Limited;

use crate::{connected, listening, local, often};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const EAGAIN: i32 = 11;
const EMFILE: i32 = 24;

fn streams(options: &Options) -> (Stream, Stream) {
    let listener = options.listen(local()).unwrap();
    let client = options.connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    (client, server)
}

/// A connection with a nonblocking first side.
fn nonblocking_client() -> (Socket, Socket) {
    let (client, server) = connected();
    client.set_nonblocking(true);
    (client, server)
}

#[test]
fn write_vectored_and_read_vectored_keep_order() {
    let (client, server) = streams(&Options::new());
    let mut rng = Rng::with_seed(3);
    for count in [1, 2, 7, 64, 1024] {
        let pieces: Vec<Vec<u8>> = (0..count)
            .map(|_| (0..rng.usize(0..50)).map(|_| rng.u8(..)).collect())
            .collect();
        let expected = pieces.concat();
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        assert_eq!((&client).write_vectored(&slices).unwrap(), expected.len());
        let mut got: Vec<u8> = Vec::new();
        while got.len() < expected.len() {
            let (mut a, mut empty, mut b) = ([0; 5], [0; 0], vec![0; 300]);
            let bufs = &mut [
                IoSliceMut::new(&mut a),
                IoSliceMut::new(&mut empty),
                IoSliceMut::new(&mut b),
            ];
            let len = (&server).read_vectored(bufs).unwrap();
            got.extend(a.iter().chain(&b).take(len));
        }
        assert!(got == expected, "{count} pieces");
    }
}

#[test]
fn writes_with_each_inline_size_arrive() {
    for inline in [0, 4, 16, 24, 64, 256] {
        let (mut client, mut server) = streams(&Options::new().inline(inline));
        // The device may offer more.
        assert!(client.settings().inline >= inline);
        for len in [1, 16, 64, 65, 256, 257, 5000] {
            let bytes: Vec<u8> = (0..len).map(|at: usize| at.to_le_bytes()[0]).collect();
            client.write_all(&bytes).unwrap();
            let mut got = vec![0; len];
            server.read_exact(&mut got).unwrap();
            assert!(got == bytes, "{inline} {len}");
        }
    }
}

/// Takes twenty minutes if control messages find empty receive queues.
#[test]
fn small_messages_through_smallest_queues_do_not_stall() {
    let options = Options::new().send_queue(16).receive_queue(16);
    let (a, b) = streams(&options);
    thread::scope(|scope| {
        for stream in [&a, &b] {
            scope.spawn(move || {
                for number in 0..2000_u32 {
                    (&*stream).write_all(&number.to_le_bytes()[..1]).unwrap();
                }
            });
            scope.spawn(move || {
                for number in 0..2000_u32 {
                    let mut byte = [0];
                    (&*stream).read_exact(&mut byte).unwrap();
                    assert_eq!(byte, number.to_le_bytes()[..1]);
                }
            });
        }
    });
}

#[test]
fn poll_for_room_returns_when_the_peer_reads() {
    let (client, server) = nonblocking_client();
    let bytes = vec![7; 8192];
    let mut sent = 0;
    let polled = |timeout| {
        let mut entries = [PollEntry::socket(&client, PollEvents::OUT)];
        let count = poll(&mut entries, Some(timeout)).unwrap();
        (count, entries[0].ready())
    };
    // Until the peer's buffer and this side's are full. A late completion of a send leaves free bytes for a few more.
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        assert!(Instant::now() < until, "{sent} bytes and no end");
        match client.send(&bytes) {
            Ok(len) => sent += len,
            Err(err) => {
                assert_eq!(errno(&err), 11);
                if polled(Duration::from_millis(100)).0 == 0 {
                    break;
                }
            }
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            let mut got = 0;
            let mut buf = vec![0; 1 << 16];
            while got < sent {
                got += server.recv(&mut buf).unwrap();
            }
        });
        assert_eq!(polled(TEST_TIMEOUT), (1, PollEvents::OUT));
    });
    assert!(client.send(&bytes).unwrap() > 0);
}

/// Two entries for a socket, as `nc` has them, while another thread handles the socket's completions.
#[test]
fn poll_of_a_socket_in_two_entries_waits_for_both_events() {
    let (client, server) = nonblocking_client();
    let bytes = vec![7; 8192];
    let mut sent = 0;
    while let Ok(len) = client.send(&bytes) {
        sent += len;
    }
    client.set_nonblocking(false);
    thread::scope(|scope| {
        let received = scope.spawn(|| client.recv(&mut [0]).unwrap());
        // The first thread to sleep handles the completions.
        thread::sleep(Duration::from_millis(50));
        let polled = scope.spawn(|| {
            let mut entries =
                [PollEvents::OUT, PollEvents::IN].map(|events| PollEntry::socket(&client, events));
            poll(&mut entries, Some(TEST_TIMEOUT)).unwrap();
            entries.map(|entry| entry.ready())
        });
        // Room becomes available while both threads sleep.
        thread::sleep(Duration::from_millis(100));
        let mut got = 0;
        let mut buf = vec![0; 1 << 16];
        while got < sent {
            got += server.recv(&mut buf).unwrap();
        }
        let ready = polled.join().unwrap();
        server.send(b"x").unwrap();
        assert_eq!(received.join().unwrap(), 1);
        assert_eq!(ready, [PollEvents::OUT, PollEvents::empty()]);
    });
}

#[test]
fn poll_of_listener_returns_on_connection() {
    let listener = listening();
    thread::scope(|scope| {
        let connects = scope.spawn(|| {
            thread::sleep(Duration::from_millis(1500));
            Stream::connect(listener.local_addr().unwrap()).unwrap()
        });
        let mut entries = [PollEntry::socket(&listener, PollEvents::IN)];
        assert_eq!(poll(&mut entries, Some(TEST_TIMEOUT)).unwrap(), 1);
        listener.accept().unwrap();
        connects.join().unwrap();
    });
}

#[test]
fn shutdown_keeps_nonblocking_mode() {
    let (client, server) = nonblocking_client();
    client.shutdown(Shutdown::Write).unwrap();
    assert!(client.is_nonblocking());
    let mut buf = [0];
    let received = client.recv(&mut buf);
    assert_eq!(errno(&received.unwrap_err()), 11);
    let received = server.recv(&mut buf);
    assert_eq!(received.unwrap(), 0);
}

#[test]
fn event_set_of_many_sockets_loses_no_event() {
    let (sockets, rounds) = (often(100, 200), often(10, 500));
    let listener = listening();
    let set = EventSet::new().unwrap();
    let (mut clients, mut servers) = (Vec::new(), HashMap::new());
    for name in 0..u64::from(sockets) {
        // Minimum sizes, to fit the memory of all sockets.
        let client = Socket::new(Family::V4).unwrap();
        client.set_send_queue(16).unwrap();
        client.set_receive_queue(16).unwrap();
        client.connect(listener.local_addr().unwrap()).unwrap();
        let server = Arc::new(listener.accept().unwrap().0);
        let interest = Registration {
            events: PollEvents::IN,
            data: name,
            ..Registration::default()
        };
        set.add_socket(name, &server, interest).unwrap();
        servers.insert(name, server);
        clients.push(client);
    }
    let mut rng = Rng::with_seed(5);
    for _ in 0..rounds {
        rng.shuffle(&mut clients);
        for client in &clients {
            client.send(b"ping").unwrap();
        }
        let mut echoed = 0;
        while echoed < sockets {
            let occurred = set.wait(16, Some(TEST_TIMEOUT)).unwrap();
            assert!(!occurred.is_empty(), "{echoed} of {sockets}");
            for event in occurred {
                let server = &servers[&event.data];
                let mut buf = [0; 4];
                let bufs = &mut [IoSliceMut::new(&mut buf)];
                assert_eq!(server.recv_msg(bufs, RecvFlags::WAIT_ALL).unwrap().len, 4);
                server.send(&buf).unwrap();
                echoed += 1;
            }
        }
        for client in &clients {
            let mut buf = [0; 4];
            let bufs = &mut [IoSliceMut::new(&mut buf)];
            assert_eq!(client.recv_msg(bufs, RecvFlags::WAIT_ALL).unwrap().len, 4);
            assert_eq!(&buf, b"ping");
        }
    }
}

#[test]
fn keepalive_of_many_sockets_is_enabled_and_disabled() {
    let listener = listening();
    let mut rng = Rng::with_seed(7);
    let mut pairs = Vec::new();
    for _ in 0..50 {
        let client = Socket::new(Family::V4).unwrap();
        client.set_send_queue(16).unwrap();
        client.set_receive_queue(16).unwrap();
        client.connect(listener.local_addr().unwrap()).unwrap();
        pairs.push((client, listener.accept().unwrap().0));
    }
    while !pairs.is_empty() {
        for _ in 0..10 {
            let (client, _) = &pairs[rng.usize(0..pairs.len())];
            let idle = Duration::from_millis(rng.u64(1..20));
            client.set_keep_idle(idle).unwrap();
            client.set_keep_alive(rng.u8(0..4) > 0);
        }
        thread::sleep(Duration::from_millis(5));
        let (client, server) = pairs.swap_remove(rng.usize(0..pairs.len()));
        client.send(b"x").unwrap();
        let mut buf = [0];
        assert_eq!(server.recv(&mut buf).unwrap(), 1);
        client.close();
    }
}

/// A write to an unmapped range breaks the connection.
#[test]
fn write_at_unmapped_range_fails() {
    let (mut client, mut server) = streams(&Options::new().iomap_size(1));
    let mapped = client.map(4096, Some(0)).unwrap();
    client.write_all(b"!").unwrap();
    server.read_exact(&mut [0]).unwrap();
    assert_eq!(server.write_at(b"here", 0).unwrap(), 4);
    drop(mapped);
    server.set_read_timeout(Some(TEST_TIMEOUT));
    // The peer's device refuses the first write asynchronously.
    drop(server.write_at(b"gone", 0));
    let ended = server.read(&mut [0]).unwrap_err();
    assert_ne!(errno(&ended), 11);
    // Later writes report the same failure.
    let written = server.write_at(b"gone", 0).unwrap_err();
    assert_eq!(written.kind(), ended.kind());
    assert_eq!(written.to_string(), ended.to_string());
}

/// Announcing a mapping uses a credit, returned by the peer.
#[test]
fn mappings_through_smallest_queues_do_not_stall() {
    let options = Options::new().send_queue(16).receive_queue(16);
    let (mut client, mut server) = streams(&options.iomap_size(1));
    for round in 0..often(200, 1000) {
        let mapped = client.map(64, Some(7)).unwrap();
        client.write_all(b"!").unwrap();
        server.read_exact(&mut [0]).unwrap();
        let bytes = u64::from(round).to_le_bytes();
        assert_eq!(server.write_at(&bytes, 7).unwrap(), 8);
        server.write_all(b"!").unwrap();
        client.read_exact(&mut [0]).unwrap();
        let mut stored = [0; 8];
        mapped.read(0, &mut stored);
        assert_eq!(stored, bytes);
    }
}

#[test]
fn map_of_four_gigabytes_is_refused() {
    let (client, _server) = streams(&Options::new().iomap_size(1));
    let refused = client.map(1 << 32, None).map(drop);
    assert_eq!(errno(&refused.unwrap_err()), 22);
}

#[test]
fn socket_without_free_descriptors_fails_and_others_continue() {
    let listener = Listener::bind(local()).unwrap();
    let mut old = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let limited = Limited::to(used + 12);
    let mut open = Vec::new();
    let error = loop {
        match Socket::new(Family::V4) {
            Ok(socket) => open.push(socket),
            Err(err) => break err,
        }
        match Socket::datagram(Family::V4) {
            Ok(socket) => open.push(socket),
            Err(err) => break err,
        }
    };
    assert_eq!(errno(&error), EMFILE, "{error}");
    // The remaining descriptors do not suffice for a connection.
    assert!(Stream::connect(listener.local_addr().unwrap()).is_err());
    old.write_all(b"still").unwrap();
    peer.read_exact(&mut [0; 5]).unwrap();
    drop((open, limited));
    let mut new = Stream::connect(listener.local_addr().unwrap()).unwrap();
    new.write_all(b"again").unwrap();
    loop {
        // The failed connection may come first, accepted or as an error.
        let (mut server, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(err) => {
                assert_eq!(errno(&err), EMFILE, "{err}");
                continue;
            }
        };
        if from == new.local_addr().unwrap() {
            server.read_exact(&mut [0; 5]).unwrap();
            return;
        }
    }
}

/// A call that waits for data, as long as the time or without limit, and whether there was some.
type Call = fn(&Socket, &EventSet, Option<Duration>) -> bool;

/// The kernel's sockets need no new descriptor for these calls. Each is the first of its thread.
#[test]
fn blocked_calls_need_no_free_descriptor() {
    let calls: [Call; 3] = [
        |socket, _, time| {
            socket.set_read_timeout(time);
            let received = socket.peek(&mut [0; 8]);
            received
                .map_err(|err| assert_eq!(errno(&err), EAGAIN))
                .is_ok()
        },
        |socket, _, time| {
            let mut entries = [PollEntry::socket(socket, PollEvents::IN)];
            poll(&mut entries, time).unwrap() == 1
        },
        |_, set, time| set.wait(1, time).unwrap().len() == 1,
    ];
    let (client, server) = connected();
    let server = Arc::new(server);
    let set = EventSet::new().unwrap();
    let interest = Registration {
        events: PollEvents::IN,
        ..Registration::default()
    };
    set.add_socket(0, &server, interest).unwrap();
    // All descriptors below are in use.
    let _limited = Limited::to(8);
    let refused = EventSet::new().map(drop);
    assert_eq!(errno(&refused.unwrap_err()), EMFILE);
    for call in calls {
        thread::scope(|scope| {
            let (waits, waited) = mpsc::channel();
            let (server, set) = (&server, &set);
            let caller = scope.spawn(move || {
                assert!(!call(server, set, Some(Duration::from_millis(5))));
                waits.send(()).unwrap();
                assert!(call(server, set, None));
                assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
            });
            waited.recv().unwrap();
            client.send(b"!").unwrap();
            caller.join().unwrap();
        });
    }
}
