//! No wake-up is lost: for messages that arrive while their receiver polls, arms the queue, or
//! falls asleep.
//!
//! In each round, once the receiver has taken the previous message, another thread sends the next
//! one after a short delay, different each time. A lost wake-up would block the receiver for ever,
//! so the sender limits each round to [`TEST_TIMEOUT`].

use std::{
    env, hint,
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};
use verbs::{
    Buf, Completed, CompletionQueue, QueuePair, Rts,
    cq::{CompletionChannel, CqKey, Notify},
    op,
    waiting::{Shared, Source, WaitEnd, Waiters},
};

use crate::loopback::Fixture;

/// Timeout for a sleeping receiver.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn rounds() -> u32 {
    if env::var_os("LONG").is_some() {
        100_000
    } else {
        4_000
    }
}

/// The receiver's end: checks the numbers of the messages.
struct Receiver {
    qp: QueuePair<verbs::Rc, Rts>,
    /// The number of received messages, for the sender.
    rounds_done: Arc<AtomicU32>,
    rounds: u32,
}

impl Receiver {
    fn take(&mut self, completions: verbs::cq::Completions<'_>) {
        for wc in completions {
            wc.ok().unwrap();
            let Ok(Completed::Receive(done)) = self.qp.complete(wc) else {
                unreachable!("there is nothing else on this queue");
            };
            let round = self.rounds_done.load(Ordering::Relaxed);
            assert_eq!(done.received().unwrap(), round.to_ne_bytes());
            self.qp.post_recv(done.into_work().unwrap()).unwrap();
            self.rounds_done.store(round + 1, Ordering::Release);
        }
    }

    fn is_done(&self) -> bool {
        self.rounds_done.load(Ordering::Relaxed) == self.rounds
    }
}

/// Sends the messages, each when the last one has been taken, and watches the receiver.
fn race(
    fixture: &Fixture,
    cq: CompletionQueue,
    receive: impl FnOnce(CompletionQueue, Receiver) + Send + 'static,
) {
    let mut send_cq = fixture.cq(16);
    let make = || -> QueuePair<verbs::Rc, _> {
        let builder = fixture.pd.qp_builder(&send_cq, &cq);
        builder.max_send_wr(4).max_recv_wr(4).create().unwrap()
    };
    let (a, b) = (make(), make());
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let mut sender: QueuePair<verbs::Rc, Rts> = fixture.bring_up(a, b_num);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.bring_up(b, a_num);
    for _ in 0..2 {
        qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    }
    let rounds_done = Arc::new(AtomicU32::new(0));
    let (watched, rounds) = (Arc::clone(&rounds_done), rounds());
    let receiver = Receiver {
        qp,
        rounds_done,
        rounds,
    };
    let thread = thread::spawn(move || receive(cq, receiver));

    let mut unused: Vec<Buf> = (0..4).map(|_| fixture.pd.alloc_buf(4).unwrap()).collect();
    for round in 0..rounds {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while watched.load(Ordering::Acquire) < round {
            assert!(
                Instant::now() < deadline,
                "the receiver has slept through message {round}"
            );
            assert!(!thread.is_finished(), "the receiver has failed");
            thread::yield_now();
        }
        while unused.is_empty() {
            assert!(Instant::now() < deadline, "message {round} cannot be sent");
            for wc in send_cq.poll().unwrap() {
                wc.ok().unwrap();
                if let Ok(Completed::Send(done)) = sender.complete(wc) {
                    unused.push(done.into_work().unwrap());
                }
            }
        }
        // From zero to the duration of arming, in a different order each time.
        for i in 0..round.wrapping_mul(7919) % 8192 {
            hint::black_box(i);
        }
        let mut buf = unused.pop().unwrap();
        buf.copy_from_slice(&round.to_ne_bytes());
        sender.post(op::Send::new(buf)).unwrap();
    }
    thread.join().unwrap();
}

#[test]
fn blocked_thread_loses_no_wake_up() {
    let fixture = Fixture::new();
    race(&fixture, fixture.cq(16), |mut cq, mut receiver| {
        while !receiver.is_done() {
            receiver.take(cq.wait(None).unwrap());
        }
    });
}

#[test]
fn event_loop_loses_no_wake_up() {
    let fixture = Fixture::new();
    race(&fixture, fixture.cq(16), |mut cq, mut receiver| {
        let fd = cq.notify_fd().unwrap().as_raw_fd();
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(4));
        let registry = poll.registry();
        registry
            .register(&mut SourceFd(&fd), Token(0), Interest::READABLE)
            .unwrap();
        loop {
            while let Some(completions) = cq.poll_or_arm().unwrap() {
                receiver.take(completions);
            }
            if receiver.is_done() {
                break;
            }
            poll.poll(&mut events, None).unwrap();
        }
    });
}

#[test]
fn shared_channel_loses_no_wake_up() {
    let fixture = Fixture::new();
    let channel: CompletionChannel = fixture.ctx.create_comp_channel().unwrap();
    let other = fixture.ctx.cq_builder(4).channel(&channel, CqKey(1));
    let _other = other.create().unwrap();
    let cq = fixture.ctx.cq_builder(16).channel(&channel, CqKey(7));
    race(
        &fixture,
        cq.create().unwrap(),
        move |mut cq, mut receiver| {
            loop {
                while let Some(completions) = cq.poll_or_arm().unwrap() {
                    receiver.take(completions);
                }
                if receiver.is_done() {
                    break;
                }
                assert_eq!(channel.wait().unwrap(), CqKey(7));
            }
        },
    );
}

/// Receivers of one queue, which take turns: a message is for the receiver of its round.
struct Inbox {
    receiver: Receiver,
    cq: CompletionQueue,
    channel: Arc<CompletionChannel>,
    arrived: [u32; RECEIVERS],
    waiters: Waiters<usize>,
}

/// Number of threads that share a queue.
const RECEIVERS: usize = 3;

impl Source for Inbox {
    type Interest = usize;
    type Error = verbs::Error;

    fn waiters(&mut self) -> &mut Waiters<usize> {
        &mut self.waiters
    }

    fn process(&mut self) -> verbs::Result<bool> {
        let before = self.receiver.rounds_done.load(Ordering::Relaxed);
        self.receiver.take(self.cq.poll()?);
        let after = self.receiver.rounds_done.load(Ordering::Relaxed);
        for round in before..after {
            let receiver = round as usize % RECEIVERS;
            self.arrived[receiver] += 1;
            self.waiters.wake(|&waiting| waiting == receiver);
        }
        Ok(before != after)
    }

    fn drain_events(&mut self) -> verbs::Result<()> {
        while self.channel.try_next()?.is_some() {}
        Ok(())
    }

    fn arm(&mut self) -> verbs::Result<()> {
        self.cq.req_notify(Notify::Next)
    }
}

#[test]
fn threads_that_share_a_queue_lose_no_wake_up() {
    let fixture = Fixture::new();
    let channel = Arc::new(fixture.ctx.create_comp_channel().unwrap());
    let cq = fixture.ctx.cq_builder(16).channel(&channel, CqKey(0));
    race(&fixture, cq.create().unwrap(), move |cq, receiver| {
        let rounds = receiver.rounds as usize;
        let state = Inbox {
            receiver,
            cq,
            channel: Arc::clone(&channel),
            arrived: [0; RECEIVERS],
            waiters: Waiters::new(),
        };
        let inbox = Shared::new(state, channel);
        let receive = |number| {
            for _ in (number..rounds).step_by(RECEIVERS) {
                let mut state = inbox.lock();
                while state.arrived[number] == 0 {
                    let end;
                    (state, end) = inbox.wait(state, number, None, None).unwrap();
                    assert_eq!(end, WaitEnd::Woken);
                }
                state.arrived[number] -= 1;
            }
        };
        thread::scope(|scope| {
            for number in 0..RECEIVERS {
                scope.spawn({
                    let receive = &receive;
                    move || receive(number)
                });
            }
        });
    });
}

#[test]
fn task_loses_no_wake_up() {
    let fixture = Fixture::new();
    race(&fixture, fixture.cq(16), |cq, mut receiver| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let task = runtime.spawn(async move {
            let mut cq = verbs::tokio::CompletionQueue::new(cq).unwrap();
            while !receiver.is_done() {
                // A cancelled wait loses nothing either.
                let completed = tokio::select! {
                    biased;
                    completions = cq.wait() => {
                        receiver.take(completions.unwrap());
                        true
                    }
                    () = tokio::task::yield_now() => false,
                };
                if !completed {
                    receiver.take(cq.wait().await.unwrap());
                }
            }
        });
        runtime.block_on(task).unwrap();
    });
}
