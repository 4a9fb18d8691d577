//! The move of many streams at once, with random delays, deaths and decisions of programs: no stream reaches another
//! stream's end, both ends agree, and no wait is without an end.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use super::{
    frame::{Ends, Frame, Head, Kind, Proof, Secret},
    offers::Offers,
    rules::{CONFIRM_LIMIT, Clock, MovePhase, Need, Verdict, accepting, connecting},
};

/// Time to send in ticks of the simulation.
const SEND_TICKS: u32 = 20;
const CONFIRM_TICKS: u32 = 200;

/// Limit of ticks in which each stream must come to an end.
const LIMIT: u32 = 20_000;

/// A generator of small random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u16) -> u16 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let [high, low, ..] = self.0.to_be_bytes();
        u16::from_be_bytes([high, low]) % limit
    }
}

/// Content of a TCP connection: a frame, or data of the stream with this number.
#[derive(Clone, Copy, Debug)]
enum Item {
    Frame(Frame),
    Data(usize),
    End,
}

/// One direction of a TCP connection: items under way, and items that have arrived.
#[derive(Default)]
struct Pipe {
    under_way: VecDeque<Item>,
    arrived: VecDeque<Item>,
}

impl Pipe {
    fn head(&self) -> Head {
        match self.arrived.front() {
            None => Head::Nothing,
            Some(Item::Frame(frame)) => Head::Frame(*frame),
            Some(_) => Head::Other,
        }
    }
}

/// Where an end of a stream sends its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Moving,
    Tcp,
    /// By the RDMA stream of this number.
    Rdma(usize),
    Reset,
    Dead,
}

struct Client {
    phase: MovePhase,
    since: u32,
    port: u16,
    /// Number of the RDMA stream.
    rdma: Option<usize>,
    way: Way,
    /// Whether a late offer may be the first that arrives.
    skips: bool,
    /// When the program begins to send.
    sends_at: u32,
}

struct Server {
    /// The worker process, and so the port.
    worker: u16,
    accepts_at: u32,
    secret: Secret,
    offered_at: Option<u32>,
    way: Way,
    speaks_first: bool,
}

struct SimulatedStream {
    client: Client,
    server: Server,
    to_server: Pipe,
    to_client: Pipe,
    ends: Ends,
    dies_at: Option<u32>,
    at_server: Vec<usize>,
    at_client: Vec<usize>,
    client_sent: bool,
    server_sent: bool,
}

/// An RDMA stream under way to a worker's acceptor.
struct Arrival {
    at: u32,
    worker: u16,
    proof: Proof,
    rdma: usize,
}

struct World {
    random: Random,
    streams: Vec<SimulatedStream>,
    /// Offers of each worker, with the number of the TCP connection.
    offers: Vec<Offers<usize, usize>>,
    arrivals: Vec<Arrival>,
    /// Data of each RDMA stream: to the accepting and to the connecting side.
    rdma: Vec<[VecDeque<usize>; 2]>,
    now: u32,
}

fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new([10, 9, 0, host].into(), port)
}

fn ticks(ticks: u32) -> Duration {
    // The limit of a confirmation has as many ticks as the simulation gives it.
    CONFIRM_LIMIT * ticks / CONFIRM_TICKS
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let workers = 1 + random.below(4);
        let count = 2 + random.below(7);
        let streams = (0..count)
            .map(|number| {
                let mut chance = |one_in| random.below(one_in) == 0;
                let (speaks_first, dies) = (chance(4), chance(6));
                SimulatedStream {
                    client: Client {
                        phase: MovePhase::Awaiting,
                        since: 0,
                        port: 0,
                        rdma: None,
                        way: Way::Moving,
                        skips: false,
                        sends_at: random.below(60).into(),
                    },
                    server: Server {
                        worker: random.below(workers),
                        accepts_at: random.below(80).into(),
                        secret: [number.to_be_bytes()[1] + 1; 16],
                        offered_at: None,
                        way: Way::Moving,
                        speaks_first,
                    },
                    to_server: Pipe::default(),
                    to_client: Pipe::default(),
                    // All clients are of one host.
                    ends: Ends {
                        accepting: address(1, 80),
                        connecting: address(2, 40_000 + number),
                    },
                    dies_at: dies.then(|| random.below(120).into()),
                    at_server: Vec::new(),
                    at_client: Vec::new(),
                    client_sent: false,
                    server_sent: false,
                }
            })
            .collect();
        Self {
            random,
            streams,
            offers: (0..workers).map(|_| Offers::default()).collect(),
            arrivals: Vec::new(),
            rdma: Vec::new(),
            now: 0,
        }
    }

    /// Lets some items under way arrive, in order.
    fn deliver(&mut self) {
        for stream in &mut self.streams {
            for pipe in [&mut stream.to_server, &mut stream.to_client] {
                if self.random.below(3) == 0
                    && let Some(item) = pipe.under_way.pop_front()
                {
                    pipe.arrived.push_back(item);
                }
            }
        }
        let now = self.now;
        let (expired, later) = std::mem::take(&mut self.arrivals)
            .into_iter()
            .partition(|arrival| arrival.at <= now);
        self.arrivals = later;
        for Arrival {
            worker,
            proof,
            rdma,
            ..
        } in expired
        {
            if let Ok(&number) = self.offers[usize::from(worker)].prove(&proof, rdma) {
                let (kind, secret) = (Kind::Confirm, proof.secret);
                let confirm = Item::Frame(Frame { kind, secret });
                self.streams[number].to_client.under_way.push_back(confirm);
            }
        }
    }

    fn act(&mut self, number: usize) {
        if self.streams[number].dies_at == Some(self.now) {
            self.kill_client(number);
        }
        match self.random.below(2) {
            0 => self.client(number),
            _ => self.server(number),
        }
    }

    fn kill_client(&mut self, number: usize) {
        let stream = &mut self.streams[number];
        stream.client.way = Way::Dead;
        stream.client.phase = MovePhase::Failed;
        stream.to_server.under_way.push_back(Item::End);
    }

    fn client(&mut self, number: usize) {
        let now = self.now;
        let stream = &mut self.streams[number];
        let client = &mut stream.client;
        if client.way != Way::Moving {
            return self.client_data(number);
        }
        if client.phase == MovePhase::Joining {
            self.join(number);
        } else if self.random.below(200) == 0 {
            // The thread could not be started, or has panicked.
            client.phase = client.phase.without_thread();
        }
        let stream = &mut self.streams[number];
        let client = &mut stream.client;
        let need = match now >= client.sends_at {
            true => Need::Send,
            false => Need::Receive,
        };
        let clock = Clock {
            age: ticks(now - client.since),
            send_limit: ticks(SEND_TICKS),
        };
        let head = stream.to_client.head();
        match connecting(client.phase, head, need, clock) {
            Verdict::Wait => {}
            Verdict::Join { port, secret } => {
                assert_eq!(secret, stream.server.secret);
                stream.to_client.arrived.pop_front();
                client.phase = MovePhase::Joining;
                client.port = port;
                client.since = now;
            }
            Verdict::Rdma => {
                stream.to_client.arrived.pop_front();
                client.way = Way::Rdma(client.rdma.unwrap());
                let (kind, secret) = (Kind::Go, stream.server.secret);
                let go = Item::Frame(Frame { kind, secret });
                stream.to_server.under_way.push_back(go);
            }
            Verdict::Tcp { skips } => {
                client.skips = skips;
                client.phase = MovePhase::Failed;
                client.way = Way::Tcp;
            }
            Verdict::Reset => {
                client.phase = MovePhase::Failed;
                client.way = Way::Reset;
                stream.to_server.under_way.push_back(Item::End);
            }
        }
    }

    /// The work of the thread of a joining stream.
    fn join(&mut self, number: usize) {
        let stream = &mut self.streams[number];
        let client = &mut stream.client;
        match self.random.below(12) {
            0 => client.phase = MovePhase::Failed,
            1..4 => {
                let rdma = self.rdma.len();
                self.rdma.push(Default::default());
                client.rdma = Some(rdma);
                let secret = stream.server.secret;
                client.phase = MovePhase::Proved { secret };
                client.since = self.now;
                // A proof that is lost is never confirmed.
                if self.random.below(20) > 0 {
                    let ends = stream.ends;
                    self.arrivals.push(Arrival {
                        at: self.now + 1 + u32::from(self.random.below(40)),
                        worker: client.port,
                        proof: Proof { secret, ends },
                        rdma,
                    });
                }
            }
            _ => {}
        }
    }

    /// Data that the program of a client sends and receives.
    fn client_data(&mut self, number: usize) {
        let stream = &mut self.streams[number];
        let client = &mut stream.client;
        let sends = self.now >= client.sends_at && !stream.client_sent;
        match client.way {
            Way::Tcp => {
                if let Head::Frame(frame) = stream.to_client.head() {
                    assert!(client.skips, "a frame reaches the program: {frame:?}");
                    assert!(matches!(frame.kind, Kind::Offer { .. }));
                    client.skips = false;
                    stream.to_client.arrived.pop_front();
                } else if let Some(Item::Data(from)) = stream.to_client.arrived.pop_front() {
                    client.skips = false;
                    stream.at_client.push(from);
                }
                if sends {
                    stream.client_sent = true;
                    stream.to_server.under_way.push_back(Item::Data(number));
                }
            }
            Way::Rdma(rdma) => {
                if sends {
                    stream.client_sent = true;
                    self.rdma[rdma][0].push_back(number);
                }
                if let Some(from) = self.rdma[rdma][1].pop_front() {
                    stream.at_client.push(from);
                }
            }
            Way::Moving | Way::Reset | Way::Dead => {}
        }
    }

    fn server(&mut self, number: usize) {
        let now = self.now;
        let stream = &mut self.streams[number];
        let server = &mut stream.server;
        if now < server.accepts_at {
            return;
        }
        if server.way != Way::Moving {
            return self.server_data(number);
        }
        let Some(since) = server.offered_at else {
            if stream.to_server.head() != Head::Nothing {
                server.way = Way::Tcp;
                return;
            }
            server.offered_at = Some(now);
            let secret = server.secret;
            self.offers[usize::from(server.worker)].make(secret, stream.ends, number);
            let port = server.worker;
            let kind = Kind::Offer { port };
            let offer = Item::Frame(Frame { kind, secret });
            stream.to_client.under_way.push_back(offer);
            return;
        };
        let offers = &mut self.offers[usize::from(server.worker)];
        let need = match server.speaks_first {
            true => Need::Send,
            false => Need::Receive,
        };
        let clock = Clock {
            age: ticks(now - since),
            send_limit: ticks(SEND_TICKS),
        };
        let is_confirmed = offers.is_confirmed(&server.secret);
        match accepting(is_confirmed, stream.to_server.head(), need, clock) {
            Verdict::Wait => {}
            Verdict::Rdma => server.way = Way::Rdma(offers.take(&server.secret).unwrap()),
            _ => {
                assert_eq!(offers.take(&server.secret), None);
                server.way = Way::Tcp;
            }
        }
    }

    /// Data that the program of a server sends and receives: an answer, or a greeting.
    fn server_data(&mut self, number: usize) {
        let stream = &mut self.streams[number];
        let answers = stream.server.speaks_first || !stream.at_server.is_empty();
        let sends = answers && !stream.server_sent;
        match stream.server.way {
            Way::Tcp => {
                match stream.to_server.arrived.pop_front() {
                    Some(Item::Data(from)) => stream.at_server.push(from),
                    Some(Item::Frame(frame)) => panic!("a frame reaches the program: {frame:?}"),
                    Some(Item::End) | None => {}
                }
                if sends {
                    stream.server_sent = true;
                    stream.to_client.under_way.push_back(Item::Data(number));
                }
            }
            Way::Rdma(rdma) => {
                if let Some(from) = self.rdma[rdma][0].pop_front() {
                    stream.at_server.push(from);
                }
                if sends {
                    stream.server_sent = true;
                    self.rdma[rdma][1].push_back(number);
                }
            }
            Way::Moving | Way::Reset | Way::Dead => {}
        }
    }

    /// Checks that nothing has been crossed. Returns the number of streams that have not come to an end.
    fn check(&self) -> usize {
        let is_open = |(number, stream): (usize, &SimulatedStream)| {
            let foreign = |from: &usize| *from != number;
            assert!(!stream.at_server.iter().any(foreign), "crossed");
            assert!(!stream.at_client.iter().any(foreign), "crossed");
            if let (Way::Rdma(one), Way::Rdma(other)) = (stream.client.way, stream.server.way) {
                assert_eq!(one, other);
            }
            match stream.client.way {
                Way::Dead | Way::Reset => false,
                _ => stream.at_server.is_empty() || stream.at_client.is_empty(),
            }
        };
        self.streams
            .iter()
            .enumerate()
            .filter(|one| is_open(*one))
            .count()
    }
}

/// How often each end was seen: by RDMA, by TCP, reset.
fn run(seed: u64, ends: &mut BTreeMap<&'static str, u32>) {
    let mut world = World::new(seed);
    while world.check() > 0 {
        assert!(world.now < LIMIT, "a wait without an end, seed {seed}");
        world.deliver();
        for number in 0..world.streams.len() {
            world.act(number);
        }
        world.now += 1;
    }
    for stream in &world.streams {
        let end = match (stream.client.way, stream.server.way) {
            (Way::Rdma(_), _) => "RDMA",
            (Way::Tcp, _) => "TCP",
            (Way::Reset, _) => "reset",
            _ => "dead",
        };
        *ends.entry(end).or_default() += 1;
    }
}

#[test]
fn random_moves_cross_no_stream_and_each_wait_ends() {
    let mut ends = BTreeMap::new();
    for seed in 0..3000 {
        run(seed, &mut ends);
    }
    for end in ["RDMA", "TCP", "reset", "dead"] {
        assert!(
            ends.get(end).is_some_and(|count| *count > 20),
            "{end}: {ends:?}"
        );
    }
}

#[test]
fn stream_of_another_connection_of_the_same_host_is_refused() {
    let ends = |port| Ends {
        accepting: address(1, 80),
        connecting: address(2, port),
    };
    let mut offers = Offers::default();
    offers.make([1; 16], ends(40_000), "first");
    let proof = |secret, port| Proof {
        secret,
        ends: ends(port),
    };
    assert_eq!(offers.prove(&proof([2; 16], 40_000), 5), Err(5));
    assert_eq!(offers.prove(&proof([1; 16], 40_001), 6), Err(6));
    assert!(!offers.is_confirmed(&[1; 16]));
    assert_eq!(offers.prove(&proof([1; 16], 40_000), 7), Ok(&"first"));
    assert_eq!(offers.prove(&proof([1; 16], 40_000), 8), Err(8));
    assert_eq!(offers.take(&[1; 16]), Some(7));
    // Withdrawn: a later stream is refused.
    offers.make([3; 16], ends(40_002), "second");
    assert_eq!(offers.take(&[3; 16]), None);
    assert_eq!(offers.prove(&proof([3; 16], 40_002), 9), Err(9));
}
