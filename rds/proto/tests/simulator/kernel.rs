//! A link connecting with a simulated kernel. The kernel redials immediately and forever, never
//! yields while dialing, and drops a live connection when a request arrives.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use fastrand::Rng;
use rds_proto::link::{Action, Attempt, Demand, Failure, Link, RequestId};

const MS: Duration = Duration::from_millis(1);

/// A message of the connection manager, with the numbers of attempts.
#[derive(Clone, Copy, Debug)]
enum Packet {
    Request(u64),
    /// To the first attempt, from the second.
    Reply(u64, u64),
    Ready(u64),
    Reject(u64),
    Gone(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down(Duration),
    Dialling(u64),
    Accepting(u64),
    Up(u64),
}

/// The kernel's side.
#[derive(Debug)]
struct Kernel {
    state: State,
    delay: Duration,
    next: u64,
    /// The peer's attempt.
    peer: u64,
}

impl Kernel {
    fn new(rng: &mut Rng) -> Self {
        Self {
            state: State::Down(MS * rng.u32(0..20)),
            delay: Duration::ZERO,
            next: 1000,
            peer: 0,
        }
    }

    /// Drops the connection or attempt, and redials after a backoff.
    fn drop_connection(&mut self, now: Duration, rng: &mut Rng) {
        self.state = State::Down(now + self.delay.mul_f64(rng.f64()));
        self.delay = (self.delay * 2).clamp(4 * MS, 1000 * MS);
    }

    fn tick(&mut self, now: Duration) -> Option<Packet> {
        match self.state {
            State::Down(at) if at <= now => {
                self.next += 1;
                self.state = State::Dialling(self.next);
                Some(Packet::Request(self.next))
            }
            _ => None,
        }
    }

    fn on_packet(&mut self, now: Duration, packet: Packet, rng: &mut Rng) -> Vec<Packet> {
        match (packet, self.state) {
            (Packet::Request(from), State::Down(_)) => {
                self.next += 1;
                self.state = State::Accepting(self.next);
                self.peer = from;
                vec![Packet::Reply(from, self.next)]
            }
            (Packet::Request(from), State::Up(_)) => {
                let lost = Packet::Gone(self.peer);
                self.drop_connection(now, rng);
                vec![lost, Packet::Reject(from)]
            }
            (Packet::Request(from), _) => vec![Packet::Reject(from)],
            (Packet::Reply(to, from), State::Dialling(this)) if to == this => {
                self.state = State::Up(this);
                self.peer = from;
                self.delay = Duration::ZERO;
                vec![Packet::Ready(from)]
            }
            (Packet::Reply(_, from), _) => vec![Packet::Gone(from)],
            (Packet::Ready(to), State::Accepting(this)) if to == this => {
                self.state = State::Up(this);
                self.delay = Duration::ZERO;
                vec![]
            }
            (
                Packet::Reject(to) | Packet::Gone(to),
                State::Dialling(this) | State::Accepting(this) | State::Up(this),
            ) if to == this => {
                self.drop_connection(now, rng);
                vec![]
            }
            _ => vec![],
        }
    }
}

/// The tested side, with attempts numbered for the wire.
#[derive(Debug)]
struct Ours {
    link: Link,
    attempts: Vec<Attempt>,
    /// The peer's attempt.
    peer: Option<u64>,
}

impl Ours {
    fn new(ips: [IpAddr; 2], rng: &mut Rng) -> Self {
        Self {
            link: Link::new(ips[0], ips[1], rng.u64(..)),
            attempts: vec![],
            peer: None,
        }
    }

    fn number(&self, attempt: Attempt) -> u64 {
        self.attempts.iter().position(|&a| a == attempt).unwrap() as u64
    }

    fn tick(&mut self, now: Duration) -> Vec<Packet> {
        let mut packets = vec![];
        self.link.admit(now);
        while let Some(action) = self.link.poll(now, Demand::Messages) {
            match action {
                Action::Dial(attempt) => {
                    self.attempts.push(attempt);
                    self.peer = None;
                    packets.push(Packet::Request(self.number(attempt)));
                }
                Action::Accept(RequestId(from), attempt) => {
                    self.attempts.push(attempt);
                    self.peer = Some(from);
                    packets.push(Packet::Reply(from, self.number(attempt)));
                }
                Action::Reject(RequestId(from)) => packets.push(Packet::Reject(from)),
                Action::Close(attempt) => {
                    packets.extend(self.peer.take().map(Packet::Gone));
                    self.link.closed(now, attempt);
                }
            }
        }
        packets
    }

    fn on_packet(&mut self, now: Duration, packet: Packet) -> Option<Packet> {
        let attempt = |number: u64| self.attempts[usize::try_from(number).unwrap()];
        match packet {
            Packet::Request(from) => self.link.request(now, RequestId(from)),
            Packet::Reply(to, from) => {
                if !self.link.established(attempt(to)) {
                    return Some(Packet::Gone(from));
                }
                self.peer = Some(from);
                return Some(Packet::Ready(from));
            }
            Packet::Ready(to) => {
                self.link.established(attempt(to));
            }
            Packet::Reject(to) => self.link.failed(attempt(to), Failure::Refused),
            Packet::Gone(to) => self.link.failed(attempt(to), Failure::Lost),
        }
        None
    }
}

/// Runs until both sides share a stable connection; returns the time until then.
pub(crate) fn connect(seed: u64) -> Duration {
    let mut rng = Rng::with_seed(seed);
    let mut ips = [[10, 9, 0, 1], [10, 9, 0, 2]].map(IpAddr::from);
    if rng.bool() {
        ips.reverse();
    }
    let mut ours = Ours::new(ips, &mut rng);
    let mut kernel = Kernel::new(&mut rng);
    // Packets to the link and to the kernel, with arrival times.
    let mut wires: [VecDeque<(Duration, Packet)>; 2] = Default::default();
    let (mut now, mut up_since) = (Duration::ZERO, None);
    let mut losses = rng.u8(0..3);
    loop {
        let mut sent = [vec![], vec![]];
        sent[1].extend(ours.tick(now));
        sent[0].extend(kernel.tick(now));
        for (i, wire) in wires.iter_mut().enumerate() {
            while wire.front().is_some_and(|&(at, _)| at <= now) {
                let (_, packet) = wire.pop_front().unwrap();
                if i == 0 {
                    sent[1].extend(ours.on_packet(now, packet));
                } else {
                    sent[0].extend(kernel.on_packet(now, packet, &mut rng));
                }
            }
        }
        for (wire, packets) in wires.iter_mut().zip(sent) {
            for packet in packets {
                // Delays vary, but packets stay in order.
                let last = wire.back().map_or(now, |&(at, _)| at);
                wire.push_back(((now + MS * rng.u32(1..30)).max(last), packet));
            }
        }
        now += MS;
        assert!(now < 60_000 * MS, "they never meet: {ours:?} {kernel:?}");
        let State::Up(number) = kernel.state else {
            up_since = None;
            continue;
        };
        if !ours.link.is_up() || ours.peer != Some(number) {
            up_since = None;
            continue;
        }
        let since: Duration = *up_since.get_or_insert(now);
        if now - since < 1000 * MS {
            continue;
        }
        if losses == 0 {
            return since;
        }
        // The network fails, and both sides detect it.
        losses -= 1;
        wires.iter_mut().for_each(VecDeque::clear);
        let attempt = ours.link.current().unwrap();
        ours.link.failed(attempt, Failure::Lost);
        kernel.drop_connection(now, &mut rng);
    }
}
