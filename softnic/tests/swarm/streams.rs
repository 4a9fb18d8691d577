//! Streams of `rsocket` between hosts: each end writes its bytes in one thread and reads the peer's in another.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rsocket::{Listener, Options, Stream};
use softnic::{Books, Fabric, Host};

use crate::{
    HOSTS, SPEED,
    outages::{Change, Outages, Restart},
    schedule::Schedule,
    swarm::Violation,
    tally::Tally,
};

/// Bytes of a stream for each message of the schedule.
const CHUNK: usize = 5000;

/// Port of the listeners.
const PORT: u16 = 7471;

/// Time without an end of a stream after which a schedule hangs, far beyond all time-outs.
const HANG: Duration = Duration::from_secs(30);

/// Complaint about an error without an outage.
const ERROR: &str = "an error without an outage";

/// Number of runs of a schedule with such an error. On a busy machine, a thread may be late by all retries of the
/// connection manager; a fault of the code fails each run.
const RUNS: u32 = 4;

/// Interval between two looks at the outages.
const TICK: Duration = Duration::from_millis(1);

/// Bytes sent by one side of a connection.
fn bytes(connection: u8, side: usize, messages: usize) -> Vec<u8> {
    let seed = usize::from(connection) * 2 + side;
    let byte =
        |i: usize| (i.wrapping_add(seed << 20).wrapping_mul(0x9e37_79b1) >> 9).to_le_bytes()[0];
    (0..messages * CHUNK).map(byte).collect()
}

fn options() -> Options {
    Options::new()
        .keep_alive(Duration::from_millis(20))
        .linger(Duration::from_secs(1))
        .handshake_timeout(Duration::from_secs(5))
}

/// The end of one side of a stream.
#[derive(Debug)]
struct End {
    /// Number of the connection; `None` if unknown to the passive side.
    connection: Option<u8>,
    side: usize,
    sent: io::Result<()>,
    received: usize,
    read: io::Result<()>,
    /// Offset of the first wrong byte.
    wrong: Option<usize>,
}

impl End {
    /// The end of a side without a stream.
    fn failed(connection: Option<u8>, side: usize, error: io::Error) -> Self {
        Self {
            connection,
            side,
            sent: Ok(()),
            received: 0,
            read: Err(error),
            wrong: None,
        }
    }

    fn check(&self, schedule: &Schedule) -> Result<(), Violation> {
        let expected = schedule.messages * CHUNK;
        let is_whole = self.received == expected;
        let complaint = if self.wrong.is_some() {
            "a wrong byte"
        } else if self.read.is_ok() && !is_whole {
            "an early end of file"
        } else if schedule.is_gentle() && !(is_whole && self.read.is_ok() && self.sent.is_ok()) {
            ERROR
        } else {
            return Ok(());
        };
        Err(format!(
            "{complaint} in connection {:?}: {self:?} of {expected} bytes",
            self.connection
        ))
    }
}

/// State shared by the threads of the ends.
#[derive(Clone)]
struct Shared {
    messages: usize,
    /// Number of received chunks.
    received: Arc<AtomicUsize>,
    /// Number of accepted streams.
    accepted: Arc<AtomicUsize>,
    ends: Sender<End>,
}

impl Shared {
    /// Writes all bytes of one side while reading the other's.
    fn exchange(&self, connection: u8, side: usize, stream: &Stream) -> End {
        let mut end = End::failed(Some(connection), side, io::ErrorKind::Other.into());
        let (mut reading, mut writing) = (stream, stream);
        thread::scope(|scope| {
            let writer = scope.spawn(move || {
                writing.write_all(&bytes(connection, side, self.messages))?;
                stream.shutdown(Shutdown::Write)
            });
            let expected = bytes(connection, 1 - side, self.messages);
            let mut buf = vec![0; CHUNK];
            end.read = loop {
                match reading.read(&mut buf) {
                    Ok(0) => break Ok(()),
                    Ok(len) => {
                        let to = end.received + len;
                        if expected.get(end.received..to) != Some(&buf[..len]) {
                            end.wrong = Some(end.received);
                        }
                        self.received
                            .fetch_add(to / CHUNK - end.received / CHUNK, Relaxed);
                        end.received = to;
                    }
                    Err(error) => break Err(error),
                }
            };
            end.sent = writer
                .join()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        });
        end
    }

    fn active(&self, connection: u8, peer: SocketAddr) -> End {
        let stream = options().connect(peer).and_then(|stream| {
            (&stream).write_all(&[connection])?;
            Ok(stream)
        });
        match stream {
            Ok(stream) => self.exchange(connection, 0, &stream),
            Err(error) => End::failed(Some(connection), 0, error),
        }
    }

    fn passive(&self, stream: &Stream) -> End {
        let mut connection = [0];
        let mut reading = stream;
        match reading.read_exact(&mut connection) {
            Ok(()) => self.exchange(connection[0], 1, stream),
            Err(error) => End::failed(None, 1, error),
        }
    }
}

/// A host with a listener.
struct Node {
    host: Host,
    listener: Listener,
}

impl Node {
    fn start(fabric: &Fabric, index: usize, shared: &Shared) -> Self {
        let host = fabric.host([10, 9, 0, u8::try_from(index).unwrap_or(0) + 1].into());
        let listener = host.run(|| options().listen(SocketAddr::new(host.addr(), PORT)));
        let listener = listener.unwrap_or_else(|error| panic!("a new host cannot listen: {error}"));
        let (accepting, shared) = (listener.try_clone(), shared.clone());
        host.spawn(move || {
            for stream in accepting.iter().flat_map(Listener::incoming) {
                let Ok(stream) = stream else { return };
                shared.accepted.fetch_add(1, Relaxed);
                let shared = shared.clone();
                // The end is sent after the drop of the stream.
                thread::spawn(move || {
                    let end = shared.passive(&stream);
                    drop(stream);
                    shared.ends.send(end)
                });
            }
        });
        Self { host, listener }
    }
}

struct World {
    fabric: Fabric,
    nodes: Vec<Option<Node>>,
    /// Killed hosts. Their listeners release the devices.
    killed: Vec<Node>,
    outages: Outages,
    shared: Shared,
    ends: Receiver<End>,
}

impl World {
    fn new(schedule: &Schedule) -> Self {
        let fabric = Fabric::seeded(schedule.seed).keep_objects().speed(SPEED);
        fabric.set_faults(schedule.frame_faults());
        let (sender, ends) = mpsc::channel();
        let shared = Shared {
            messages: schedule.messages,
            received: Arc::default(),
            accepted: Arc::default(),
            ends: sender,
        };
        let nodes = (0..HOSTS).map(|index| Some(Node::start(&fabric, index, &shared)));
        Self {
            nodes: nodes.collect(),
            killed: Vec::new(),
            outages: Outages::new(schedule),
            shared,
            ends,
            fabric,
        }
    }

    /// Starts the active side of each connection. Returns the number of started ones.
    fn connect(&self, schedule: &Schedule) -> usize {
        let mut rng = schedule.rng();
        let mut started = 0;
        for connection in (0..).take(schedule.connections) {
            let from = rng.usize(..HOSTS);
            let to = (from + rng.usize(1..HOSTS)) % HOSTS;
            let peer = SocketAddr::from(([10, 9, 0, u8::try_from(to).unwrap_or(0) + 1], PORT));
            let shared = self.shared.clone();
            if let Some(node) = &self.nodes[from] {
                node.host
                    .spawn(move || shared.ends.send(shared.active(connection, peer)));
                started += 1;
            }
        }
        started
    }

    fn change(&mut self, change: Change) {
        let host = |at: usize| self.nodes[at].as_ref().map(|node| &node.host);
        match change.apply(&self.fabric, host) {
            Some(Restart::Kill(at)) => {
                if let Some(node) = self.nodes[at].take() {
                    self.fabric.kill(&node.host);
                    self.killed.push(node);
                }
            }
            Some(Restart::Start(at)) if self.nodes[at].is_none() => {
                self.nodes[at] = Some(Node::start(&self.fabric, at, &self.shared));
            }
            _ => {}
        }
    }

    /// Waits for the ends of all streams, and changes outages meanwhile.
    fn ends(&mut self, started: usize) -> Result<Vec<End>, Violation> {
        let mut ends = Vec::new();
        let mut last = Instant::now();
        while ends.len() < started + self.shared.accepted.load(Relaxed) {
            let now = self.fabric.now();
            for change in self
                .outages
                .due_changes(self.shared.received.load(Relaxed), now)
            {
                self.change(change);
            }
            match self.ends.recv_timeout(TICK) {
                Ok(end) => {
                    ends.push(end);
                    last = Instant::now();
                }
                Err(_) if last.elapsed() > HANG => {
                    let books = self.fabric.books();
                    return Err(format!(
                        "a hang: {} of {started} active and {} passive sides ended: {ends:?}; objects: {books}",
                        ends.len(),
                        self.shared.accepted.load(Relaxed),
                    ));
                }
                Err(_) => {}
            }
        }
        Ok(ends)
    }

    /// Kills the hosts, and waits until no object is left.
    fn close(mut self) -> Result<(), Violation> {
        self.killed.extend(self.nodes.drain(..).flatten());
        for node in &self.killed {
            self.fabric.kill(&node.host);
        }
        let is_open = |books: &Books| books.to_string().contains("protection domain");
        wait_for_books(&self.fabric, |books| !is_open(books))?;
        for node in self.killed.drain(..) {
            node.listener.shutdown();
        }
        wait_for_books(&self.fabric, Books::is_empty)
    }
}

/// Waits for the engine's thread to destroy objects.
fn wait_for_books(fabric: &Fabric, is_met: impl Fn(&Books) -> bool) -> Result<(), Violation> {
    let since = Instant::now();
    while !is_met(&fabric.books()) {
        if since.elapsed() > HANG {
            return Err(format!("objects are left: {}", fabric.books()));
        }
        thread::sleep(TICK);
    }
    Ok(())
}

pub(crate) fn run(schedule: &Schedule) -> Result<Tally, Violation> {
    let is_final = |result: &Result<Tally, Violation>| match result {
        Err(violation) => !violation.starts_with(ERROR),
        Ok(_) => true,
    };
    let mut runs = (1..RUNS).map(|_| run_once(schedule));
    runs.find(is_final).unwrap_or_else(|| run_once(schedule))
}

fn run_once(schedule: &Schedule) -> Result<Tally, Violation> {
    let mut world = World::new(schedule);
    let started = world.connect(schedule);
    let ends = world.ends(started)?;
    for end in &ends {
        end.check(schedule)?;
    }
    let failed = ends
        .iter()
        .filter(|end| end.read.is_err() || end.sent.is_err());
    let mut tally = Tally {
        schedules: 1,
        outages: world.outages.begun,
        failed_connections: failed.filter(|end| end.side == 0).count() as u64,
        messages: world.shared.received.load(Relaxed) as u64,
        ..Tally::default()
    };
    tally.count(world.fabric.traffic());
    world.close()?;
    Ok(tally)
}
