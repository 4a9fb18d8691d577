//! Random schedules over connections of all sizes, generated from a seed.

use std::{iter, time::Duration};

use fastrand::Rng;
use rsocket_proto::{
    ByteOrder, Mapping, Message,
    stream::{Burst, Direction, Failure, Framing, Placement, Settings, Stream},
};

use crate::{
    side::{self, Completion, MAPPED, MAPPED_KEY, Side},
    wire::Wire,
};

/// Timeout for unacknowledged data. A step takes a millisecond, and one in ten makes progress.
const LIMIT: Duration = Duration::from_secs(5);

/// Kind of fault injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// One host dies.
    Death,
    /// One host's device stops completing requests.
    Stuck,
    /// One host violates the protocol.
    Hostile,
}

fn settings(rng: &mut Rng) -> Settings {
    let sizes = [4096, 4098, 6000, 16384, 131_072];
    let (send_buffer, recv_buffer) = (*rng.choice(&sizes).unwrap(), *rng.choice(&sizes).unwrap());
    let settings = Settings {
        send_depth: rng.u16(16..64),
        recv_depth: rng.u16(16..64),
        send_buffer,
        recv_buffer,
        send_buffer_idle: *rng.choice(&sizes).unwrap(),
        recv_buffer_idle: *rng.choice(&sizes).unwrap(),
        send_buffer_max: send_buffer * rng.u32(0..6),
        recv_buffer_max: recv_buffer * rng.u32(0..6),
        inline: *rng.choice(&[0, 4, 16, 24, 64, 256]).unwrap(),
        iomap_size: rng.u16(0..4),
        framing: Framing::Immediate,
    };
    settings.clamped(1 << 16)
}

/// Random settings of two compatible hosts.
pub(crate) fn settings_of_both(rng: &mut Rng) -> [Settings; 2] {
    let mut both = [settings(rng), settings(rng)];
    if rng.bool() {
        for settings in &mut both {
            settings.framing = Framing::Separate;
            settings.inline = settings.inline.max(4);
        }
    }
    both
}

/// Returns the bytes sent by side `side`, from byte `at` on.
pub(crate) fn pattern(side: usize, at: usize) -> impl Iterator<Item = u8> {
    (at..).map(move |i| {
        let [byte, ..] = (i.wrapping_mul(0x9e37_79b1) >> 7 ^ side).to_le_bytes();
        byte
    })
}

/// Creates two connected hosts.
pub(crate) fn connect(settings: [Settings; 2], orders: [ByteOrder; 2]) -> Wire {
    let locals = orders.map(side::local);
    let connect_data: Vec<_> = iter::zip(&settings, &locals)
        .map(|(settings, local)| {
            let wire = Stream::connect_data(settings, local).encode();
            rsocket_proto::ConnectData::decode(&wire).unwrap()
        })
        .collect();
    let make = |i: usize| {
        let stream = Stream::new(settings[i], &locals[i], &connect_data[1 - i]);
        Side::new(settings[i], stream)
    };
    Wire::new([make(0), make(1)])
}

/// Progress of the program on one host.
#[derive(Debug, Default)]
struct Program {
    to_send: usize,
    sent: usize,
    received: usize,
    seen_end: bool,
    mapped: bool,
    placed: usize,
    /// Time of the next check for unacknowledged data.
    check_at: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Run {
    rng: Rng,
    wire: Wire,
    programs: [Program; 2],
    trouble: Trouble,
    dead: Option<usize>,
    now: Duration,
}

impl Run {
    pub(crate) fn new(seed: u64, trouble: Trouble) -> Self {
        let mut rng = Rng::with_seed(seed);
        let both = settings_of_both(&mut rng);
        let order = |big| {
            if big {
                ByteOrder::Big
            } else {
                ByteOrder::Little
            }
        };
        let orders = [order(rng.bool()), order(rng.bool())];
        let programs = [(); 2].map(|()| Program {
            to_send: rng.usize(0..200_000) >> rng.u32(0..8),
            ..Program::default()
        });
        let mut wire = connect(both, orders);
        for side in &mut wire.sides {
            side.trusts = trouble != Trouble::Hostile;
            side.has_memory = rng.u8(0..4) > 0;
        }
        Self {
            wire,
            rng,
            programs,
            trouble,
            dead: None,
            now: Duration::ZERO,
        }
    }

    /// Runs until both programs have finished as far as possible. Returns the numbers of grown receive and
    /// send buffers.
    pub(crate) fn run(mut self) -> [usize; 2] {
        let trouble_at = self.rng.usize(0..3000);
        let mut step = 0;
        while !self.is_over() {
            step += 1;
            assert!(step < 2_000_000, "no progress: {self:#?}");
            if step >= trouble_at {
                self.make_trouble();
            }
            if self.trouble == Trouble::Hostile && step > trouble_at + 3000 {
                // Both may wait for data advertised by a forged message.
                self.wire.broken = true;
            }
            self.step();
        }
        let grown = self.wire.sides.each_ref().map(Side::grown);
        self.check_end();
        [grown[0][0] + grown[1][0], grown[0][1] + grown[1][1]]
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        let i = self.rng.usize(0..2);
        if self.dead == Some(i) {
            return;
        }
        self.check(i);
        match self.rng.u8(0..10) {
            0 => self.write(i),
            1 => self.read(i),
            2 | 3 => drop(self.wire.deliver(i)),
            4 | 5 => drop(self.wire.acknowledge(i)),
            6..=8 => {
                let count = self.rng.usize(1..8);
                self.wire.sides[i].poll(count);
            }
            _ => self.write_direct(i),
        }
        self.notice_loss(i);
    }

    /// Detects a stuck device and breaks the connection.
    fn check(&mut self, i: usize) {
        let (side, program) = (&mut self.wire.sides[i], &mut self.programs[i]);
        if program.check_at.is_some_and(|at| self.now < at) {
            return;
        }
        if program.check_at.is_some() {
            side.poll(usize::MAX);
        }
        program.check_at = side
            .stream
            .check(self.now, LIMIT, None)
            .unwrap_or_else(|_| {
                assert_eq!(self.wire.stuck, Some(i), "nothing is stuck");
                self.wire.broken = true;
                self.wire.stuck = None;
                None
            });
    }

    /// Simulates the disconnect event.
    fn notice_loss(&mut self, i: usize) {
        let side = &mut self.wire.sides[i];
        let drained = side.completions.is_empty() && side.queue.is_empty();
        if self.wire.broken && drained && side.unacknowledged.is_empty() {
            side.stream.lost();
        }
    }

    fn make_trouble(&mut self) {
        match self.trouble {
            Trouble::None => {}
            Trouble::Death if self.dead.is_none() => {
                self.dead = Some(self.rng.usize(0..2));
                self.wire.broken = true;
            }
            Trouble::Stuck if !self.wire.broken => {
                self.wire.stuck.get_or_insert(self.rng.usize(0..2));
            }
            Trouble::Death | Trouble::Stuck => {}
            Trouble::Hostile => {
                let message = Message::decode(self.rng.u32(..));
                let noise: Vec<u8> = iter::repeat_with(|| self.rng.u8(..)).take(64).collect();
                let side = &mut self.wire.sides[0];
                let len = noise.len().min(side.exposed.table.len());
                side.exposed.table[..len].copy_from_slice(&noise[..len]);
                if side.receives > 0 {
                    side.receives -= 1;
                    side.completions.push_back(Completion::Received(message));
                }
            }
        }
    }

    fn write(&mut self, i: usize) {
        let (side, program) = (&mut self.wire.sides[i], &mut self.programs[i]);
        let remaining = program.to_send - program.sent;
        if remaining == 0 {
            side.stream.shut_down(Direction::Write);
            side.pump();
            return;
        }
        let max = remaining.min(1 << self.rng.u32(0..18));
        let len = self.rng.usize(1..=max);
        let bytes: Vec<u8> = pattern(i, program.sent).take(len).collect();
        let mut burst = Burst::default();
        let mut done = 0;
        while let Some(outgoing) = side.stream.advertise_mapping() {
            side.post(outgoing, &[]);
        }
        if side.stream.has_unadvertised_mapping() {
            return;
        }
        while let Some(outgoing) = side.send(&mut burst, len - done) {
            done += side.post(outgoing, &bytes[done..]);
        }
        program.sent += done;
    }

    fn read(&mut self, i: usize) {
        let (side, program) = (&mut self.wire.sides[i], &mut self.programs[i]);
        let max = 1 << self.rng.u32(0..18);
        let bytes = side.read(self.rng.usize(1..=max));
        let right = pattern(1 - i, program.received).take(bytes.len());
        if self.trouble != Trouble::Hostile {
            assert!(
                right.eq(bytes.iter().copied()),
                "wrong bytes from {}",
                program.received
            );
        }
        program.received += bytes.len();
        let readiness = side.stream.readiness();
        if readiness.readable && side.stream.unread() == 0 {
            program.seen_end = true;
        }
    }

    /// Maps memory once, or writes into the other side's mapping.
    fn write_direct(&mut self, i: usize) {
        let (side, program) = (&mut self.wire.sides[i], &mut self.programs[i]);
        if !program.mapped && self.rng.bool() {
            let mapping = Mapping {
                offset: 1000,
                addr: MAPPED,
                rkey: MAPPED_KEY,
                len: 1 << 14,
            };
            program.mapped = side.stream.map(mapping).is_ok();
            return;
        }
        let bytes: Vec<u8> = pattern(i, 0).take(self.rng.usize(1..1 << 14)).collect();
        let mut burst = Burst::default();
        let mut done = 0;
        while done < bytes.len() {
            let remaining = bytes.len() - done;
            match side
                .stream
                .send_to(&mut burst, remaining, 1000 + done as u64)
            {
                Placement::Post(outgoing) => done += side.post(outgoing, &bytes[done..]),
                Placement::Wait | Placement::Unmapped => break,
            }
        }
        program.placed = program.placed.max(done);
    }

    fn is_over(&self) -> bool {
        let done = |i: usize| {
            let (side, program) = (&self.wire.sides[i], &self.programs[i]);
            self.dead == Some(i)
                || program.seen_end
                    && (program.sent == program.to_send || !side.stream.is_writable())
        };
        done(0) && done(1)
    }

    fn check_end(mut self) {
        if self.trouble == Trouble::None {
            for (i, program) in self.programs.iter().enumerate() {
                assert_eq!(
                    program.sent, program.to_send,
                    "side {i} has sent everything"
                );
                assert_eq!(
                    program.received,
                    self.programs[1 - i].sent,
                    "side {i} has it all"
                );
                assert_eq!(self.wire.sides[i].stream.failure(), None);
            }
            for side in &mut self.wire.sides {
                side.stream.shut_down(Direction::Both);
                side.pump();
            }
        }
        self.wire.stuck = None;
        self.wire.run_until_idle();
        for i in 0..2 {
            let side = &mut self.wire.sides[i];
            if self.trouble == Trouble::None {
                let mapped = &side.exposed.mapped[..self.programs[1 - i].placed];
                let expected: Vec<u8> = pattern(1 - i, 0).take(mapped.len()).collect();
                assert!(mapped == expected, "placed bytes arrive");
                assert!(!side.stream.is_connected());
            }
            if let Some(failure) = side.stream.failure() {
                let lost = matches!(failure, Failure::Lost | Failure::Send);
                let expected = match self.trouble {
                    Trouble::None => false,
                    Trouble::Death => self.dead.is_some() && lost,
                    Trouble::Stuck => lost || failure == Failure::TimedOut,
                    Trouble::Hostile => true,
                };
                assert!(expected, "{failure:?}");
            }
            if self.dead != Some(i) && self.trouble != Trouble::Hostile {
                assert!(side.stream.is_flushed());
                assert_eq!(
                    side.stream.in_flight(),
                    0,
                    "every count is back where it began"
                );
            }
        }
    }
}
