//! Datagrams between three hosts, over a wire with loss and reordering, with restarting hosts and hostile
//! unknown hosts.

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use fastrand::Rng;
use rsocket_proto::datagram::{Exchange, Node, Operation, Origin, Route, canonical};

/// Kind of fault injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Reordering only.
    None,
    /// Also loss of messages, and restarts of hosts.
    Loss,
    /// Also forged messages with arbitrary senders.
    Hostile,
}

const HOSTS: usize = 3;
const SEND_DEPTH: u16 = 4;
const RECV_DEPTH: u16 = 8;
/// Size in bytes of the global route header.
const GRH: usize = 40;

#[derive(Debug)]
enum Packet {
    Udp {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    /// To a queue pair on any host.
    Direct { to: u32, bytes: Vec<u8> },
    /// A resolved route for a host.
    PathResolved { host: usize, peer: SocketAddr },
    /// Completion of a host's send.
    Sent { host: usize, life: u32 },
}

struct Host {
    addr: SocketAddr,
    qp_num: u32,
    life: u32,
    node: Node<u32, SocketAddr, Vec<u8>>,
}

impl Host {
    fn start(addr: SocketAddr, life: u32) -> Self {
        Self {
            addr,
            qp_num: 0x100 + life * 16 + u32::from(addr.port()),
            life,
            node: Node::new(SEND_DEPTH, RECV_DEPTH),
        }
    }
}

pub(crate) struct Run {
    rng: Rng,
    trouble: Trouble,
    hosts: Vec<Host>,
    wire: Vec<Packet>,
    now: Duration,
    /// Sender and receiver of each datagram in flight.
    sent: BTreeMap<u64, (usize, usize)>,
    arrived: HashSet<u64>,
    direct: u64,
    next: u64,
}

fn addr(family: u8, host: usize) -> SocketAddr {
    let number = u8::try_from(host).unwrap();
    let ip: IpAddr = match family {
        4 => [10, 9, 0, number].into(),
        _ => [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into(),
    };
    (ip, 1 + u16::from(number)).into()
}

impl Run {
    pub(crate) fn new(seed: u64, trouble: Trouble) -> Self {
        let mut rng = Rng::with_seed(seed);
        let family = if rng.bool() { 4 } else { 6 };
        let hosts = (0..HOSTS).map(|host| Host::start(addr(family, host), 0));
        Self {
            hosts: hosts.collect(),
            rng,
            trouble,
            wire: Vec::new(),
            now: Duration::ZERO,
            sent: BTreeMap::new(),
            arrived: HashSet::new(),
            direct: 0,
            next: 0,
        }
    }

    pub(crate) fn run(mut self) {
        for _ in 0..400 {
            self.now += Duration::from_millis(self.rng.u64(0..30));
            match self.rng.u32(0..100) {
                0..30 => self.send(),
                30..90 => self.deliver(),
                90..92 if self.trouble != Trouble::None => self.restart(),
                92..96 if self.trouble != Trouble::None => self.lose(),
                96..100 if self.trouble == Trouble::Hostile => self.forge(),
                _ => {}
            }
        }
        self.run_until_idle();
        if self.trouble == Trouble::None {
            // No queue was ever full.
            assert!(self.sent.is_empty(), "lost: {:?}", self.sent);
            return;
        }
        // After any history, two communicating hosts resolve their routes again.
        for (from, to) in [(0, 1), (1, 0), (2, 0), (0, 2)] {
            self.recovers(from, to);
        }
    }

    /// Sends a numbered datagram between two random hosts.
    fn send(&mut self) {
        let from = self.rng.usize(0..HOSTS);
        let to = (from + self.rng.usize(1..HOSTS)) % HOSTS;
        self.send_from(from, to);
    }

    fn send_from(&mut self, from: usize, to: usize) -> u64 {
        let number = self.next;
        self.next += 1;
        let peer = self.hosts[to].addr;
        let now = self.now;
        let host = &mut self.hosts[from];
        if host.node.local(peer).is_none() {
            host.node.add_peer(peer, host.life, now);
        }
        assert_eq!(host.node.local(peer), Some(host.life));
        let payload = number.to_be_bytes();
        match host.node.route(peer, now).unwrap() {
            Route::Exchange(local) => {
                assert_eq!(local, host.life);
                let header = Exchange {
                    operation: Operation::Data,
                    qp_num: host.qp_num,
                    addr: host.addr.ip(),
                };
                let mut bytes = header.encode().to_vec();
                bytes.extend(payload);
                self.wire.push(Packet::Udp {
                    from: host.addr,
                    to: peer,
                    bytes,
                });
            }
            Route::Direct { path, qp_num, .. } => {
                assert!(self.trouble == Trouble::Hostile || *path == peer);
                if !host.node.begin_send() {
                    return number;
                }
                let mut bytes = vec![0; GRH];
                bytes.extend(&*Origin(host.addr).encode());
                bytes.extend(payload);
                let sent = Packet::Sent {
                    host: from,
                    life: host.life,
                };
                self.wire
                    .extend([Packet::Direct { to: qp_num, bytes }, sent]);
                self.direct += 1;
            }
        }
        self.sent.insert(number, (from, to));
        number
    }

    /// Delivers a random packet.
    fn deliver(&mut self) {
        if self.wire.is_empty() {
            return;
        }
        let packet = self.wire.swap_remove(self.rng.usize(0..self.wire.len()));
        match packet {
            Packet::Udp { from, to, bytes } => self.deliver_udp(from, to, &bytes),
            Packet::Direct { to, bytes } => {
                let now = self.now;
                let host = self.hosts.iter_mut().find(|host| host.qp_num == to);
                if let Some(host) = host {
                    // A dropped datagram counts as lost.
                    drop(host.node.arrived(bytes, GRH, 0, now));
                }
            }
            Packet::PathResolved { host, peer } => {
                let path = (self.trouble == Trouble::None || self.rng.u8(0..4) > 0).then_some(peer);
                self.hosts[host].node.path_resolved(peer, path, self.now);
            }
            Packet::Sent { host, life } => {
                let host = &mut self.hosts[host];
                if host.life == life {
                    host.node.end_send();
                }
            }
        }
        self.receive();
    }

    fn deliver_udp(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let now = self.now;
        let Some(index) = self.hosts.iter().position(|host| host.addr == to) else {
            return;
        };
        let host = &mut self.hosts[index];
        if Exchange::decode(bytes, canonical(from).ip()).is_err() {
            return;
        }
        if host.node.local(from).is_none() {
            host.node.add_peer(from, host.life, now);
        }
        let outcome = host.node.udp_received(from, bytes, now).unwrap();
        if outcome.answer {
            let answer = Exchange {
                operation: Operation::Answer,
                qp_num: host.qp_num,
                addr: host.addr.ip(),
            };
            self.wire.push(Packet::Udp {
                from: host.addr,
                to: from,
                bytes: answer.encode().to_vec(),
            });
        }
        if outcome.resolve {
            self.wire.push(Packet::PathResolved {
                host: index,
                peer: canonical(from),
            });
        }
        if let Some(payload) = outcome.payload {
            drop(host.node.arrived_by_udp(from, payload.to_vec()));
        }
    }

    /// Receives on all hosts, and checks that each datagram arrives at most once and unchanged.
    fn receive(&mut self) {
        let addrs: Vec<_> = self.hosts.iter().map(|host| host.addr).collect();
        for (index, host) in self.hosts.iter_mut().enumerate() {
            while let Some(got) = host.node.take() {
                let bytes = &got.message[got.range.clone()];
                let Ok(number) = bytes.try_into().map(u64::from_be_bytes) else {
                    assert_eq!(self.trouble, Trouble::Hostile);
                    continue;
                };
                if self.trouble == Trouble::Hostile && number >= self.next {
                    continue;
                }
                let sent = self.sent.remove(&number);
                assert_eq!(sent.map(|(_, to)| to), Some(index), "{number}");
                assert_eq!(sent.map(|(from, _)| addrs[from]), Some(got.source));
                assert!(self.arrived.insert(number));
            }
        }
    }

    fn run_until_idle(&mut self) {
        while !self.wire.is_empty() {
            self.deliver();
        }
        for host in &self.hosts {
            assert!(host.node.is_flushed());
        }
    }

    /// A restarted host has no state and another queue pair.
    fn restart(&mut self) {
        let index = self.rng.usize(0..HOSTS);
        let life = self.hosts[index].life + 1;
        self.hosts[index] = Host::start(self.hosts[index].addr, life);
        self.wire.retain(
            |packet| !matches!(packet, Packet::PathResolved { host, .. } if *host == index),
        );
    }

    fn lose(&mut self) {
        let lossy = |packet: &Packet| matches!(packet, Packet::Udp { .. } | Packet::Direct { .. });
        if let Some(at) = self.wire.iter().position(lossy) {
            self.wire.swap_remove(at);
        }
    }

    /// An unknown host sends an almost valid message to a socket or a queue pair.
    fn forge(&mut self) {
        let host = self.rng.usize(0..HOSTS);
        let from = match self.rng.usize(0..HOSTS + 1) {
            HOSTS => ([10, 9, 1, self.rng.u8(..)], 9).into(),
            other => self.hosts[other].addr,
        };
        let header = Exchange {
            operation: if self.rng.bool() {
                Operation::Data
            } else {
                Operation::Answer
            },
            qp_num: self.rng.u32(..),
            addr: from.ip(),
        };
        let mut bytes = if self.rng.bool() {
            header.encode().to_vec()
        } else {
            Origin(from).encode().to_vec()
        };
        // A number never sent.
        bytes.extend(u64::MAX.to_be_bytes());
        for _ in 0..self.rng.usize(0..3) {
            let at = self.rng.usize(0..bytes.len());
            bytes[at] = self.rng.u8(..);
        }
        bytes.truncate(self.rng.usize(0..=bytes.len()));
        if self.rng.bool() {
            let to = self.hosts[host].addr;
            self.wire.push(Packet::Udp { from, to, bytes });
        } else {
            let to = self.hosts[host].qp_num;
            let mut packet = vec![0; GRH];
            packet.extend(bytes);
            self.wire.push(Packet::Direct { to, bytes: packet });
        }
    }

    /// Sends one datagram per second; after a few losses at most, datagrams travel between the queue pairs.
    fn recovers(&mut self, from: usize, to: usize) {
        let before = self.direct;
        let found = (0..100).any(|_| {
            // Below the age at which the peer would be asked again.
            self.now += Duration::from_millis(900);
            let number = self.send_from(from, to);
            self.run_until_idle();
            let answer = self.send_from(to, from);
            self.run_until_idle();
            let both = self.arrived.contains(&number) && self.arrived.contains(&answer);
            both && self.direct > before + 1
        });
        assert!(found, "{from} and {to} do not find each other");
    }
}
