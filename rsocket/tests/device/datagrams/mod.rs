//! Datagram sockets.

mod too_long;
mod two_devices;

use std::{
    fs,
    io::{self, IoSlice, IoSliceMut},
    iter,
    net::{Shutdown, SocketAddr, UdpSocket},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use rsocket::{
    Family, PollEntry, PollEvents, RecvFlags, RecvMeta, SendOptions, Socket, errno, poll,
    proto::datagram::{Exchange, Operation},
};
use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::{local, local_v6, unresponsive_hosts::UnresponsiveHosts};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const EPIPE: i32 = 32;
const EDESTADDRREQ: i32 = 89;
const EMSGSIZE: i32 = 90;
const EOPNOTSUPP: i32 = 95;
const EAFNOSUPPORT: i32 = 97;
const ENOTCONN: i32 = 107;
const ECONNREFUSED: i32 = 111;

fn bound(addr: SocketAddr) -> Socket {
    let family = if addr.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    let socket = Socket::datagram(family).unwrap();
    socket.bind(addr).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT));
    socket.set_write_timeout(Some(TEST_TIMEOUT));
    socket
}

fn send(from: &Socket, to: &Socket, bytes: &[u8]) {
    let to = to.local_addr().unwrap();
    let sent = from.send_to(bytes, to).unwrap();
    assert_eq!(sent, bytes.len());
}

fn try_recv(socket: &Socket) -> io::Result<(Vec<u8>, RecvMeta)> {
    let mut buf = vec![0; 4096];
    let received = socket.recv_msg(&mut [IoSliceMut::new(&mut buf)], RecvFlags::empty())?;
    buf.truncate(received.len);
    Ok((buf, received))
}

fn recv(socket: &Socket) -> (Vec<u8>, RecvMeta) {
    try_recv(socket).unwrap()
}

fn is_quiet(socket: &Socket) -> bool {
    let mut buf = [0; 8];
    let received = socket.recv_msg(&mut [IoSliceMut::new(&mut buf)], RecvFlags::DONT_WAIT);
    received.is_err_and(|err| errno(&err) == EAGAIN)
}

/// Receives until no datagram arrives for 300 ms.
fn drain(socket: &Socket) -> u32 {
    let mut got = 0;
    loop {
        let mut entries = [PollEntry::socket(socket, PollEvents::IN)];
        if poll(&mut entries, Some(Duration::from_millis(300))).unwrap() == 0 {
            return got;
        }
        recv(socket);
        got += 1;
    }
}

fn number<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    errno(&result.unwrap_err())
}

/// RDMA device of the guest.
const DEVICE: &str = "rxe0";

/// Number of packets sent by a device, without UDP.
fn packets(device: &str) -> u64 {
    let counter = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    fs::read_to_string(counter).unwrap().trim().parse().unwrap()
}

/// Resolves the routes between two sockets, so that later datagrams use the device.
fn introduce(a: &Socket, b: &Socket) {
    introduce_by(
        DEVICE,
        (a, a.local_addr().unwrap()),
        (b, b.local_addr().unwrap()),
    );
}

/// Resolves the routes on any device, with explicit peer addresses.
fn introduce_by(device: &str, a: (&Socket, SocketAddr), b: (&Socket, SocketAddr)) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let before = packets(device);
        for ((from, source), (to, target)) in [(a, b), (b, a)] {
            let sent = from.send_to(b"hello", target);
            assert_eq!(sent.unwrap(), 5);
            let (bytes, received) = recv(to);
            assert_eq!(bytes, b"hello");
            assert_eq!(received.source, Some(source));
        }
        if packets(device) - before >= 2 {
            return;
        }
        assert!(Instant::now() < deadline);
    }
}

/// Resolves the routes again, tolerating late and lost datagrams.
fn introduce_again(a: &Socket, b: &Socket) {
    let set_timeouts = |timeout| [a, b].map(|socket| socket.set_read_timeout(Some(timeout)));
    set_timeouts(Duration::from_millis(100));
    let receives_from = |from: &Socket, to: &Socket, hello: &[u8]| {
        send(from, to, hello);
        iter::from_fn(|| try_recv(to).ok()).any(|(bytes, received)| {
            assert_eq!(received.source, Some(from.local_addr().unwrap()));
            bytes == hello
        })
    };
    let deadline = Instant::now() + TEST_TIMEOUT;
    for round in 0.. {
        let hello = format!("hello again ({round})").into_bytes();
        let before = packets(DEVICE);
        if receives_from(a, b, &hello)
            && receives_from(b, a, &hello)
            && packets(DEVICE) - before >= 2
        {
            break;
        }
        assert!(Instant::now() < deadline);
    }
    set_timeouts(TEST_TIMEOUT);
}

#[test]
fn datagrams_switch_from_udp_to_rdma() {
    for addr in [local(), local_v6()] {
        let (a, b) = (bound(addr), bound(addr));
        send(&a, &b, b"first");
        assert_eq!(recv(&b).0, b"first");
        introduce(&a, &b);
        a.connect(b.local_addr().unwrap()).unwrap();
        assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
        let pieces = [
            IoSlice::new(b"in "),
            IoSlice::new(b""),
            IoSlice::new(b"pieces"),
        ];
        assert_eq!(a.send_msg(&pieces, &SendOptions::new()).unwrap(), 9);
        let (mut head, mut tail) = ([0; 4], [0; 4]);
        let bufs = &mut [IoSliceMut::new(&mut head), IoSliceMut::new(&mut tail)];
        let received = b.recv_msg(bufs, RecvFlags::PEEK).unwrap();
        assert_eq!((received.len, received.full_len), (8, 9));
        assert_eq!((&head, &tail), (b"in p", b"iece"));
        assert_eq!(recv(&b).0, b"in pieces");
        assert!(is_quiet(&b));
    }
}

/// Seen from a plain UDP socket.
#[test]
fn udp_datagram_is_received_and_answered() {
    for addr in [local(), local_v6()] {
        let socket = bound(addr);
        let plain = UdpSocket::bind(addr).unwrap();
        plain.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let header = Exchange {
            operation: Operation::Data,
            qp_num: 0x0012_3456,
            addr: addr.ip(),
        };
        let message = [&*header.encode(), b"by hand"].concat();
        plain
            .send_to(&message, socket.local_addr().unwrap())
            .unwrap();
        let mut answer = [0; 100];
        let (len, from) = plain.recv_from(&mut answer).unwrap();
        assert_eq!(from, socket.local_addr().unwrap());
        let (answer, rest) = Exchange::decode(&answer[..len], addr.ip()).unwrap();
        assert_eq!(answer.operation, Operation::Answer);
        assert_eq!((answer.addr, rest.len()), (addr.ip(), 0));
        let (bytes, received) = recv(&socket);
        assert_eq!(bytes, b"by hand");
        let plain_addr = plain.local_addr().unwrap();
        assert_eq!(received.source, Some(plain_addr));

        // Before the route is resolved, the socket also sends over UDP.
        let new = bound(addr);
        new.send_to(b"hello", plain_addr).unwrap();
        let mut message = [0; 100];
        let (len, from) = plain.recv_from(&mut message).unwrap();
        assert_eq!(from, new.local_addr().unwrap());
        let (header, payload) = Exchange::decode(&message[..len], addr.ip()).unwrap();
        assert_eq!(header.operation, Operation::Data);
        assert_eq!((header.addr, payload), (addr.ip(), &b"hello"[..]));
    }
}

#[test]
fn udp_datagram_of_another_protocol_is_ignored() {
    let socket = bound(local_v6());
    let plain = UdpSocket::bind(local_v6()).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    for len in 0..200 {
        let mut junk = vec![0x55; len];
        for byte in junk.iter_mut().skip(4) {
            *byte = rng.u8(..);
        }
        plain.send_to(&junk, socket.local_addr().unwrap()).unwrap();
    }
    plain
        .send_to(&[0x55; 5000], socket.local_addr().unwrap())
        .unwrap();
    let peer = bound(local_v6());
    introduce(&peer, &socket);
    assert!(is_quiet(&socket));
}

#[test]
fn unbound_datagram_socket_sends_from_its_own_port() {
    let server = bound(local());
    let client = Socket::datagram(Family::V4).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT));
    for round in 0..20 {
        send(&client, &server, &[round]);
        let (bytes, received) = recv(&server);
        assert_eq!(bytes, [round]);
        let source = received.source.unwrap();
        assert_eq!(source.port(), client.local_addr().unwrap().port());
        assert_ne!(source.port(), 0);
        assert_eq!(source.ip(), local().ip());
        let sent = server.send_to(&bytes, source);
        assert_eq!(sent.unwrap(), 1);
        assert_eq!(recv(&client).0, [round]);
    }
}

/// Datagrams beyond the device's MTU are sent over UDP.
#[test]
fn datagram_of_each_size_arrives_whole_or_is_refused() {
    for (addr, header, max) in [(local(), 8, 2032), (local_v6(), 24, 2020)] {
        let (a, b) = (bound(addr), bound(addr));
        introduce(&a, &b);
        let packets = [256, 512, 1024, 2048].map(|mtu| [mtu - header, mtu - header + 1]);
        let sizes = packets.into_iter().flatten().filter(|&size| size < max);
        for size in [0, 1, 64, 65, 1500, max].into_iter().chain(sizes) {
            let bytes: Vec<u8> = (0..size).map(|at: usize| at.to_le_bytes()[0]).collect();
            send(&a, &b, &bytes);
            let (got, received) = recv(&b);
            assert_eq!(received.full_len, size);
            assert!(got == bytes, "{size}");
        }
        for size in [max + 1, 2041, 65507, 1 << 20] {
            let bytes = vec![0; size];
            let to = b.local_addr().unwrap();
            assert_eq!(number(a.send_to(&bytes, to)), EMSGSIZE);
        }
        assert!(is_quiet(&b));
    }
}

#[test]
fn restarted_datagram_peer_is_resolved_again() {
    let client = bound(local());
    let server = bound(local());
    let addr = server.local_addr().unwrap();
    introduce(&client, &server);
    server.close();
    let server = bound(addr);
    introduce_again(&client, &server);
}

#[test]
fn datagrams_beyond_the_receive_queue_are_dropped() {
    let (a, b) = (bound(local()), bound(local()));
    introduce(&a, &b);
    for number in 0..10_000_u32 {
        send(&a, &b, &number.to_be_bytes());
    }
    let mut entries = [PollEntry::socket(&a, PollEvents::OUT)];
    assert_eq!(poll(&mut entries, Some(TEST_TIMEOUT)).unwrap(), 1);
    // At least as many as the queue holds, plus arrivals during the check.
    let got = drain(&b);
    assert!(got >= 64, "{got}");
    introduce_again(&a, &b);
    assert_eq!(b.receive_queue(), 64);
}

/// With one device.
#[test]
fn closed_datagram_socket_wakes_blocked_receiver() {
    let (a, b) = (bound(local()), bound(local()));
    introduce(&a, &b);
    let to = b.local_addr().unwrap();
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for _ in 0..2000 {
                a.send_to(b"x", to).unwrap();
            }
        });
        thread::sleep(Duration::from_millis(50));
        b.close();
        sending.join().unwrap();
    });
    let waiting = bound(local());
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut buf = [0; 8];
            waiting.recv(&mut buf)
        });
        thread::sleep(Duration::from_millis(100));
        waiting.close();
        assert!(waits.join().unwrap().is_err());
    });
}

/// UDP's buffer holds the unsent datagrams and is full.
#[test]
fn datagram_socket_reported_writable_has_room() {
    let unresponsive_hosts = UnresponsiveHosts::new();
    let unreachable = unresponsive_hosts.host();
    let socket = bound(local());
    set_socket_send_buffer_size(socket.udp_socket().unwrap(), 1).unwrap();
    let send = || socket.send_to(&[0; 1000], unreachable);
    for waits_by_descriptor in [false, true] {
        socket.set_nonblocking(true);
        let full = (0..1000).find_map(|_| send().err());
        assert_eq!(errno(&full.expect("there is always room")), EAGAIN);
        let mut entries = [if waits_by_descriptor {
            PollEntry::fd(socket.as_fd(), PollEvents::IN)
        } else {
            PollEntry::socket(&socket, PollEvents::OUT)
        }];
        assert_eq!(poll(&mut entries, Some(TEST_TIMEOUT)).unwrap(), 1);
        assert_eq!(send().unwrap(), 1000);
        // A blocking send waits for room.
        socket.set_nonblocking(false);
        for _ in 0..10 {
            assert_eq!(send().unwrap(), 1000);
        }
    }
}

#[test]
fn datagram_call_in_wrong_state_fails_without_damage() {
    let new = Socket::datagram(Family::V4).unwrap();
    let mut buf = [0; 8];
    let bufs = &mut [IoSliceMut::new(&mut buf)];
    assert_eq!(number(new.recv_msg(bufs, RecvFlags::empty())), EINVAL);
    assert_eq!(number(new.send(b"x")), EDESTADDRREQ);
    assert_eq!(number(new.listen(1)), EOPNOTSUPP);
    assert_eq!(number(new.accept()), EOPNOTSUPP);
    assert_eq!(number(new.peer_addr()), ENOTCONN);
    let v6 = local_v6();
    assert_eq!(number(new.send_to(b"x", v6)), EAFNOSUPPORT);
    new.set_receive_queue(16).unwrap();
    new.bind(local()).unwrap();
    assert_eq!(new.receive_queue(), 16);
    assert_eq!(number(new.set_receive_queue(32)), EINVAL);
    assert!(new.bind(local()).is_err());
    assert_eq!(number(bound_again(&new)), 98);
}

fn bound_again(socket: &Socket) -> io::Result<()> {
    Socket::datagram(Family::V4)
        .unwrap()
        .bind(socket.local_addr().unwrap())
}

#[test]
fn connected_datagram_socket_without_peer_is_refused() {
    let closed_addr = bound(local()).local_addr().unwrap();
    let client = bound(local());
    client.connect(closed_addr).unwrap();
    client.send(b"x").unwrap();
    let mut buf = [0; 8];
    let received = client.recv(&mut buf);
    assert_eq!(number(received), ECONNREFUSED);
    assert!(client.take_error().is_none());
    let addr = client.local_addr().unwrap();
    client.disconnect().unwrap();
    assert_eq!(client.local_addr().unwrap(), addr);
    assert_eq!(number(client.send(b"x")), EDESTADDRREQ);
}

#[test]
fn datagram_shutdown_and_data_change_readiness() {
    let (a, b) = (bound(local()), bound(local()));
    let both = PollEvents::IN | PollEvents::OUT;
    let look = |socket: &Socket| {
        let mut entries = [PollEntry::socket(socket, both)];
        poll(&mut entries, Some(Duration::ZERO)).unwrap();
        entries[0].ready()
    };
    assert_eq!(look(&a), PollEvents::OUT);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            send(&b, &a, b"by udp");
        });
        let mut entries = [PollEntry::socket(&a, PollEvents::IN)];
        assert_eq!(poll(&mut entries, Some(TEST_TIMEOUT)).unwrap(), 1);
        assert_eq!(entries[0].ready(), PollEvents::IN);
    });
    assert_eq!(recv(&a).0, b"by udp");
    introduce(&a, &b);
    // The descriptor notifies nonblocking callers.
    a.set_nonblocking(true);
    assert!(is_quiet(&a));
    send(&b, &a, b"by the device");
    assert!(verbs::fd::wait_readable("poll", a.as_fd(), Some(TEST_TIMEOUT)).unwrap());
    assert_eq!(recv(&a).0, b"by the device");
    a.set_nonblocking(false);
    thread::scope(|scope| {
        let waits = scope.spawn(|| recv(&a).1);
        thread::sleep(Duration::from_millis(100));
        a.shutdown(Shutdown::Read).unwrap();
        assert_eq!(waits.join().unwrap().source, None);
    });
    a.shutdown(Shutdown::Write).unwrap();
    let sent = a.send_to(b"x", b.local_addr().unwrap());
    assert_eq!(number(sent), EPIPE);
    assert_eq!(look(&a), both | PollEvents::HUP);
}

/// An IPv6 socket exchanges datagrams with both families.
#[test]
fn ipv6_datagram_socket_exchanges_with_ipv4() {
    let any: SocketAddr = "[::]:0".parse().unwrap();
    let server = bound(any);
    let client = bound(local());
    let to = SocketAddr::new(local().ip(), server.local_addr().unwrap().port());
    for round in 0..10 {
        client.send_to(&[round], to).unwrap();
        let (bytes, received) = recv(&server);
        assert_eq!(bytes, [round]);
        let source = received.source.unwrap();
        assert!(source.is_ipv6());
        assert_eq!(source.ip().to_canonical(), local().ip());
        server.send_to(&bytes, source).unwrap();
        let (bytes, received) = recv(&client);
        assert_eq!((bytes, received.source), (vec![round], Some(to)));
    }
}
