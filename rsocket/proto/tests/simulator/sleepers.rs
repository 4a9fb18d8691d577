//! Threads sleeping until an armed completion queue notifies them.

use fastrand::Rng;
use rsocket_proto::{
    ByteOrder,
    stream::{Burst, Direction},
};

use crate::{
    schedule::{connect, pattern, settings_of_both},
    side::Completion,
    wire::Wire,
};

/// A reader of all data, or a writer.
#[derive(Debug)]
struct Thread {
    writes: bool,
    asleep: bool,
    done: bool,
}

#[derive(Debug)]
struct Host {
    threads: [Thread; 2],
    /// Whether the send and the receive completion queue are armed.
    sends_armed: bool,
    receives_armed: bool,
    to_send: usize,
    sent: usize,
    received: usize,
}

/// Two hosts with a reader and a writer each.
#[derive(Debug)]
pub(crate) struct Sleepers {
    rng: Rng,
    wire: Wire,
    hosts: [Host; 2],
    /// Send completions are delayed.
    late: bool,
}

impl Sleepers {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let both = settings_of_both(&mut rng);
        let hosts = [(); 2].map(|()| Host {
            threads: [false, true].map(|writes| Thread {
                writes,
                asleep: false,
                done: false,
            }),
            sends_armed: false,
            receives_armed: false,
            to_send: rng.usize(0..200_000) >> rng.u32(0..8),
            sent: 0,
            received: 0,
        });
        Self {
            wire: connect(both, [ByteOrder::Little; 2]),
            hosts,
            late: rng.bool(),
            rng,
        }
    }

    /// Runs until all written data has been read. At any time, a thread must be awake or about to be woken.
    pub(crate) fn run(mut self) {
        let mut steps = 0;
        while self
            .hosts
            .iter()
            .flat_map(|host| &host.threads)
            .any(|thread| !thread.done)
        {
            steps += 1;
            assert!(steps < 2_000_000, "no progress: {self:#?}");
            let (i, t) = (self.rng.usize(0..2), self.rng.usize(0..2));
            let thread = &self.hosts[i].threads[t];
            if self.rng.bool() && !thread.asleep && !thread.done {
                self.step(i, t);
            } else if self.lingers(i) && self.rng.bool() {
                self.wire.sides[i].poll(usize::MAX);
            } else if !self.move_on(i) && !self.move_on(1 - i) {
                assert!(
                    self.anybody_awake() || self.lingers(0) || self.lingers(1),
                    "all threads sleep with no message in flight: {self:#?}"
                );
            }
        }
        for (host, other) in self.hosts.iter().zip(self.hosts.iter().rev()) {
            assert_eq!((host.sent, host.received), (host.to_send, other.to_send));
        }
    }

    /// Whether a closed stream still has completions to process.
    fn lingers(&self, i: usize) -> bool {
        let closed = self.hosts[i].threads.iter().all(|thread| thread.done);
        closed && !self.wire.sides[i].completions.is_empty()
    }

    fn anybody_awake(&self) -> bool {
        let mut threads = self.hosts.iter().flat_map(|host| &host.threads);
        threads.any(|thread| !thread.asleep && !thread.done)
    }

    /// Lets a host's device make one step. Returns false without work.
    fn move_on(&mut self, i: usize) -> bool {
        let before = [0, 1].map(|host: usize| self.wire.sides[host].completions.len());
        let moved = match self.rng.u8(0..64) {
            0 => self.wire.acknowledge(i) || self.wire.deliver(i),
            _ if self.late => {
                self.wire.deliver(i) || !self.anybody_awake() && self.wire.acknowledge(i)
            }
            even if even % 2 == 0 => self.wire.acknowledge(i) || self.wire.deliver(i),
            _ => self.wire.deliver(i) || self.wire.acknowledge(i),
        };
        for (side, (host, before)) in self
            .wire
            .sides
            .iter()
            .zip(self.hosts.iter_mut().zip(before))
        {
            for completion in side.completions.iter().skip(before) {
                let armed = match completion {
                    Completion::Sent(..) => &mut host.sends_armed,
                    Completion::Received(_) => &mut host.receives_armed,
                };
                if std::mem::take(armed) {
                    host.threads
                        .iter_mut()
                        .for_each(|thread| thread.asleep = false);
                }
            }
        }
        moved
    }

    /// A thread makes progress, processes completions, or arms the queues and sleeps.
    fn step(&mut self, i: usize, t: usize) {
        let writes = self.hosts[i].threads[t].writes;
        if if writes {
            self.write(i, t)
        } else {
            self.read(i, t)
        } {
            return;
        }
        let (side, host) = (&mut self.wire.sides[i], &mut self.hosts[i]);
        if !side.completions.is_empty() {
            side.poll(usize::MAX);
            let readiness = side.stream.readiness();
            for thread in &mut host.threads {
                let met = if thread.writes {
                    readiness.writable
                } else {
                    readiness.readable
                };
                thread.asleep &= !met;
            }
            return;
        }
        host.receives_armed = true;
        host.sends_armed |= side.stream.waits_for_sent(writes);
        host.threads[t].asleep = true;
    }

    /// Reads; returns whether there was progress.
    fn read(&mut self, i: usize, t: usize) -> bool {
        let (side, host) = (&mut self.wire.sides[i], &mut self.hosts[i]);
        let bytes = side.read(1 << self.rng.u32(0..18));
        assert!(
            pattern(1 - i, host.received)
                .take(bytes.len())
                .eq(bytes.iter().copied()),
            "wrong bytes from {}",
            host.received
        );
        host.received += bytes.len();
        host.threads[t].done = bytes.is_empty() && side.stream.readiness().readable;
        !bytes.is_empty() || host.threads[t].done
    }

    /// Writes; returns whether there was progress.
    fn write(&mut self, i: usize, t: usize) -> bool {
        let (side, host) = (&mut self.wire.sides[i], &mut self.hosts[i]);
        let remaining = host.to_send - host.sent;
        if remaining == 0 {
            side.stream.shut_down(Direction::Write);
            side.pump();
            host.threads[t].done = true;
            return true;
        }
        let len = self.rng.usize(1..=remaining.min(1 << 17));
        let bytes: Vec<u8> = pattern(i, host.sent).take(len).collect();
        let mut burst = Burst::default();
        let mut done = 0;
        while let Some(outgoing) = side.send(&mut burst, len - done) {
            done += side.post(outgoing, &bytes[done..]);
        }
        host.sent += done;
        done > 0
    }
}
