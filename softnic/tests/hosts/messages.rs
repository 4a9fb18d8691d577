//! Reliable datagrams between two hosts, each with an engine of its own.

use std::net::IpAddr;

use rds::{EngineOptions, Event, Message, Socket};
use softnic::{Call, Fabric, Host};

use crate::{TEST_TIMEOUT, at, hosts, pattern};

/// A bound socket on an engine of its own, on a host.
pub(crate) fn socket(host: &Host, port: u16) -> Socket {
    host.run(|| {
        let engine = EngineOptions::new().start().unwrap();
        let socket = engine.socket().unwrap();
        socket.bind_to(at(host, port)).unwrap();
        socket.set_read_timeout(TEST_TIMEOUT);
        socket.set_write_timeout(TEST_TIMEOUT);
        socket
    })
}

/// The next message.
fn received(socket: &Socket) -> Message {
    match socket.recv_event().unwrap() {
        Event::Message(message) => message,
        other => unreachable!("no other event is enabled: {other:?}"),
    }
}

/// Sends messages of many sizes, and checks that each arrives once and in order.
fn exchange(from: &Socket, to: &Socket) {
    let dest = to.local_addr().unwrap();
    let lens = [0, 1, 64, 4096, 10_000, 20_000];
    for (seed, len) in (0..).zip(lens) {
        assert_eq!(from.send_to(&pattern(len, seed), dest).unwrap(), len);
    }
    for (seed, len) in (0..).zip(lens) {
        let message = received(to);
        assert_eq!(message.from(), from.local_addr().unwrap());
        assert!(message.to_vec() == pattern(len, seed), "message {seed}");
    }
}

#[test]
fn messages_between_two_hosts_arrive_once_and_in_order() {
    let fabric = Fabric::new().keep_objects();
    let [a, b] = hosts(&fabric, 21).map(|host| socket(&host, 4000));
    exchange(&a, &b);
    exchange(&b, &a);
}

/// Exchanges messages of `both` while `call`, caused by `cause`, is blocked on `host`.
fn exchange_while_blocked(host: &Host, call: Call, both: &[Socket; 2], cause: impl FnOnce()) {
    let holding = host.hold(call);
    cause();
    let is_blocked = holding.wait_for_call(TEST_TIMEOUT.unwrap());
    assert!(is_blocked, "{call} is not called");
    let [a, b] = both;
    exchange(a, b);
    exchange(b, a);
}

#[test]
fn messages_of_a_connection_go_on_while_a_call_for_another_is_blocked() {
    let fabric = Fabric::new().keep_objects();
    let hosts = hosts(&fabric, 25);
    let blocked = &hosts[0];
    let both = hosts.each_ref().map(|host| socket(host, 4000));
    exchange(&both[0], &both[1]);
    let dest = at(blocked, 4000);
    let third = |number| socket(&fabric.host(IpAddr::from([10, 9, 25, number])), 4000);
    for (number, call) in (3..).zip([Call::CreateQp, Call::ModifyQp, Call::Accept]) {
        let peer = third(number);
        exchange_while_blocked(blocked, call, &both, || {
            peer.send_to(b"accepted", dest).unwrap();
        });
        assert_eq!(received(&both[0]).to_vec(), b"accepted");
    }
    let ends = [Call::ModifyQp, Call::Disconnect, Call::DestroyQp];
    let calls = [Call::ResolveAddr, Call::Connect, Call::Establish];
    for (number, (call, end)) in (6..).zip(calls.into_iter().zip(ends)) {
        let peer = third(number);
        exchange_while_blocked(blocked, call, &both, || {
            let to = peer.local_addr().unwrap();
            both[0].send_to(b"dialed", to).unwrap();
        });
        assert_eq!(received(&peer).to_vec(), b"dialed");
        exchange_while_blocked(blocked, end, &both, || drop(peer));
    }
}

#[test]
fn messages_over_a_link_with_duplicates_arrive_once_and_in_order() {
    let fabric = Fabric::seeded(5).keep_objects().duplication(0.1);
    let [a, b] = hosts(&fabric, 22).map(|host| socket(&host, 4000));
    exchange(&a, &b);
    exchange(&b, &a);
}

#[test]
fn messages_to_a_killed_host_reach_the_next_host_at_the_address() {
    let fabric = Fabric::new().keep_objects();
    let mut both = hosts(&fabric, 23);
    let [a, b] = both.each_ref().map(|host| socket(host, 4000));
    exchange(&a, &b);
    fabric.kill(&both[1]);
    let dest = b.local_addr().unwrap();
    a.send_to(b"late", dest).unwrap();
    drop(b);
    both[1] = fabric.host(dest.ip());
    let b = socket(&both[1], 4000);
    // Messages that the killed host has received but not acknowledged come first.
    let message = loop {
        let message = received(&b);
        if message.len() == 4 {
            break message;
        }
    };
    assert_eq!(message.from(), a.local_addr().unwrap());
    assert_eq!(message.to_vec(), b"late");
}

#[test]
fn messages_between_tasks_of_two_hosts_arrive_once() {
    let fabric = Fabric::new().keep_objects();
    let [a, b] = hosts(&fabric, 24).map(|host| socket(&host, 4000));
    let dest = b.local_addr().unwrap();
    let [a, b] = [a, b].map(rds::asynchronous::Socket::new);
    // The runtime's threads are on no host: both sockets know their device.
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let sending = runtime.spawn(async move {
        for number in 0..100_u8 {
            a.send_to(&[number], dest).await.unwrap();
        }
        a
    });
    runtime.block_on(async {
        let mut buf = [0; 16];
        for number in 0..100 {
            let (len, _) = b.recv_from(&mut buf).await.unwrap();
            assert_eq!(buf[..len], [number]);
        }
        drop(sending.await.unwrap());
    });
}
