//! Results and errors of calls, compared to the kernel's sockets.

use std::{
    collections::HashSet,
    io::{self, IoSlice},
    iter,
    net::{Ipv6Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use rds::{EngineOptions, Event, Interest, SendOptions, Socket};

use crate::{TEST_TIMEOUT, addr, another_of, any, local, other, pattern, socket};

fn number<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    rds::errno(&result.unwrap_err())
}

#[test]
fn bind_accepts_device_addresses_only() {
    let engine = EngineOptions::new().start().unwrap();
    let new = || engine.socket().unwrap();
    let ip = local().into();
    for (addr, errno) in [
        (SocketAddr::from(([0, 0, 0, 0], 5)), 22),
        (SocketAddr::from(([255, 255, 255, 255], 5)), 22),
        (SocketAddr::from(([224, 0, 0, 1], 5)), 22),
        (SocketAddr::new(ip, 1), 22),
        (SocketAddr::from(([192, 0, 2, 1], 5)), 99),
    ] {
        assert_eq!(number(new().bind_to(addr)), errno, "{addr}");
    }
    let last = new();
    assert_eq!(
        last.bind_to(SocketAddr::new(ip, 65535)).unwrap().port(),
        65535
    );
    assert_eq!(number(new().bind_to(SocketAddr::new(ip, 65535))), 98);
    assert_eq!(number(last.bind_to(any())), 22, "it has one");
    let sockets: Vec<Socket> = (0..1000).map(|_| new()).collect();
    let ports: HashSet<u16> = sockets
        .iter()
        .map(|socket| socket.bind_to(any()).unwrap().port())
        .collect();
    assert_eq!(ports.len(), 1000);
    assert!(ports.iter().all(|&port| port >= 2));
}

#[test]
fn local_and_peer_addr_follow_bind_and_connect() {
    let engine = EngineOptions::new().start().unwrap();
    let socket = engine.socket().unwrap();
    let unbound = SocketAddr::from(([0; 4], 0));
    assert_eq!(socket.local_addr().unwrap(), unbound);
    assert_eq!(number(socket.peer_addr()), 107);
    let peer = SocketAddr::new(other().ip(), 7);
    socket.connect(peer).unwrap();
    assert_eq!(socket.local_addr().unwrap(), unbound);
    assert_eq!(socket.peer_addr().unwrap(), peer);
    let bound = socket.bind_to(any()).unwrap();
    assert_eq!(socket.local_addr().unwrap(), bound);
    assert_eq!(number(socket.connect(([0, 0, 0, 0], 5).into())), 89);
    assert_eq!(number(socket.connect(([224, 0, 0, 1], 5).into())), 22);
    let v6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 5);
    assert_eq!(number(socket.send_to(b"", v6)), 95);
}

#[test]
fn connect_changes_the_default_destination() {
    let (a, b) = (socket(any()), socket(other()));
    let c = another_of(&b);
    assert_eq!(number(a.send(b"where?")), 107);
    for to in [&b, &c, &b] {
        a.connect(addr(to)).unwrap();
        a.send(b"there").unwrap();
        assert!(matches!(to.recv_event().unwrap(), Event::Message(_)));
    }
}

#[test]
fn send_rejects_messages_over_the_limit() {
    let a = socket(any());
    let to = SocketAddr::new(other().ip(), 9);
    assert_eq!(number(a.send_to(&vec![0; 106_497], to)), 90);
    a.send_to(&vec![0; 106_496], to).unwrap();
    a.set_send_limit(4 << 20).unwrap();
    assert_eq!(number(a.send_to(&vec![0; (1 << 20) + 1], to)), 90);
    a.send_to(&vec![0; 1 << 20], to).unwrap();
    a.cancel_sent_to(None).unwrap();
    assert_eq!(a.queued().unwrap(), (0, 0));
    assert_eq!(number(a.send_to(b"", SocketAddr::new(other().ip(), 1))), 22);
}

#[test]
fn set_transport_accepts_infiniband_only() {
    let engine = EngineOptions::new().start().unwrap();
    let new = || engine.socket().unwrap();
    let chosen = new();
    assert_eq!(chosen.transport().unwrap(), None);
    for (transport, errno) in [(3, 22), (-1, 22), (1, 92), (2, 92)] {
        assert_eq!(number(chosen.set_transport(transport)), errno);
    }
    chosen.set_transport(0).unwrap();
    assert_eq!(chosen.transport().unwrap(), Some(0));
    assert_eq!(number(chosen.set_transport(0)), 95);
    let home = SocketAddr::from(([127, 0, 0, 1], 0));
    assert_eq!(number(chosen.bind_to(home)), 92);
    let bound = new();
    bound.bind_to(any()).unwrap();
    assert_eq!(number(bound.set_transport(0)), 95);
    let at_home = new();
    at_home.bind_to(home).unwrap();
    assert_eq!(at_home.transport().unwrap(), Some(3));
}

#[test]
fn set_tos_works_once() {
    let (a, b) = (socket(any()), socket(other()));
    let second = a.engine().socket().unwrap();
    assert_eq!(number(second.set_tos(3)), 107);
    second.bind_to(any()).unwrap();
    second.set_tos(3).unwrap();
    assert_eq!(number(second.set_tos(4)), 22);
    assert_eq!((second.tos(), a.tos()), (3, 0));
    for from in [&a, &second] {
        from.send_to(b"hello", addr(&b)).unwrap();
        assert!(matches!(b.recv_event().unwrap(), Event::Message(_)));
    }
    assert_eq!(number(a.set_tos(3)), 22, "something has been sent");
    let info = a.engine().info().unwrap();
    let mut tos: Vec<u8> = info.connections.iter().map(|one| one.tos).collect();
    tos.sort_unstable();
    assert_eq!(tos, [0, 3]);
}

#[test]
fn message_timestamp_and_latency_are_plausible() {
    let (a, b) = (socket(any()), socket(other()));
    let before = std::time::SystemTime::now();
    a.set_send_limit(1 << 20).unwrap();
    let mut last = before;
    let mut takes_time = false;
    // All frames of a message may arrive within one poll.
    for len in iter::once(0).chain(iter::repeat_n(1 << 20, 20)) {
        if takes_time {
            break;
        }
        a.send_to(&pattern(len, 1), addr(&b)).unwrap();
        while b.queued().unwrap().1 < len as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        let Event::Message(message) = b.recv_event().unwrap() else {
            panic!("something else");
        };
        assert!(message.timestamp() >= last);
        last = message.timestamp();
        assert_eq!(message.latency().as_nanos()[0], 0);
        takes_time = message.latency().assembly > Duration::ZERO;
        assert!(len > 0 || !takes_time);
    }
    assert!(takes_time);
    assert!(last <= std::time::SystemTime::now());
}

/// Without a kernel.
#[test]
fn concurrent_senders_and_receivers_lose_nothing() {
    const EACH: u32 = 300;
    let (a, b) = (socket(any()), socket(other()));
    let to = addr(&b);
    let mut got = thread::scope(|scope| {
        for sender in 0..4_u32 {
            let a = &a;
            scope.spawn(move || {
                for i in 0..EACH {
                    let words = [sender.to_le_bytes(), i.to_le_bytes()];
                    let bufs = words.each_ref().map(|word| IoSlice::new(word));
                    a.send_msg(&bufs, &SendOptions::new().to(to)).unwrap();
                }
            });
        }
        let receivers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut got = Vec::new();
                    for _ in 0..EACH {
                        let mut buf = [0; 8];
                        assert_eq!(b.recv_from(&mut buf).unwrap().0, 8);
                        got.push(u64::from_le_bytes(buf));
                    }
                    // Each receiver gets the messages of a sender in order.
                    for sender in 0..4 {
                        let of = got.iter().filter(|word| **word & 0xffff_ffff == sender);
                        assert!(of.is_sorted());
                    }
                    got
                })
            })
            .collect();
        let joined = receivers.into_iter().map(|receiver| receiver.join());
        joined.flat_map(Result::unwrap).collect::<Vec<_>>()
    });
    got.sort_unstable();
    got.dedup();
    assert_eq!(got.len(), 4 * EACH as usize);
}

/// Without a kernel.
#[test]
fn congestion_of_slow_reader_blocks_senders() {
    let (a, b) = (socket(any()), socket(other()));
    b.set_recv_limit(20_000).unwrap();
    a.set_congestion_monitor(true).unwrap();
    let bytes = [0; 1000];
    let options = SendOptions::new().to(addr(&b)).dont_wait();
    let mut sent = 0;
    let until = Instant::now() + TEST_TIMEOUT.unwrap();
    let err = loop {
        match a.send_msg(&[IoSlice::new(&bytes)], &options) {
            Ok(_) => sent += 1,
            Err(err) if rds::errno(&err) == 11 => thread::sleep(Duration::from_millis(5)),
            Err(err) => break err,
        }
        thread::sleep(Duration::from_millis(20));
        assert!(
            Instant::now() < until,
            "no congestion after {sent} messages"
        );
    };
    assert_eq!(rds::errno(&err), 105);
    assert!(sent >= 21, "{sent}");
    // Another port of the host stays usable.
    let second = b.engine().socket().unwrap();
    second.set_read_timeout(TEST_TIMEOUT);
    let at_second = second.bind_to(other()).unwrap();
    a.send_to(b"beside", at_second).unwrap();
    assert!(matches!(second.recv_event().unwrap(), Event::Message(_)));
    a.set_write_timeout(Some(Duration::from_millis(200)));
    assert_eq!(number(a.send_to(&bytes, addr(&b))), 110);
    a.set_write_timeout(TEST_TIMEOUT);
    thread::scope(|scope| {
        scope.spawn(|| a.send_to(&bytes, addr(&b)).unwrap());
        thread::sleep(Duration::from_millis(100));
        for _ in 0..=sent {
            assert!(matches!(b.recv_event().unwrap(), Event::Message(_)));
        }
    });
    match a.recv_event().unwrap() {
        Event::Congestion(ports) => assert_eq!(ports, 1 << (addr(&b).port() % 64)),
        other => panic!("{other:?}"),
    }
    assert!(a.readiness(Interest::ReadWrite).unwrap().writable);
}

#[test]
fn close_of_sender_leaves_a_prefix_and_ping_is_answered() {
    let (a, b) = (socket(any()), socket(other()));
    let (to, engine) = (addr(&b), a.engine().clone());
    let first = engine.socket().unwrap();
    first.bind_to(any()).unwrap();
    for i in 0..100_u32 {
        first.send_to(&i.to_le_bytes(), to).unwrap();
    }
    drop(first);
    a.send_to(&u32::MAX.to_le_bytes(), to).unwrap();
    let mut next = 0;
    loop {
        let mut buf = [0; 4];
        b.recv_from(&mut buf).unwrap();
        let i = u32::from_le_bytes(buf);
        if i == u32::MAX {
            break;
        }
        assert_eq!(i, next, "nothing is missing before");
        next += 1;
    }
    let ping = SocketAddr::new(other().ip(), 0);
    for _ in 0..3 {
        a.send_to(b"", ping).unwrap();
        assert_eq!(a.recv_from(&mut [0; 4]).unwrap(), (0, ping));
    }
}

/// Without a kernel.
#[test]
fn ipv6_messages_arrive_both_ways() {
    let (a, b) = crate::v6_pair();
    let (a, b) = (socket(a), socket(b));
    for (from, to) in [(&a, &b), (&b, &a)] {
        let bytes = pattern(10_000, 6);
        from.send_to(&bytes, addr(to)).unwrap();
        match to.recv_event().unwrap() {
            Event::Message(message) => {
                assert_eq!((message.from(), message.to_vec()), (addr(from), bytes));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Loopback messages need no device, and are dropped if the port is unbound.
#[test]
fn loopback_address_delivers_messages() {
    let engine = EngineOptions::new().start().unwrap();
    let home = SocketAddr::from(([127, 0, 0, 1], 0));
    let [a, b] = [(); 2].map(|()| engine.socket().unwrap());
    let from = a.bind_to(home).unwrap();
    a.send_to(b"nobody", SocketAddr::new(home.ip(), 7)).unwrap();
    assert_eq!(a.queued().unwrap(), (0, 0));
    let to = b.bind_to(home).unwrap();
    b.set_read_timeout(TEST_TIMEOUT);
    a.send_to(b"hello", to).unwrap();
    let mut buf = [0; 16];
    assert_eq!(b.recv_from(&mut buf).unwrap(), (5, from));
    assert_eq!(rds::errno(&a.alloc(1).unwrap_err()), 95, "without a device");
    assert!(engine.info().unwrap().connections.is_empty());
}
