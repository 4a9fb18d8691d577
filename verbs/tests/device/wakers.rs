//! Wake-ups of threads blocked on an event of a completion queue.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use verbs::{
    Buf, QueuePair, Rts,
    cq::{CompletionChannel, CqKey},
    op,
};

use crate::loopback::Fixture;

const WOKEN: CqKey = CqKey(usize::MAX);

/// Timeout for a waiting thread.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Sets a flag at its drop, also during a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The device, unless iWARP, where wakers are known to be unsupported.
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
fn waker_wakes_a_blocked_thread() {
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
                assert!(start.elapsed() < TEST_TIMEOUT);
                thread::yield_now();
            }
            // Before the thread sleeps, or after.
            thread::sleep(Duration::from_micros(u64::from(round % 5) * 100));
            waker.wake().unwrap();
            while woken.load(Ordering::SeqCst) < round {
                assert!(start.elapsed() < TEST_TIMEOUT, "round {round}");
                thread::yield_now();
            }
        }
    });
}

#[test]
fn waker_calls_without_a_waiter_coalesce() {
    let Some((fixture, channel)) = fixture() else {
        return;
    };
    let waker = channel.waker(&fixture.pd, WOKEN).unwrap();
    let moment = Duration::from_millis(50);
    for _ in 0..3 {
        for _ in 0..100 {
            waker.wake().unwrap();
        }
        assert_eq!(channel.wait().unwrap(), WOKEN);
        assert_eq!(channel.wait_timeout(moment).unwrap(), None);
    }
    waker.wake().unwrap();
    drop(channel);
    // The waker keeps its resources.
    waker.wake().unwrap();
}

#[test]
fn wakers_of_one_channel_are_independent() {
    let Some((fixture, channel)) = fixture() else {
        return;
    };
    let keys = [CqKey(3), CqKey(4)];
    let wakers = keys.map(|key| channel.waker(&fixture.pd, key).unwrap());
    wakers[0].wake().unwrap();
    assert_eq!(channel.wait().unwrap(), keys[0]);
    wakers[1].wake().unwrap();
    wakers[0].wake().unwrap();
    let mut came = [channel.wait().unwrap(), channel.wait().unwrap()];
    came.sort();
    assert_eq!(came, keys);
}

#[test]
fn events_of_other_queues_are_not_lost() {
    let Some((fixture, channel)) = fixture() else {
        return;
    };
    let waker = channel.waker(&fixture.pd, WOKEN).unwrap();
    let builder = fixture.ctx.cq_builder(64).channel(&channel, CqKey(7));
    let mut cq = builder.create().unwrap();
    let (mut a, mut b): (QueuePair<verbs::Rc, Rts>, QueuePair<verbs::Rc, Rts>) =
        fixture.pair(&cq, 8);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // Stops the other thread at the end of this one, also after a panic.
        let _ends = Ends(&done);
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                waker.wake().unwrap();
                thread::yield_now();
            }
        });
        let (mut woken, mut round) = (0, 0);
        let begin = Instant::now();
        // On a fast device, all rounds can pass before the first wake-up.
        while round < 200 || (woken == 0 && begin.elapsed() < TEST_TIMEOUT) {
            round += 1;
            let start = Instant::now();
            assert!(cq.poll_or_arm().unwrap().is_none());
            b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
            let send: op::Send<Buf> = op::Send::new(fixture.pd.alloc_buf(8).unwrap());
            a.post(send).unwrap();
            // The other thread always provides the next event.
            loop {
                let key = channel.wait().unwrap();
                if key == CqKey(7) {
                    break;
                }
                assert_eq!(key, WOKEN);
                woken += 1;
                assert!(start.elapsed() < TEST_TIMEOUT, "no event in round {round}");
            }
            let mut came = 0;
            while came < 2 {
                for wc in cq.poll().unwrap() {
                    came += 1;
                    wc.ok().unwrap();
                    let queue = if wc.is_receive() { &mut b } else { &mut a };
                    drop(queue.complete(wc));
                }
                assert!(
                    start.elapsed() < TEST_TIMEOUT,
                    "{came} of 2 in round {round}"
                );
            }
        }
        assert!(woken > 0, "the other thread has woken this one");
    });
}

#[test]
fn domain_of_another_opening_of_the_device_is_refused() {
    let Some((_, channel)) = fixture() else {
        return;
    };
    let other = Fixture::new();
    let err = channel.waker(&other.pd, WOKEN).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
}
