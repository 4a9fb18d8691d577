//! Two connection managers, and the wire between them.

use std::{net::SocketAddr, time::Duration};

use fastrand::Rng;
use softnic::{
    cm::{
        CmEvent, ConnParam, IdNum, MAD_LEN, Manager, Message, Occurrence, PortSpace, PrivateData,
        Reach,
    },
    engine::Path,
};

/// Addresses of the two hosts.
pub(crate) const ADDRS: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];

/// Port of the listener.
pub(crate) const PORT: u16 = 7471;

/// A message in flight: arrival time, serial number, receiver, path, and bytes.
type InFlight = (Duration, u64, usize, Path, [u8; MAD_LEN]);

/// Two connection managers, the passive one second, and the wire between them.
pub(crate) struct Wire {
    pub(crate) managers: [Manager; 2],
    pub(crate) rng: Rng,
    /// Probabilities of loss and of duplication of a message.
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    /// Maximum delay of a message.
    pub(crate) delay: Duration,
    pub(crate) now: Duration,
    pub(crate) events: [Vec<CmEvent>; 2],
    /// Messages in the order of sending, with their senders.
    pub(crate) sent: Vec<(usize, Message)>,
    in_flight: Vec<InFlight>,
    serial: u64,
    /// Numbers of the next queue pairs of both hosts.
    next_qps: [u32; 2],
}

impl Wire {
    pub(crate) fn new() -> Self {
        let managers = [0, 1].map(|host: usize| {
            let (guid, seed) = [(0x0200_00ff_fe00_0001, 1), (0x0200_00ff_fe00_0002, 2)][host];
            Manager::new([ADDRS[host].into()], guid, seed)
        });
        Self {
            managers,
            rng: Rng::with_seed(1),
            loss: 0.0,
            duplication: 0.0,
            delay: Duration::ZERO,
            now: Duration::from_secs(1),
            events: [Vec::new(), Vec::new()],
            sent: Vec::new(),
            in_flight: Vec::new(),
            serial: 0,
            next_qps: [17, 18],
        }
    }

    /// Moves messages and events out of the managers.
    fn collect(&mut self) {
        for host in [0, 1] {
            while let Some((path, bytes)) = self.managers[host].transmit() {
                let (_, message) = Message::decode(&bytes).unwrap();
                self.sent.push((host, message));
                let copies = 1 + u32::from(self.rng.f64() < self.duplication);
                for _ in 0..copies {
                    if self.rng.f64() < self.loss {
                        continue;
                    }
                    let to = usize::from(path.dst == std::net::IpAddr::from(ADDRS[1]));
                    let delay = self.delay.mul_f64(self.rng.f64());
                    self.serial += 1;
                    let arrival = (self.now + delay, self.serial, to, path, bytes);
                    self.in_flight.push(arrival);
                }
            }
            while let Some(event) = self.managers[host].poll_event() {
                self.events[host].push(event);
            }
        }
        self.in_flight.sort_by_key(|entry| (entry.0, entry.1));
    }

    /// Time of the next arrival, and of the next arrival or timer.
    fn upcoming(&self) -> (Option<Duration>, Option<Duration>) {
        let arrival = self.in_flight.first().map(|entry| entry.0);
        let timers = self.managers.iter().filter_map(Manager::next_timeout);
        (arrival, arrival.into_iter().chain(timers).min())
    }

    /// Processes all arrivals and timers up to a time.
    pub(crate) fn run_to(&mut self, until: Duration) {
        self.collect();
        while self.upcoming().1.is_some_and(|next| next <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Processes the next arrival or timer. Returns false if none is left.
    pub(crate) fn step(&mut self) -> bool {
        self.collect();
        let (arrival, next) = self.upcoming();
        let Some(next) = next else {
            return false;
        };
        self.now = self.now.max(next);
        if arrival.is_some_and(|at| at <= self.now) {
            let (_, _, to, path, bytes) = self.in_flight.remove(0);
            self.managers[to].handle_message(path.src, path.dst, &bytes, self.now);
        } else {
            for manager in &mut self.managers {
                manager.handle_timeout(self.now);
            }
        }
        self.collect();
        true
    }

    /// Processes arrivals and timers until none is left.
    pub(crate) fn run(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 100_000, "something happens for ever");
        }
    }

    /// Processes arrivals and timers until a host has an event, and returns the event.
    pub(crate) fn next(&mut self, host: usize) -> CmEvent {
        self.collect();
        while self.events[host].is_empty() {
            assert!(self.step(), "host {host} has no event");
        }
        self.events[host].remove(0)
    }

    /// All events, with their hosts.
    pub(crate) fn take_events(&mut self) -> Vec<(usize, CmEvent)> {
        let events = std::mem::take(&mut self.events);
        let with_host = |(host, events): (usize, Vec<CmEvent>)| {
            events.into_iter().map(move |event| (host, event))
        };
        events.into_iter().enumerate().flat_map(with_host).collect()
    }

    /// A listener of the second host.
    pub(crate) fn listen(&mut self, space: PortSpace, backlog: usize) -> IdNum {
        let manager = &mut self.managers[1];
        let id = manager.create_id(space);
        let addr = SocketAddr::from((ADDRS[1], PORT));
        manager.bind(id, addr).unwrap();
        manager.listen(id, backlog).unwrap();
        id
    }

    /// An identifier of the first host with a resolved route to the listener.
    pub(crate) fn resolved(&mut self, space: PortSpace) -> IdNum {
        let peer = SocketAddr::from((ADDRS[1], PORT));
        let manager = &mut self.managers[0];
        let id = manager.create_id(space);
        manager
            .resolve_addr(id, (None, peer), Reach::Known, Duration::ZERO, self.now)
            .unwrap();
        manager.resolve_route(id).unwrap();
        assert_eq!(self.next(0).what, Occurrence::AddrResolved);
        assert_eq!(self.next(0).what, Occurrence::RouteResolved);
        id
    }

    /// An identifier of the first host with a connection request in flight.
    pub(crate) fn asking(&mut self) -> IdNum {
        let id = self.resolved(PortSpace::Tcp);
        let (now, param) = (self.now, self.next_param(0));
        self.managers[0].connect(id, param, b"hello", now).unwrap();
        id
    }

    /// Parameters of a new queue pair of a host: even numbers are of the second host.
    fn next_param(&mut self, host: usize) -> ConnParam {
        let qp_num = self.next_qps[host];
        self.next_qps[host] += 2;
        param(qp_num)
    }

    /// The next request at the listener, handed over: the new identifier, and the peer's parameters and private data.
    pub(crate) fn request(&mut self) -> (IdNum, ConnParam, PrivateData) {
        match self.next(1).what {
            Occurrence::ConnectRequest {
                child,
                param,
                private_data,
                ..
            } => {
                assert!(self.managers[1].take_request(child));
                (child, param, private_data)
            }
            other => unreachable!("{other:?}"),
        }
    }

    pub(crate) fn accept(&mut self, id: IdNum) {
        let (now, param) = (self.now, self.next_param(1));
        self.managers[1].accept(id, param, b"welcome", now).unwrap();
    }

    /// A connection: the active end and the passive one.
    pub(crate) fn connected(&mut self) -> (IdNum, IdNum) {
        self.listen(PortSpace::Tcp, 8);
        let active = self.asking();
        let (passive, ..) = self.request();
        self.accept(passive);
        let response = self.next(0).what;
        assert!(matches!(response, Occurrence::ConnectResponse { .. }));
        self.managers[0].establish(active).unwrap();
        assert_eq!(self.next(1).what, Occurrence::Established);
        (active, passive)
    }

    pub(crate) fn disconnect(&mut self, host: usize, id: IdNum) {
        let now = self.now;
        self.managers[host].disconnect(id, now).unwrap();
    }

    pub(crate) fn destroy(&mut self, host: usize, id: IdNum) {
        let now = self.now;
        self.managers[host].destroy_id(id, now);
    }

    /// Number of messages of a host that match `is_wanted`.
    pub(crate) fn count(&self, host: usize, is_wanted: impl Fn(&Message) -> bool) -> usize {
        let of_host = self.sent.iter().filter(|(from, _)| *from == host);
        of_host.filter(|(_, message)| is_wanted(message)).count()
    }
}

/// Parameters of a queue pair.
pub(crate) fn param(qp_num: u32) -> ConnParam {
    ConnParam {
        qp_num,
        responder_resources: 4,
        initiator_depth: 8,
        flow_control: false,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: false,
    }
}
