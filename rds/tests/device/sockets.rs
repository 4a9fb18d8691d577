//! Messages between two engines over a device.

#[path = "../../../cm/tests/shared/descriptor_limit.rs"]
mod descriptor_limit;

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use rds::{
    Engine, EngineOptions, Event, Interest, RecvMeta, SendOptions, Socket,
    proto::connection::Settings,
};
use verbs::fd::wait_readable;

use descriptor_limit::Limited;

use crate::{TEST_TIMEOUT, addr, another_of, any, counter, other, pattern, socket, third};

#[test]
fn send_delivers_to_socket_of_same_process() {
    let engine = Engine::shared().unwrap();
    let [a, b] = [(); 2].map(|()| engine.socket().unwrap());
    let to = b.bind_to(any()).unwrap();
    let from = a.bind_to(any()).unwrap();
    assert_eq!(a.send_to(b"hello", to).unwrap(), 5);
    b.set_read_timeout(TEST_TIMEOUT);
    let mut buf = [0; 16];
    assert_eq!(b.recv_from(&mut buf).unwrap(), (5, from));
    assert_eq!(&buf[..5], b"hello");
}

#[test]
fn fragment_counts_of_all_sizes_arrive_both_ways() {
    let (a, b) = (socket(any()), socket(other()));
    for socket in [&a, &b] {
        socket.set_send_limit(2 << 20).unwrap();
        socket.set_recv_limit(2 << 20).unwrap();
    }
    for len in [
        0,
        1,
        63,
        4095,
        4096,
        4097,
        8192,
        10_000,
        65_536,
        106_496,
        1 << 20,
    ] {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let bytes = pattern(len, 1);
            assert_eq!(from.send_to(&bytes, addr(to)).unwrap(), len);
            match to.recv_event().unwrap() {
                Event::Message(message) => {
                    assert_eq!((message.len(), message.from()), (len, addr(from)));
                    assert_eq!(message.to_vec(), bytes);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Without a kernel.
#[test]
fn connect_works_from_both_sides_at_once() {
    for _ in 0..3 {
        let (a, b) = (socket(any()), socket(other()));
        a.send_to(b"from a", addr(&b)).unwrap();
        b.send_to(b"from b", addr(&a)).unwrap();
        let mut buf = [0; 16];
        assert_eq!(a.recv_from(&mut buf).unwrap(), (6, addr(&b)));
        assert_eq!(b.recv_from(&mut buf).unwrap(), (6, addr(&a)));
    }
}

#[test]
fn send_retries_until_peer_exists() {
    let a = socket(any());
    let to = SocketAddr::new(other().ip(), 4011);
    a.send_to(b"early", to).unwrap();
    assert_eq!(a.queued().unwrap().0, 5);
    thread::sleep(Duration::from_secs(3));
    let engine = EngineOptions::new().start().unwrap();
    engine.pause_accept().unwrap();
    let b = engine.socket().unwrap();
    b.bind_to(to).unwrap();
    engine.resume_accept().unwrap();
    b.set_read_timeout(TEST_TIMEOUT);
    let mut buf = [0; 16];
    assert_eq!(b.recv_from(&mut buf).unwrap(), (5, addr(&a)));
}

#[test]
fn recv_truncates_and_peek_keeps_the_message() {
    let (a, b) = (socket(any()), socket(other()));
    let bytes = pattern(10_000, 2);
    a.send_to(&bytes, addr(&b)).unwrap();
    a.send_to(b"next", addr(&b)).unwrap();
    for len in [0, 1, 5000] {
        let mut buf = vec![0; len];
        let peeked = b.peek_msg(&mut [IoSliceMut::new(&mut buf)]).unwrap();
        let RecvMeta {
            len: copied,
            full_len,
            source,
            ..
        } = peeked.unwrap();
        assert_eq!((copied, full_len, source), (len, 10_000, addr(&a)));
        assert_eq!(buf, bytes[..len]);
        buf.fill(0);
        assert_eq!(b.peek_from(&mut buf).unwrap(), (len, addr(&a)));
        assert_eq!(buf, bytes[..len]);
        assert_eq!(b.peek(&mut buf).unwrap(), len);
    }
    let mut buf = vec![0; 5000];
    assert_eq!(b.recv_from(&mut buf).unwrap(), (5000, addr(&a)));
    assert_eq!(buf, bytes[..5000]);
    assert_eq!(b.recv(&mut buf).unwrap(), 4);
}

/// Number of sleeps of this thread.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// `SO_BUSY_POLL`
#[test]
fn busy_poll_receives_the_same_messages() {
    let busy_poll = Duration::from_secs(3600);
    let engine = EngineOptions::new().busy_poll(busy_poll).start().unwrap();
    let a = engine.socket().unwrap();
    assert_eq!(a.busy_poll(), busy_poll);
    a.bind_to(any()).unwrap();
    let b = socket(SocketAddr::new(other().ip(), 0));
    assert_eq!(b.busy_poll(), Duration::ZERO);
    b.set_busy_poll(Duration::from_nanos(1));
    assert_eq!(b.busy_poll(), Duration::from_micros(1));
    a.set_read_timeout(TEST_TIMEOUT);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..200 {
                let (len, from) = b.recv_from(&mut [0; 8]).unwrap();
                b.send_to(&pattern(len, 1), from).unwrap();
            }
        });
        for round in 0..200 {
            a.send_to(&pattern(round % 9, 0), addr(&b)).unwrap();
            assert_eq!(a.recv_from(&mut [0; 8]).unwrap(), (round % 9, addr(&b)));
        }
    });
    // `a` polls, `second` follows, and the last message is local.
    let (second, third) = (another_of(&a), another_of(&a));
    thread::scope(|scope| {
        let looking = scope.spawn(|| a.recv_from(&mut [0; 8]).unwrap());
        let following = scope.spawn(|| {
            let got = second.recv_from(&mut [0; 8]).unwrap();
            third.send_to(b"hi", addr(&a)).unwrap();
            got
        });
        thread::sleep(Duration::from_millis(100));
        b.send_to(b"four", addr(&second)).unwrap();
        assert_eq!(following.join().unwrap(), (4, addr(&b)));
        assert_eq!(looking.join().unwrap(), (2, addr(&third)));
    });
    // Polling ends with the timeout of the call. A call may wait for the engine's lock, but only then does it sleep.
    a.set_read_timeout(Some(Duration::from_millis(50)));
    let polls = || {
        let before = sleeps();
        let error = a.recv_event().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        sleeps() == before
    };
    assert!((0..20).any(|_| polls()), "each call slept");
    a.set_busy_poll(Duration::ZERO);
    // On a slow machine, the timeout may elapse before the call sleeps.
    assert!((0..20).any(|_| !polls()), "no call without polling slept");
    // After polling, the call sleeps, and is woken.
    a.set_busy_poll(Duration::from_millis(1));
    a.set_read_timeout(TEST_TIMEOUT);
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| a.recv_from(&mut [0; 8]).unwrap());
        thread::sleep(Duration::from_millis(100));
        b.send_to(b"woken", addr(&a)).unwrap();
        assert_eq!(sleeping.join().unwrap(), (5, addr(&b)));
    });
}

#[test]
fn recv_and_send_time_out() {
    let a = socket(any());
    a.set_read_timeout(Some(Duration::from_millis(200)));
    let err = a.recv_event().unwrap_err();
    assert_eq!(
        (err.kind(), rds::errno(&err)),
        (io::ErrorKind::WouldBlock, 110)
    );
    a.set_nonblocking(true);
    let err = a.recv_event().unwrap_err();
    assert_eq!(
        (err.kind(), rds::errno(&err)),
        (io::ErrorKind::WouldBlock, 11)
    );
    a.set_nonblocking(false);
    a.set_write_timeout(Some(Duration::from_millis(200)));
    a.set_send_limit(1000).unwrap();
    let unreachable = SocketAddr::new(other().ip(), 4000);
    for len in [999, 1000] {
        a.send_to(&pattern(len, 3), unreachable).unwrap();
    }
    let err = a.send_to(b"x", unreachable).unwrap_err();
    assert_eq!(
        (err.kind(), rds::errno(&err)),
        (io::ErrorKind::WouldBlock, 110)
    );
    a.cancel_sent_to(Some(unreachable)).unwrap();
    assert_eq!(a.queued().unwrap(), (0, 0));
}

#[test]
fn send_to_unbound_port_succeeds() {
    let (a, b) = (socket(any()), socket(other()));
    let unreachable = SocketAddr::new(other().ip(), addr(&b).port() ^ 2);
    for _ in 0..100 {
        a.send_to(b"hello?", unreachable).unwrap();
    }
    // Delivery is in order, so this message follows all others.
    a.send_to(b"last", addr(&b)).unwrap();
    let mut buf = [0; 16];
    assert_eq!(b.recv_from(&mut buf).unwrap().0, 4);
    while a.queued().unwrap().0 > 0 {
        thread::yield_now();
    }
}

#[test]
fn bind_rejects_address_of_another_engine() {
    let a = socket(any());
    let engine = EngineOptions::new().start().unwrap();
    let second = engine.socket().unwrap();
    let err = second.bind_to(any()).unwrap_err();
    assert_eq!(
        (err.kind(), rds::errno(&err)),
        (io::ErrorKind::AddrInUse, 98)
    );
    let text = err.to_string();
    assert!(text.contains(&any().ip().to_string()), "{text}");
    drop(a);
    second.bind_to(any()).unwrap();
}

/// Blocked calls handle completions; afterwards the engine thread takes over.
#[test]
fn engine_thread_takes_over_after_blocked_calls() {
    let (a, b) = (socket(any()), socket(other()));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                b.recv_event().unwrap();
                b.send_to(b"pong", addr(&a)).unwrap();
            }
        });
        for _ in 0..50 {
            a.send_to(b"ping", addr(&b)).unwrap();
            a.recv_event().unwrap();
        }
    });
    // All timers have expired.
    thread::sleep(Duration::from_secs(1));
    a.send_to(b"last", addr(&b)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while a.queued().unwrap().0 > 0 {
        assert!(Instant::now() < deadline, "no peer has acknowledged it");
        thread::sleep(Duration::from_millis(10));
    }
    let descriptor = b.as_fd();
    assert!(wait_readable("poll", descriptor, TEST_TIMEOUT).unwrap());
}

/// Sending calls handle completions. Requests without room in the send queue are posted by the
/// engine thread.
#[test]
fn engine_thread_takes_over_after_sends() {
    const LEN: usize = 64 << 10;
    const MESSAGES: u8 = 64;
    let (a, b) = (socket(any()), socket(other()));
    // Enough for all messages, acknowledged or not.
    a.set_send_limit(32 << 20).unwrap();
    b.set_recv_limit(32 << 20).unwrap();
    for round in 0..5 {
        thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                for message in 0..MESSAGES {
                    match b.recv_event().unwrap() {
                        Event::Message(got) => {
                            let expected = pattern(LEN, message ^ round);
                            assert!(got.to_vec() == expected, "message {message}");
                        }
                        other => panic!("{other:?}"),
                    }
                }
            });
            for message in 0..MESSAGES {
                let options = SendOptions::new().dont_wait();
                let bytes = pattern(LEN, message ^ round);
                let sent = a.send_msg(&[IoSlice::new(&bytes)], &options.to(addr(&b)));
                assert_eq!(sent.unwrap().len, LEN);
            }
            receiving.join().unwrap();
        });
    }
}

/// The follower of two blocked calls is woken after the poller has returned.
#[test]
fn blocked_follower_outlives_the_poller() {
    let (a, b) = (socket(any()), socket(other()));
    let c = another_of(&b);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            for _ in 0..20 {
                c.recv_event().unwrap();
            }
        });
        for _ in 0..20 {
            a.send_to(b"first", addr(&b)).unwrap();
            b.recv_event().unwrap();
            a.send_to(b"second", addr(&c)).unwrap();
        }
        waiting.join().unwrap();
    });
}

#[test]
fn descriptor_signals_readiness() {
    let (a, b) = (socket(any()), socket(other()));
    let readable = |wait| wait_readable("poll", b.as_fd(), Some(wait)).unwrap();
    assert!(!readable(Duration::ZERO));
    a.send_to(b"hello", addr(&b)).unwrap();
    while !b.readiness(Interest::Read).unwrap().readable {
        assert!(readable(Duration::from_secs(60)));
    }
    assert!(readable(Duration::ZERO), "as long as there is something");
    b.recv_event().unwrap();
    while b.readiness(Interest::Read).unwrap().map_changed {}
    assert!(!readable(Duration::ZERO));
}

/// A readable descriptor makes an event loop call until a later call creates the socket's own.
#[test]
fn as_fd_without_free_descriptor_is_readable() {
    let (a, b) = (socket(any()), socket(other()));
    let send = || {
        a.send_to(b"hello", addr(&b)).unwrap();
        b.recv_event().unwrap();
    };
    let readable = || wait_readable("poll", b.as_fd(), Some(Duration::ZERO)).unwrap();
    send();
    // All descriptors below are in use.
    let limited = Limited::to(8);
    assert!(readable());
    let error = b.try_recv_event().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    send();
    assert!(readable());
    drop(limited);
    assert!(!readable());
    send();
    assert!(!readable());
}

/// A blocked call handles completions of devices opened later.
#[test]
fn blocked_recv_sees_device_opened_later() {
    // No timer must wake the engine thread.
    let mut settings = Settings::default();
    (settings.ack_after, settings.keepalive) = (None, None);
    let engine = EngineOptions::new().connection(settings).start().unwrap();
    let here = || {
        let socket = engine.socket().unwrap();
        // A loopback address needs no device.
        socket.bind_to((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        socket.set_read_timeout(TEST_TIMEOUT);
        socket
    };
    let (first, second) = (here(), here());
    let b = socket(SocketAddr::new(other().ip(), 0));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.recv_event().unwrap());
        thread::sleep(Duration::from_millis(100));
        let a = engine.socket().unwrap();
        a.bind_to(any()).unwrap();
        // Shorter than the timeout of the blocked call.
        a.set_read_timeout(TEST_TIMEOUT.map(|time| time / 3));
        for round in 0..20 {
            b.send_to(&pattern(round, 4), addr(&a)).unwrap();
            assert_eq!(a.recv_from(&mut [0; 32]).unwrap(), (round, addr(&b)));
            a.send_to(b"pong", addr(&b)).unwrap();
            b.recv_event().unwrap();
        }
        second.send_to(b"over", addr(&first)).unwrap();
        waiting.join().unwrap();
    });
}

/// Failed addresses are retried, without effect on the others.
#[test]
fn resume_accept_retries_failed_addresses() {
    let from = socket(any());
    for _ in 0..8 {
        let engine = EngineOptions::new().start().unwrap();
        engine.pause_accept().unwrap();
        let [a, b] = [other(), third()].map(|addr| {
            let socket = engine.socket().unwrap();
            socket.bind_to(addr).unwrap();
            socket.set_read_timeout(TEST_TIMEOUT);
            socket
        });
        let interloper = socket(other());
        for _ in 0..2 {
            let err = engine.resume_accept().unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::AddrInUse);
        }
        let receives_from = |to: &Socket| {
            from.send_to(b"hello", addr(to)).unwrap();
            assert_eq!(to.recv_from(&mut [0; 8]).unwrap(), (5, addr(&from)));
        };
        receives_from(&b);
        drop(interloper);
        engine.resume_accept().unwrap();
        receives_from(&a);
    }
}

/// Messages may keep slots of the device for any time. Even with few receives, other messages
/// arrive.
#[test]
fn messages_held_by_the_application_stay_valid() {
    const MESSAGES: u32 = 500;
    let engine = EngineOptions::new().receives(64).start().unwrap();
    let receiver = engine.socket().unwrap();
    receiver.bind_to(any()).unwrap();
    receiver.set_read_timeout(TEST_TIMEOUT);
    let sender = socket(other());
    let to = addr(&receiver);
    let echo = thread::spawn(move || {
        let mut messages = Vec::new();
        for _ in 0..MESSAGES {
            let Event::Message(message) = receiver.recv_event().unwrap() else {
                panic!("there is nothing else");
            };
            receiver.send_to(&message.to_vec(), message.from()).unwrap();
            messages.push(message);
        }
        // Unacknowledged messages must be sent before returning.
        assert_eq!(receiver.recv_from(&mut [0; 8]).unwrap().0, 0);
        messages
    });
    for number in 0..MESSAGES {
        sender.send_to(&number.to_le_bytes(), to).unwrap();
        let mut answer = [0; 8];
        let (len, _) = sender.recv_from(&mut answer).unwrap();
        assert_eq!(answer[..len], number.to_le_bytes());
    }
    sender.send_to(&[], to).unwrap();
    let messages = echo.join().unwrap();
    for (number, message) in (0..MESSAGES).zip(messages) {
        assert_eq!(message.to_vec(), number.to_le_bytes(), "it stays as it was");
    }
    assert_eq!(counter(&engine, "conn_reset"), 0, "there are receives");
}
