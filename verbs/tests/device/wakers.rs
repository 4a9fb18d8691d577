//! Threads that wait for an event of a completion queue are woken for something else.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use verbs::{Buf, CompletionChannel, CqKey, QueuePair, Rc, Rts, op::Send};

use crate::loopback::Fixture;

const WOKEN: CqKey = CqKey(usize::MAX);

/// How long a thread may wait before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// The device, unless it speaks iWARP, of which it is known that there are no wakers.
fn fixture() -> Option<(Fixture, CompletionChannel)> {
    let fixture = Fixture::new();
    let channel = fixture.ctx.create_comp_channel().unwrap();
    if fixture.ctx.is_iwarp() {
        let err = channel.waker(&fixture.pd, WOKEN).unwrap_err();
        assert_eq!(err.kind(), io::ErrorKind::Unsupported);
        return None;
    }
    Some((fixture, channel))
}

#[test]
fn a_thread_that_waits_is_woken() {
    let Some((fixture, channel)) = fixture() else {
        return;
    };
    let waker = channel.waker(&fixture.pd, WOKEN).unwrap();
    let (waits, woken) = (AtomicU32::new(0), AtomicU32::new(0));
    let rounds = 300;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=rounds {
                waits.store(round, Ordering::SeqCst);
                assert_eq!(channel.wait().unwrap(), WOKEN);
                woken.store(round, Ordering::SeqCst);
            }
        });
        for round in 1..=rounds {
            let start = Instant::now();
            while waits.load(Ordering::SeqCst) < round {
                assert!(start.elapsed() < PATIENCE);
                thread::yield_now();
            }
            // Before it sleeps, or after.
            thread::sleep(Duration::from_micros(u64::from(round % 5) * 100));
            waker.wake().unwrap();
            while woken.load(Ordering::SeqCst) < round {
                assert!(start.elapsed() < PATIENCE, "round {round}");
                thread::yield_now();
            }
        }
    });
}

#[test]
fn nobody_has_to_take_the_events() {
    let Some((fixture, channel)) = fixture() else {
        return;
    };
    let waker = channel.waker(&fixture.pd, WOKEN).unwrap();
    for _ in 0..100 {
        waker.wake().unwrap();
    }
    assert_eq!(channel.wait().unwrap(), WOKEN);
    // The last may still be on its way.
    while let Some(key) = channel.wait_timeout(Duration::from_millis(20)).unwrap() {
        assert_eq!(key, WOKEN);
    }
    waker.wake().unwrap();
    assert_eq!(channel.wait().unwrap(), WOKEN);
    drop(channel);
    // It keeps what it needs.
    waker.wake().unwrap();
}

#[test]
fn events_of_other_queues_are_not_lost() {
    let Some((fixture, channel)) = fixture() else {
        return;
    };
    let waker = channel.waker(&fixture.pd, WOKEN).unwrap();
    let builder = fixture.ctx.cq_builder(64).channel(&channel, CqKey(7));
    let mut cq = builder.create().unwrap();
    let (mut a, mut b): (QueuePair<Rc, Rts>, QueuePair<Rc, Rts>) = fixture.pair(&cq, 8);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                waker.wake().unwrap();
                thread::yield_now();
            }
        });
        let (mut announced, mut others) = (0, 0);
        let start = Instant::now();
        while announced < 200 {
            assert!(start.elapsed() < PATIENCE, "{announced} of its own");
            b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
            let send: Send<Buf> = Send::new(fixture.pd.alloc_buf(8).unwrap());
            a.post(send).unwrap();
            let mut came = 0;
            while came < 2 {
                if let Some(completions) = cq.poll_or_arm().unwrap() {
                    for wc in completions {
                        came += 1;
                        wc.ok().unwrap();
                        let queue = if wc.is_receive() { &mut b } else { &mut a };
                        drop(queue.complete(wc));
                    }
                    continue;
                }
                match channel.wait().unwrap() {
                    CqKey(7) => announced += 1,
                    key => {
                        assert_eq!(key, WOKEN);
                        others += 1;
                    }
                }
            }
        }
        done.store(true, Ordering::SeqCst);
        assert!(others > 0, "the other thread has woken this one");
    });
}

#[test]
fn a_domain_of_another_opening_of_the_device_is_refused() {
    let Some((_, channel)) = fixture() else {
        return;
    };
    let other = Fixture::new();
    let err = channel.waker(&other.pd, WOKEN).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
}
