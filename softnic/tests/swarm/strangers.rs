//! Random peers of an `rds` engine with the memory of a small service: each performs random actions of a host on the wire.

use std::{
    env,
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rds::{EngineOptions, Socket, proto::wire::Header};
use softnic::{Fabric, Host, Limits};

use crate::prober::{self, Wire, early_data::EarlyData};

/// Number of hostile actions of a short run.
const ACTIONS: u32 = 600;

/// Time of a long run.
const LONG: Duration = Duration::from_secs(600);

/// Hostile actions before another host connects.
const ACTIONS_PER_NEWCOMER: u32 = 25;

/// Lockable memory of the server's host.
const LOCKED: u64 = 8 << 20;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A hostile host with many addresses, and its connections.
struct Strangers {
    rng: Rng,
    addrs: Vec<IpAddr>,
    server: SocketAddr,
    wires: Vec<(Wire, u64)>,
    half_open: Vec<EarlyData>,
}

impl Strangers {
    fn act(&mut self) {
        match self.rng.u8(0..8) {
            0..3 => self.connect(),
            3 => self.request(),
            4 if !self.wires.is_empty() => {
                let index = self.rng.usize(..self.wires.len());
                drop(self.wires.swap_remove(index));
            }
            5 if !self.half_open.is_empty() => {
                let index = self.rng.usize(..self.half_open.len());
                drop(self.half_open.swap_remove(index));
            }
            _ => self.send(),
        }
    }

    fn route(&mut self) -> (IpAddr, Vec<u8>) {
        let addr = self.addrs[self.rng.usize(..self.addrs.len())];
        let tos = self.rng.u8(0..16);
        (addr, prober::proposal(addr, self.server.ip(), tos).encode())
    }

    fn connect(&mut self) {
        let (addr, data) = self.route();
        let answer = prober::dial(addr, self.server.ip(), &data, 4);
        let wire = answer.and_then(prober::Answer::accepted);
        self.wires.extend(wire.ok().map(|wire| (wire, 1)));
    }

    fn request(&mut self) {
        let (addr, data) = self.route();
        let half_open = EarlyData::dial(addr, self.server.ip(), &data);
        self.half_open.extend(half_open.ok());
    }

    /// Sends a ping, a message, the first frame of a message, a lower number again, or random bytes.
    fn send(&mut self) {
        if self.wires.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.wires.len());
        let (wire, sequence) = &mut self.wires[index];
        let (to, len) = match self.rng.u8(0..4) {
            0 => (0, 0),
            1 => (self.server.port(), self.rng.u32(0..=4096)),
            2 => (self.server.port(), 4097 + self.rng.u32(0..100_000)),
            _ => (self.rng.u16(..), 0),
        };
        let header = Header {
            sequence: *sequence,
            len,
            from: 77,
            to,
            ..Header::default()
        };
        *sequence += self.rng.u64(0..3);
        let mut frame = header.encode().to_vec();
        frame.resize(frame.len() + len.min(4096) as usize, 7);
        if self.rng.u8(..) < 8 {
            let damaged = self.rng.usize(..frame.len());
            frame[damaged] ^= 1;
        }
        if !wire.send(&frame, true).unwrap_or(false) {
            drop(self.wires.swap_remove(index));
        }
    }
}

/// A bound socket on an engine of its own.
fn socket(host: &Host, options: EngineOptions) -> Socket {
    host.run(|| {
        let engine = options.start().unwrap();
        let socket = engine.socket().unwrap();
        socket.bind_to(SocketAddr::new(host.addr(), 4000)).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT));
        socket.set_write_timeout(Some(TEST_TIMEOUT));
        socket
    })
}

/// Sends a message to the server, and waits for the answer. The messages of strangers are discarded.
fn exchange(server: &Socket, newcomer: &Socket) {
    let (server_addr, newcomer_addr) =
        (server.local_addr().unwrap(), newcomer.local_addr().unwrap());
    newcomer.send_to(b"let me in", server_addr).unwrap();
    let mut buf = vec![0; 1 << 20];
    while server.recv_from(&mut buf).unwrap().1 != newcomer_addr {}
    server.send_to(b"come in", newcomer_addr).unwrap();
    assert_eq!(newcomer.recv_from(&mut buf).unwrap(), (7, server_addr));
}

/// Waits until the server has ended all connections.
fn wait_for_the_end(server: &Socket) {
    let until = Instant::now() + TEST_TIMEOUT;
    let is_over = || {
        let info = server.engine().info().unwrap();
        info.connections.iter().all(|conn| conn.flags.is_empty())
    };
    while !is_over() {
        assert!(Instant::now() < until, "a connection has no end");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Time of a long run; `None` for a short one.
fn duration() -> Option<Duration> {
    let seconds = env::var("SOAK_SECONDS").ok();
    let seconds = seconds.map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    seconds.or_else(|| env::var_os("LONG").map(|_| LONG))
}

#[test]
fn strangers_keep_no_newcomer_out_and_leave_nothing() {
    let fabric = Fabric::new().keep_objects();
    let to = fabric.host(IpAddr::from([10, 9, 80, 1]));
    to.set_limits(Limits::new().locked_memory(LOCKED).descriptors(256));
    let newcomer = fabric.host(IpAddr::from([10, 9, 80, 2]));
    let addrs: Vec<IpAddr> = (0..40)
        .map(|number| IpAddr::from([10, 9, 80, 100 + number]))
        .collect();
    let evil = fabric.host_with_addrs(&addrs);
    let server = socket(&to, EngineOptions::new().receive_memory(LOCKED / 2));
    exchange(&server, &socket(&newcomer, EngineOptions::new()));
    let mut strangers = Strangers {
        rng: Rng::with_seed(fabric.seed()),
        addrs,
        server: server.local_addr().unwrap(),
        wires: Vec::new(),
        half_open: Vec::new(),
    };
    evil.run(|| strangers.connect());
    let descriptors = |strangers: &mut Strangers| {
        evil.run(|| {
            strangers.wires.clear();
            strangers.half_open.clear();
        });
        wait_for_the_end(&server);
        fabric.books().descriptors()
    };
    let before = descriptors(&mut strangers);
    let (start, limit) = (Instant::now(), duration());
    for round in 1.. {
        let is_over = match limit {
            Some(limit) => start.elapsed() >= limit,
            None => round > ACTIONS / ACTIONS_PER_NEWCOMER,
        };
        if is_over {
            break;
        }
        evil.run(|| (0..ACTIONS_PER_NEWCOMER).for_each(|_| strangers.act()));
        exchange(&server, &socket(&newcomer, EngineOptions::new()));
        if round % 12 == 0 {
            assert_eq!(descriptors(&mut strangers), before, "in round {round}");
            let locked = fabric.books().locked_bytes();
            assert!(locked <= LOCKED, "{locked} bytes in round {round}");
        }
    }
    let stats = server.engine().stats().unwrap();
    assert!(stats.evicted > 0, "no stranger has yielded");
}
