//! Messages of `rds` between hosts, each with an engine, a thread that receives, and a thread for each flow that sends.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rds::{EngineOptions, Event, Socket};
use softnic::{Fabric, Host};

use crate::{
    HOSTS, SPEED,
    outages::{Change, Outages, Restart},
    schedule::Schedule,
    swarm::Violation,
    tally::Tally,
};

/// Messages of a flow for each message of the schedule.
const MULTIPLE: usize = 4;

/// Length of the longest message, in several fragments.
const MAX_LEN: usize = 9000;

/// Port of the sockets.
const PORT: u16 = 4000;

/// Time without a message after which a schedule hangs, far beyond all time-outs.
const HANG: Duration = Duration::from_secs(30);

/// Time-out of a call, so that a thread sees the end of its host.
const CALL: Option<Duration> = Some(Duration::from_millis(20));

/// Interval between two looks at the outages.
const TICK: Duration = Duration::from_millis(1);

fn addr(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, u8::try_from(host).unwrap_or(0) + 1], PORT))
}

/// A message: numbers of the flow and of the message, and bytes that depend on both.
fn message(flow: usize, number: usize) -> Vec<u8> {
    let seed = flow << 8 | number;
    let len = 2 + seed.wrapping_mul(0x9e37_79b1) % MAX_LEN;
    let byte = |i: usize| ((i ^ seed << 8).wrapping_mul(0x9e37_79b1) >> 9).to_le_bytes()[0];
    let mut bytes: Vec<u8> = (0..len).map(byte).collect();
    for (to, from) in bytes.iter_mut().zip([flow, number]) {
        *to = u8::try_from(from).unwrap_or(u8::MAX);
    }
    bytes
}

/// Numbers of received messages, by flow and by the life of the receiving host.
type Log = BTreeMap<(usize, usize), Vec<usize>>;

/// State shared by the threads.
#[derive(Clone, Default)]
struct Shared {
    log: Arc<Mutex<(Log, Option<Violation>)>>,
    /// Number of received messages.
    received: Arc<AtomicUsize>,
}

impl Shared {
    /// Takes one message of a socket, if there is one before the call's time-out.
    fn receive(&self, socket: &Socket, life: usize) -> io::Result<()> {
        let Event::Message(found) = socket.recv_event()? else {
            return Ok(());
        };
        let bytes = found.to_vec();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        match bytes[..] {
            [flow, number, ..] if bytes == message(flow.into(), number.into()) => {
                let numbers = log.0.entry((flow.into(), life)).or_default();
                numbers.push(number.into());
                self.received.fetch_add(1, Relaxed);
            }
            _ => log.1 = Some(format!("a message of {} wrong bytes", bytes.len())),
        }
        Ok(())
    }
}

/// A flow of messages.
#[derive(Clone, Copy, Debug)]
struct Flow {
    hosts: [usize; 2],
    /// Whether the sender was killed, so that messages may be missing.
    is_cut_short: bool,
}

/// A host with an engine and a socket.
struct Node {
    host: Host,
    socket: Arc<Socket>,
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Node {
    fn start(fabric: &Fabric, at: usize, retries: u8, shared: &Shared, life: usize) -> Self {
        let host = fabric.host(addr(at).ip());
        let socket = host.run(|| {
            let engine = EngineOptions::new()
                .receives(64)
                .retry_count(retries)
                .start()?;
            let socket = engine.socket()?;
            socket.bind_to(addr(at))?;
            socket.set_read_timeout(CALL);
            socket.set_write_timeout(CALL);
            Ok::<_, io::Error>(Arc::new(socket))
        });
        let socket = socket.unwrap_or_else(|error| panic!("a new host has no socket: {error}"));
        let mut node = Self {
            host,
            socket,
            stopped: Arc::default(),
            threads: Vec::new(),
        };
        let shared = shared.clone();
        node.spawn(move |socket, stopped| {
            while !stopped.load(Relaxed) {
                // A time-out, in most cases.
                drop(shared.receive(socket, life));
            }
            // Acknowledged messages may be left.
            while shared.receive(socket, life).is_ok() {}
        });
        node
    }

    fn spawn(&mut self, run: impl FnOnce(&Socket, &AtomicBool) + Send + 'static) {
        let (socket, stopped) = (Arc::clone(&self.socket), Arc::clone(&self.stopped));
        self.threads
            .push(self.host.spawn(move || run(&socket, &stopped)));
    }

    /// Sends all messages of a flow.
    fn send(&mut self, flow: usize, to: usize, count: usize) {
        self.spawn(move |socket, stopped| {
            for number in 0..count {
                let bytes = message(flow, number);
                while !stopped.load(Relaxed) && socket.send_to(&bytes, addr(to)).is_err() {}
            }
        });
    }

    fn stop(self) {
        self.stopped.store(true, Relaxed);
        for thread in self.threads {
            // The threads do not panic.
            drop(thread.join());
        }
    }
}

struct World<'a> {
    schedule: &'a Schedule,
    fabric: Fabric,
    nodes: Vec<Option<Node>>,
    /// Number of starts of each host.
    lives: Vec<usize>,
    flows: Vec<Flow>,
    outages: Outages,
    shared: Shared,
    retries: u8,
}

impl<'a> World<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let fabric = Fabric::seeded(schedule.seed).keep_objects().speed(SPEED);
        fabric.set_faults(schedule.frame_faults());
        let mut rng = schedule.rng();
        let retries = rng.u8(1..=7);
        let mut flows = Vec::new();
        for _ in 0..schedule.connections {
            let from = rng.usize(..HOSTS);
            let hosts = [from, (from + rng.usize(1..HOSTS)) % HOSTS];
            let is_cut_short = false;
            flows.push(Flow {
                hosts,
                is_cut_short,
            });
            flows.push(Flow {
                hosts: [hosts[1], hosts[0]],
                is_cut_short,
            });
        }
        let shared = Shared::default();
        let mut nodes: Vec<_> = (0..HOSTS)
            .map(|at| Node::start(&fabric, at, retries, &shared, 0))
            .collect();
        for (number, flow) in flows.iter().enumerate() {
            let [from, to] = flow.hosts;
            nodes[from].send(number, to, schedule.messages * MULTIPLE);
        }
        Self {
            nodes: nodes.into_iter().map(Some).collect(),
            lives: vec![0; HOSTS],
            outages: Outages::new(schedule),
            schedule,
            fabric,
            flows,
            shared,
            retries,
        }
    }

    fn change(&mut self, change: Change) {
        let host = |at: usize| self.nodes[at].as_ref().map(|node| &node.host);
        match change.apply(&self.fabric, host) {
            Some(Restart::Kill(at)) => {
                if let Some(node) = self.nodes[at].take() {
                    self.fabric.kill(&node.host);
                    node.stop();
                    let of = self.flows.iter_mut().filter(|flow| flow.hosts[0] == at);
                    of.for_each(|flow| flow.is_cut_short = true);
                }
            }
            Some(Restart::Start(at)) if self.nodes[at].is_none() => {
                self.lives[at] += 1;
                let life = self.lives[at];
                self.nodes[at] = Some(Node::start(
                    &self.fabric,
                    at,
                    self.retries,
                    &self.shared,
                    life,
                ));
            }
            _ => {}
        }
    }

    /// Whether each message of a flow has arrived, unless its sender was killed.
    fn is_complete(&self) -> bool {
        let log = self
            .shared
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.flows.iter().enumerate().all(|(number, flow)| {
            let of = log.0.range((number, 0)..(number + 1, 0));
            let last = of.filter_map(|(_, numbers)| numbers.last()).max();
            flow.is_cut_short || last == Some(&(self.schedule.messages * MULTIPLE - 1))
        })
    }

    /// Waits until all messages have arrived, and changes outages meanwhile.
    fn run(&mut self) -> Result<(), Violation> {
        let mut last = (0, Instant::now());
        while !self.is_complete() {
            let received = self.shared.received.load(Relaxed);
            if received > last.0 {
                last = (received, Instant::now());
            }
            if last.1.elapsed() > HANG {
                let log = self
                    .shared
                    .log
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                return Err(format!(
                    "a hang: {:?}, {:?}, objects: {}",
                    self.flows,
                    log.0,
                    self.fabric.books()
                ));
            }
            let now = self.fabric.now();
            for change in self.outages.due_changes(received / MULTIPLE, now) {
                self.change(change);
            }
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Checks the received numbers: in order, once in each life of a receiver, and without a gap.
    fn check(&self) -> Result<(), Violation> {
        let mut log = self
            .shared
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(violation) = log.1.take() {
            return Err(violation);
        }
        for (number, flow) in self.flows.iter().enumerate() {
            let mut next = 0;
            for ((_, life), numbers) in log.0.range((number, 0)..(number + 1, 0)) {
                let first = numbers.first().copied().unwrap_or(next);
                let expected: Vec<_> = (first..).take(numbers.len()).collect();
                // A new life may get messages again that the former one did not acknowledge.
                if *numbers != expected || first > next || (*life == 0 && first != 0) {
                    return Err(format!(
                        "numbers out of order in life {life} of {flow:?}: {numbers:?} after {next}"
                    ));
                }
                next = next.max(first + numbers.len());
            }
        }
        Ok(())
    }
}

pub(crate) fn run(schedule: &Schedule) -> Result<Tally, Violation> {
    let mut world = World::new(schedule);
    world.run()?;
    for node in world.nodes.drain(..).flatten() {
        node.stop();
    }
    world.check()?;
    let cut_short = world.flows.iter().filter(|flow| flow.is_cut_short);
    let mut tally = Tally {
        schedules: 1,
        outages: world.outages.begun,
        failed_connections: cut_short.count() as u64,
        messages: world.shared.received.load(Relaxed) as u64,
        ..Tally::default()
    };
    tally.count(world.fabric.traffic());
    let books = world.fabric.books();
    if !books.is_empty() {
        return Err(format!("objects are left: {books}"));
    }
    Ok(tally)
}
