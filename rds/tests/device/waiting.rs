//! Blocked calls, without and with a timeout.

use std::{
    io::{self, IoSlice},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use rds::{SendOptions, Socket, asynchronous};

use crate::{TEST_TIMEOUT, addr, another_of, any, other, pattern, socket, third};

/// Enough time for a call to fall asleep.
const ASLEEP: Duration = Duration::from_millis(3);

/// No timeout, and one that never elapses.
const LIMITS: [Option<Duration>; 2] = [None, TEST_TIMEOUT];

fn receive(socket: &Socket, len: usize, seed: u8) {
    let mut bytes = vec![0; len + 1];
    let (got, _) = socket.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..got], pattern(len, seed));
}

/// Messages of other hosts and of local sockets wake a blocked call, in any order.
#[test]
fn blocked_recv_is_woken_by_every_event() {
    for limit in LIMITS {
        let (a, peer) = (socket(any()), socket(other()));
        let sibling = another_of(&a);
        a.set_read_timeout(limit);
        let turns = [true, false, false, true, true, false, true, false];
        let received = AtomicUsize::new(0);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                for round in 0..8 * turns.len() {
                    receive(&a, round, 1);
                    received.store(round + 1, Ordering::SeqCst);
                }
            });
            for round in 0..8 * turns.len() {
                while received.load(Ordering::SeqCst) < round {
                    thread::sleep(ASLEEP / 3);
                }
                thread::sleep(ASLEEP);
                let from = if turns[round % turns.len()] {
                    &peer
                } else {
                    &sibling
                };
                from.send_to(&pattern(round, 1), addr(&a)).unwrap();
            }
            waiting.join().unwrap();
        });
    }
}

/// Concurrently blocked calls are all woken, independent of the poller.
#[test]
fn concurrent_blocked_calls_are_all_woken() {
    for limit in LIMITS {
        let (a, peer) = (socket(any()), socket(other()));
        let b = another_of(&a);
        a.set_read_timeout(limit);
        let sockets = [&a, &b];
        thread::scope(|scope| {
            let waiting = sockets.map(|socket| {
                scope.spawn(move || {
                    for round in 0..40 {
                        receive(socket, round, 2);
                    }
                })
            });
            let orders = [[&a, &b], [&b, &a]];
            for round in 0..40 {
                for to in orders[round % 3 % 2] {
                    peer.send_to(&pattern(round, 2), addr(to)).unwrap();
                    thread::sleep(ASLEEP / 3);
                }
            }
            for thread in waiting {
                thread.join().unwrap();
            }
        });
    }
}

/// Each connection has its own completion events.
#[test]
fn messages_of_several_hosts_wake_one_receiver() {
    const COUNT: usize = 100;
    let (a, hosts) = (socket(any()), [socket(other()), socket(third())]);
    a.set_read_timeout(None);
    thread::scope(|scope| {
        for host in &hosts {
            let to = addr(&a);
            scope.spawn(move || {
                for round in 0..COUNT {
                    host.send_to(&pattern(round, 3), to).unwrap();
                    if round % 8 == 0 {
                        thread::sleep(ASLEEP);
                    }
                }
                while host.queued().unwrap().0 > 0 {
                    thread::sleep(ASLEEP);
                }
            });
        }
        let mut next = hosts.each_ref().map(|host| (addr(host), 0));
        for _ in 0..next.len() * COUNT {
            let mut bytes = [0; COUNT];
            let (len, from) = a.recv_from(&mut bytes).unwrap();
            let host = next.iter_mut().find(|(host, _)| *host == from).unwrap();
            assert_eq!((len, &bytes[..len]), (host.1, &pattern(host.1, 3)[..]));
            host.1 += 1;
        }
    });
}

/// A poller without a timeout does not delay timeouts and polls of other calls.
#[test]
fn blocked_recv_delays_no_other_call() {
    let (a, peer) = (socket(any()), socket(other()));
    let b = another_of(&a);
    a.set_read_timeout(None);
    // A connection, whose completion queue is armed.
    peer.send_to(&pattern(1, 4), addr(&a)).unwrap();
    receive(&a, 1, 4);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            receive(&a, 2, 4);
            ended.store(true, Ordering::SeqCst);
        });
        thread::sleep(ASLEEP);
        b.set_read_timeout(Some(Duration::from_millis(50)));
        let start = Instant::now();
        let err = b.recv_event().unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
        assert!(start.elapsed() >= Duration::from_millis(50));
        let err = b.try_recv_event().unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
        b.set_read_timeout(TEST_TIMEOUT);
        for round in 0..20 {
            peer.send_to(&pattern(round, 5), addr(&b)).unwrap();
            receive(&b, round, 5);
            b.send_to(&pattern(round, 6), addr(&peer)).unwrap();
            receive(&peer, round, 6);
        }
        assert!(!ended.load(Ordering::SeqCst));
        b.send_to(&pattern(2, 4), addr(&a)).unwrap();
    });
    assert!(ended.load(Ordering::SeqCst));
}

/// A task that blocks the thread that wakes it, until the other end of `released` is dropped.
struct BlockingTask {
    woken: mpsc::Sender<()>,
    released: Mutex<mpsc::Receiver<()>>,
}

impl Wake for BlockingTask {
    fn wake(self: Arc<Self>) {
        self.woken.send(()).unwrap();
        self.released.lock().unwrap().recv().unwrap_err();
    }
}

/// While calls come, the engine thread does not poll: a refused send polls for acknowledgements itself.
#[test]
fn nonblocking_send_polls_while_engine_thread_does_not() {
    let (a, b) = (socket(any()), socket(other()));
    a.set_send_limit(8).unwrap();
    b.set_read_timeout(TEST_TIMEOUT);
    let to = addr(&b);
    a.send_to(&pattern(8, 7), to).unwrap();
    receive(&b, 8, 7);
    let a = asynchronous::Socket::new(a);
    let (woken, wait_for_wake) = mpsc::channel();
    // Dropped before the socket, whose drop waits for the engine thread.
    let (release, released) = mpsc::channel();
    let released = Mutex::new(released);
    let task = Waker::from(Arc::new(BlockingTask { woken, released }));
    let mut message = pin!(a.recv_message());
    let message = message.as_mut().poll(&mut Context::from_waker(&task));
    assert!(message.is_pending());
    b.send_to(&[], addr(a.get_ref())).unwrap();
    wait_for_wake.recv_timeout(TEST_TIMEOUT.unwrap()).unwrap();
    let options = SendOptions::new().dont_wait().to(to);
    for round in 0..10 {
        let until = Instant::now() + TEST_TIMEOUT.unwrap();
        let bytes = pattern(8, round);
        while let Err(err) = a.get_ref().send_msg(&[IoSlice::new(&bytes)], &options) {
            assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
            assert!(Instant::now() < until, "message {round}: no call polls");
            thread::yield_now();
        }
        receive(&b, 8, round);
    }
    drop(release);
}
