//! Messages between two engines, over the device.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{Ipv4Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use rds::{
    Engine, EngineOptions, Interest, Received, SendOptions, Socket, proto::connection::Settings,
};

use crate::{TEST_TIMEOUT, addr, another_of, any, counter, other, pattern, socket, third};

#[test]
fn a_message_arrives_at_another_socket_of_the_process() {
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
fn messages_of_all_sizes_go_both_ways() {
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
            match to.recv().unwrap() {
                Received::Message(message) => {
                    assert_eq!((message.len(), message.from()), (len, addr(from)));
                    assert_eq!(message.to_vec(), bytes);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// X-C03, without a kernel.
#[test]
fn both_sides_may_begin() {
    for _ in 0..3 {
        let (a, b) = (socket(any()), socket(other()));
        a.send_to(b"from a", addr(&b)).unwrap();
        b.send_to(b"from b", addr(&a)).unwrap();
        let mut buf = [0; 16];
        assert_eq!(a.recv_from(&mut buf).unwrap(), (6, addr(&b)));
        assert_eq!(b.recv_from(&mut buf).unwrap(), (6, addr(&a)));
    }
}

/// L-S11
#[test]
fn a_message_waits_for_a_peer_that_comes_later() {
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

/// L-S08
#[test]
fn what_does_not_fit_is_lost_and_a_glance_takes_nothing() {
    let (a, b) = (socket(any()), socket(other()));
    let bytes = pattern(10_000, 2);
    a.send_to(&bytes, addr(&b)).unwrap();
    a.send_to(b"next", addr(&b)).unwrap();
    for len in [0, 1, 5000] {
        let mut buf = vec![0; len];
        let peeked = b.peek(&mut [IoSliceMut::new(&mut buf)]).unwrap();
        assert_eq!(peeked, Some((len, 10_000, addr(&a))));
        assert_eq!(buf, bytes[..len]);
    }
    let mut buf = vec![0; 5000];
    assert_eq!(b.recv_from(&mut buf).unwrap(), (5000, addr(&a)));
    assert_eq!(buf, bytes[..5000]);
    assert_eq!(b.recv_from(&mut buf).unwrap().0, 4);
}

/// The time that this thread has had of the processors.
fn own_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.try_into().unwrap()
}

/// `SO_BUSY_POLL`
#[test]
fn who_looks_before_sleeping_finds_the_same() {
    let looks = Duration::from_secs(3600);
    let engine = EngineOptions::new().busy_poll(looks).start().unwrap();
    let a = engine.socket().unwrap();
    assert_eq!(a.busy_poll(), looks);
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
    // One looks, the other waits for what that finds, and a third comes from within.
    let (beside, third) = (another_of(&a), another_of(&a));
    thread::scope(|scope| {
        let looking = scope.spawn(|| a.recv_from(&mut [0; 8]).unwrap());
        let following = scope.spawn(|| {
            let got = beside.recv_from(&mut [0; 8]).unwrap();
            third.send_to(b"hi", addr(&a)).unwrap();
            got
        });
        thread::sleep(Duration::from_millis(100));
        b.send_to(b"four", addr(&beside)).unwrap();
        assert_eq!(following.join().unwrap(), (4, addr(&b)));
        assert_eq!(looking.join().unwrap(), (2, addr(&third)));
    });
    // It looks no longer than it waits.
    a.set_read_timeout(Some(Duration::from_millis(300)));
    let before = own_time();
    assert_eq!(a.recv().unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert!(own_time() - before > Duration::from_millis(5), "it slept");
    // And when it has looked for long enough, it sleeps, and is woken.
    a.set_busy_poll(Duration::from_millis(1));
    a.set_read_timeout(TEST_TIMEOUT);
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| a.recv_from(&mut [0; 8]).unwrap());
        thread::sleep(Duration::from_millis(100));
        b.send_to(b"woken", addr(&a)).unwrap();
        assert_eq!(sleeping.join().unwrap(), (5, addr(&b)));
    });
}

/// L-S07, without the times.
#[test]
fn waiting_has_an_end() {
    let a = socket(any());
    a.set_read_timeout(Some(Duration::from_millis(200)));
    let err = a.recv().unwrap_err();
    assert_eq!(
        (err.kind(), rds::errno(&err)),
        (io::ErrorKind::TimedOut, 110)
    );
    a.set_nonblocking(true);
    let err = a.recv().unwrap_err();
    assert_eq!(
        (err.kind(), rds::errno(&err)),
        (io::ErrorKind::WouldBlock, 11)
    );
    a.set_nonblocking(false);
    a.set_write_timeout(Some(Duration::from_millis(200)));
    a.set_send_limit(1000).unwrap();
    let nobody = SocketAddr::new(other().ip(), 4000);
    for len in [999, 1000] {
        a.send_to(&pattern(len, 3), nobody).unwrap();
    }
    let err = a.send_to(b"x", nobody).unwrap_err();
    assert_eq!(
        (err.kind(), rds::errno(&err)),
        (io::ErrorKind::TimedOut, 110)
    );
    // X-C09
    a.cancel_sent_to(Some(nobody)).unwrap();
    assert_eq!(a.queued().unwrap(), (0, 0));
}

/// L-S12
#[test]
fn a_message_to_nobody_is_no_error() {
    let (a, b) = (socket(any()), socket(other()));
    let nobody = SocketAddr::new(other().ip(), addr(&b).port() ^ 2);
    for _ in 0..100 {
        a.send_to(b"hello?", nobody).unwrap();
    }
    // Acknowledged in order, so this is after all of them.
    a.send_to(b"last", addr(&b)).unwrap();
    let mut buf = [0; 16];
    assert_eq!(b.recv_from(&mut buf).unwrap().0, 4);
    while a.queued().unwrap().0 > 0 {
        thread::yield_now();
    }
}

/// M-M01
#[test]
fn an_address_belongs_to_one_engine() {
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

/// While calls wait, they handle completions themselves. When none comes any more, the thread does.
#[test]
fn after_calls_that_have_waited_the_thread_works_on() {
    let (a, b) = (socket(any()), socket(other()));
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                b.recv().unwrap();
                b.send_to(b"pong", addr(&a)).unwrap();
            }
        });
        for _ in 0..50 {
            a.send_to(b"ping", addr(&b)).unwrap();
            a.recv().unwrap();
        }
    });
    // Whatever was to be done at some time has been.
    thread::sleep(Duration::from_secs(1));
    a.send_to(b"last", addr(&b)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while a.queued().unwrap().0 > 0 {
        assert!(Instant::now() < deadline, "nobody has acknowledged it");
        thread::sleep(Duration::from_millis(10));
    }
    let descriptor = std::os::fd::AsFd::as_fd(&b);
    assert!(verbs::fd::wait_readable("poll", descriptor, TEST_TIMEOUT).unwrap());
}

/// Calls that send handle completions as well. What the device has no room for then is posted though
/// no more calls come.
#[test]
fn after_calls_that_have_sent_the_thread_works_on() {
    const LEN: usize = 64 << 10;
    const MESSAGES: u8 = 64;
    let (a, b) = (socket(any()), socket(other()));
    a.set_send_limit(8 << 20).unwrap();
    b.set_recv_limit(16 << 20).unwrap();
    for round in 0..5 {
        thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                for message in 0..MESSAGES {
                    match b.recv().unwrap() {
                        Received::Message(got) => {
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

/// One of two calls of an engine works for both. When it has returned, the other is still told.
#[test]
fn a_call_that_waits_beside_another_outlives_it() {
    let (a, b) = (socket(any()), socket(other()));
    let c = another_of(&b);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            for _ in 0..20 {
                c.recv().unwrap();
            }
        });
        for _ in 0..20 {
            a.send_to(b"first", addr(&b)).unwrap();
            b.recv().unwrap();
            a.send_to(b"second", addr(&c)).unwrap();
        }
        waiting.join().unwrap();
    });
}

/// A part of L-S14.
#[test]
fn a_descriptor_tells_when_to_try() {
    let (a, b) = (socket(any()), socket(other()));
    let readable =
        |wait| verbs::fd::wait_readable("poll", std::os::fd::AsFd::as_fd(&b), Some(wait)).unwrap();
    assert!(!readable(Duration::ZERO));
    a.send_to(b"hello", addr(&b)).unwrap();
    while !b.readiness(Interest::Read).unwrap().readable {
        assert!(readable(Duration::from_secs(60)));
    }
    assert!(readable(Duration::ZERO), "as long as there is something");
    b.recv().unwrap();
    while b.readiness(Interest::Read).unwrap().map_changed {}
    assert!(!readable(Duration::ZERO));
}

/// A call that waits works for all sockets, also for those whose device is opened meanwhile.
#[test]
fn who_waits_hears_of_a_device_that_is_opened_later() {
    // Nothing else is to wake the thread.
    let mut settings = Settings::default();
    (settings.ack_after, settings.keepalive) = (None, None);
    let engine = EngineOptions::new().connection(settings).start().unwrap();
    let here = || {
        let socket = engine.socket().unwrap();
        // It needs no device.
        socket.bind_to((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        socket.set_read_timeout(TEST_TIMEOUT);
        socket
    };
    let (first, second) = (here(), here());
    let b = socket(SocketAddr::new(other().ip(), 0));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.recv().unwrap());
        thread::sleep(Duration::from_millis(100));
        let a = engine.socket().unwrap();
        a.bind_to(any()).unwrap();
        // Less than that of the call that waits.
        a.set_read_timeout(TEST_TIMEOUT.map(|time| time / 3));
        for round in 0..20 {
            b.send_to(&pattern(round, 4), addr(&a)).unwrap();
            assert_eq!(a.recv_from(&mut [0; 32]).unwrap(), (round, addr(&b)));
            a.send_to(b"pong", addr(&b)).unwrap();
            b.recv().unwrap();
        }
        second.send_to(b"over", addr(&first)).unwrap();
        waiting.join().unwrap();
    });
}

/// An address that cannot be listened at is tried again, and keeps no other from being.
#[test]
fn addresses_that_are_held_are_not_lost() {
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
        let hears = |to: &Socket| {
            from.send_to(b"hello", addr(to)).unwrap();
            assert_eq!(to.recv_from(&mut [0; 8]).unwrap(), (5, addr(&from)));
        };
        hears(&b);
        drop(interloper);
        engine.resume_accept().unwrap();
        hears(&a);
    }
}

/// While calls send, the thread leaves completions to them: those that find no room look for it.
#[test]
fn who_only_tries_to_send_finds_room() {
    const MESSAGES: usize = 100;
    let (a, b) = (socket(any()), socket(other()));
    a.set_send_limit(8).unwrap();
    let options = SendOptions::new().dont_wait().to(addr(&b));
    let mut refused = 0;
    for _ in 0..MESSAGES {
        while let Err(err) = a.send_msg(&[IoSlice::new(&[0; 8])], &options) {
            assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
            refused += 1;
            thread::sleep(Duration::from_millis(1));
        }
        b.recv().unwrap();
    }
    // The peer has posted its acknowledgement when its call has returned.
    assert!(refused < MESSAGES, "{refused} for {MESSAGES} messages");
}

/// Memory of the device that messages are in is the program's as long as it has them, and messages come all the
/// same: in few receives, of which those are taken that programs keep.
#[test]
fn messages_can_be_kept() {
    const MESSAGES: u32 = 500;
    let engine = EngineOptions::new().receives(64).start().unwrap();
    let receiver = engine.socket().unwrap();
    receiver.bind_to(any()).unwrap();
    receiver.set_read_timeout(TEST_TIMEOUT);
    let sender = socket(other());
    let to = addr(&receiver);
    let echo = thread::spawn(move || {
        let mut kept = Vec::new();
        for _ in 0..MESSAGES {
            let Received::Message(message) = receiver.recv().unwrap() else {
                panic!("there is nothing else");
            };
            receiver.send_to(&message.to_vec(), message.from()).unwrap();
            kept.push(message);
        }
        // What the others wait for has to be sent.
        assert_eq!(receiver.recv_from(&mut [0; 8]).unwrap().0, 0);
        kept
    });
    for number in 0..MESSAGES {
        sender.send_to(&number.to_le_bytes(), to).unwrap();
        let mut answer = [0; 8];
        let (len, _) = sender.recv_from(&mut answer).unwrap();
        assert_eq!(answer[..len], number.to_le_bytes());
    }
    sender.send_to(&[], to).unwrap();
    let kept = echo.join().unwrap();
    for (number, message) in (0..MESSAGES).zip(kept) {
        assert_eq!(message.to_vec(), number.to_le_bytes(), "it stays as it was");
    }
    assert_eq!(counter(&engine, "conn_reset"), 0, "there are receives");
}
