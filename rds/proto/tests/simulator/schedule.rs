//! Random schedules of a simulation.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    net::{IpAddr, SocketAddr},
    num::NonZero,
    time::Duration,
};

use fastrand::Rng;
use rds_proto::{
    SocketId,
    connection::{Direction, Draft, Rdma, Report, Status},
    node::{Dispatched, Event, Node, Settings, SocketError},
    wire::{Flags, Header},
};

use crate::{
    flow::{Flows, pattern},
    host::{Done, Host, State},
    wire::Wire,
};

/// Kind of disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// Connections are lost.
    Loss,
    /// Connections are lost, messages cancelled, and sockets closed.
    Cancel,
    /// A host violates the protocol.
    Hostile,
}

const IPS: [[u8; 4]; 2] = [[10, 9, 0, 1], [10, 9, 0, 2]];
const RECV_LIMIT: u32 = 20_000;

#[derive(Debug)]
pub(crate) struct Run {
    rng: Rng,
    trouble: Trouble,
    wire: Wire,
    /// Sockets of each host by port.
    sockets: [BTreeMap<u16, SocketId>; 2],
    to_send: [usize; 2],
    flows: Flows,
    /// Operations of each host with owner and number of notifications.
    operations: [HashMap<u64, (SocketId, usize)>; 2],
}

impl Run {
    pub(crate) fn new(seed: u64, trouble: Trouble) -> Self {
        let mut rng = Rng::with_seed(seed);
        let ips = IPS.map(IpAddr::from);
        let mut sockets = [BTreeMap::new(), BTreeMap::new()];
        let hosts = [0, 1].map(|i| {
            let first = NonZero::new(rng.u64(1..1 << 40)).unwrap();
            let mut settings = Settings::new(first, rng.u64(..));
            // If the last message is cancelled, earlier ones may be without an acknowledgement
            // request.
            if rng.bool() && trouble != Trouble::Cancel {
                settings.connection.ack_after = None;
            }
            settings.connection.keepalive = Some(Duration::from_millis(rng.u64(20..2000)));
            settings.connection.max_unsignaled = rng.u32(1..20);
            let mut node = Node::new(settings);
            for _ in 0..rng.u8(1..4) {
                let id = node.socket();
                let any = SocketAddr::new(ips[i], 0);
                let bound = node.bind(id, any).unwrap();
                if rng.u8(0..4) == 0 {
                    node.set_tos(id, 3).unwrap();
                }
                node.set_limits(id, rng.u32(30_000..200_000), RECV_LIMIT)
                    .unwrap();
                node.set_watch(id, rng.bool()).unwrap();
                sockets[i].insert(bound.port(), id);
            }
            let depth = rng.u32(4..40);
            Host::new(node, ips[i], ips[1 - i], depth)
        });
        let to_send = [(); 2].map(|()| rng.usize(0..120));
        Self {
            rng,
            trouble,
            wire: Wire::new(hosts),
            sockets,
            to_send,
            flows: Flows::default(),
            operations: [HashMap::new(), HashMap::new()],
        }
    }

    pub(crate) fn run(mut self) {
        if self.trouble == Trouble::Hostile {
            for _ in 0..5000 {
                self.step();
                self.lie();
                self.check_bounds();
            }
            return;
        }
        let calm_after = self.rng.usize(2000..8000);
        let mut step = 0;
        while !self.is_over() {
            step += 1;
            assert!(step < 400_000, "nothing goes on any more: {}", self.state());
            if step < calm_after {
                self.make_trouble();
            } else {
                self.wire.is_cut = false;
            }
            self.step();
        }
        self.check_end();
    }

    /// The remaining work, for failure messages.
    fn state(&self) -> String {
        let hosts = self.wire.hosts.iter().zip(&self.sockets);
        let hosts: Vec<String> = hosts
            .map(|(host, sockets)| {
                let waiting = |&id: &SocketId| host.node.waiting(id);
                let waiting: Vec<_> = sockets.values().map(waiting).collect();
                let pairs = host.pairs.iter().filter(|pair| pair.state != State::Gone);
                let pairs: Vec<_> = pairs.map(|pair| (pair.state, pair.queue.len())).collect();
                let queued: Vec<_> = host.payloads.keys().collect();
                format!("waiting {waiting:?}, queue pairs {pairs:?}, held {queued:?}")
            })
            .collect();
        let untold = self
            .operations
            .iter()
            .flatten()
            .filter(|(_, (_, notifications))| *notifications != 1);
        format!(
            "{hosts:#?} {:?} {:?}",
            self.to_send,
            untold.collect::<Vec<_>>()
        )
    }

    fn step(&mut self) {
        let i = self.rng.usize(0..2);
        self.wire.now += Duration::from_micros(self.rng.u64(0..400));
        match self.rng.u8(0..12) {
            0 => self.send(i),
            1 | 2 => self.receive(i),
            3 => drop(self.wire.deliver_packet(i)),
            4 if self.rng.u8(0..8) == 0 => {
                self.wire.now += Duration::from_millis(self.rng.u64(0..200));
            }
            4..=6 => drop(self.on_pair(i, Wire::deliver)),
            7 | 8 => drop(self.on_pair(i, Wire::acknowledge)),
            9 | 10 => {
                let count = self.rng.usize(1..8);
                self.on_pair(i, |wire, i, index| {
                    wire.hosts[i].poll(wire.now, index, count);
                });
            }
            _ => self.wire.pump(i),
        }
    }

    /// Applies `act` to a random queue pair of a host.
    fn on_pair<T>(
        &mut self,
        i: usize,
        act: impl FnOnce(&mut Wire, usize, usize) -> T,
    ) -> Option<T> {
        let pairs = self.wire.hosts[i].pairs.iter().zip(0..);
        let live = pairs.filter(|(pair, _)| pair.state != State::Gone);
        let live: Vec<usize> = live.map(|(_, index)| index).collect();
        let &index = self.rng.choice(&live)?;
        Some(act(&mut self.wire, i, index))
    }

    fn send(&mut self, i: usize) {
        if self.to_send[i] == 0 || self.sockets[i].is_empty() {
            return;
        }
        let (&port, &id) = self.rng.choice(self.sockets[i].iter()).unwrap();
        let ports: Vec<u16> = self.sockets[1 - i].keys().copied().collect();
        let Some(&to) = self.rng.choice(&ports) else {
            return;
        };
        let len = match self.rng.u8(0..8) {
            0 => 0,
            1 => *self.rng.choice(&[4095, 4096, 4097, 8192]).unwrap(),
            2 => self.rng.u32(4..30_000),
            _ => self.rng.u32(4..2000),
        };
        // A message with an operation may be lost with its connection.
        let with_operation = self.rng.u8(0..10) == 0;
        let silent = with_operation && self.rng.bool();
        // Messages that may be lost are identified by number.
        let numbered = self.trouble == Trouble::Cancel || with_operation;
        let len = match len {
            _ if silent => 0,
            len if numbered => len.max(4),
            len => len,
        };
        let number = self.flows.next();
        let host = &mut self.wire.hosts[i];
        let (from, to) = (host.addr(port), SocketAddr::new(host.peer_ip, to));
        let mut draft = Draft::new(len, number.into());
        draft.silent = silent;
        draft.urgent = self.rng.bool();
        if with_operation {
            draft.rdma = Some(Box::new(operation(&mut self.rng, number)));
        }
        match host.node.send(id, Some(to), draft) {
            Ok(Dispatched::Queued(..)) => {
                host.payloads.insert(number.into(), pattern(number, len));
                self.to_send[i] -= 1;
                if with_operation {
                    self.operations[i].insert(number.into(), (id, 0));
                }
                if !silent {
                    self.flows.sent(from, to, number, len, !with_operation);
                }
            }
            Ok(other) => unreachable!("{other:?}"),
            Err(refused) => {
                let wait = matches!(refused.error, SocketError::Full | SocketError::Congested(_));
                assert!(wait, "{refused:?}");
            }
        }
    }

    fn receive(&mut self, i: usize) {
        let Some((&port, &id)) = self.rng.choice(self.sockets[i].iter()) else {
            return;
        };
        let host = &mut self.wire.hosts[i];
        let to = host.addr(port);
        for _ in 0..self.rng.u8(1..6) {
            match host.node.receive(id).unwrap() {
                None => break,
                Some(Event::Congestion(ports)) => assert_ne!(ports, 0),
                Some(Event::Operation(notification)) => {
                    let (owner, notifications) =
                        self.operations[i].get_mut(&notification.token).unwrap();
                    assert_eq!(*owner, id);
                    *notifications += 1;
                    assert_eq!(*notifications, 1, "{notification:?} was returned before");
                    let operation = notification.token;
                    assert!(!host.has_operation(operation), "{notification:?} too early");
                    // A hostile peer may acknowledge messages not received.
                    let honest = self.trouble != Trouble::Hostile;
                    if notification.status == Status::Success && honest {
                        let done = host.operated.contains(&operation);
                        assert!(done, "{notification:?} was not done");
                    }
                }
                Some(Event::Message(delivery)) if self.trouble == Trouble::Hostile => {
                    let bodies = delivery.bodies.as_slice().concat();
                    assert_eq!(bodies.len(), delivery.len as usize);
                }
                Some(Event::Message(delivery)) => {
                    let bytes = delivery.bodies.as_slice().concat();
                    self.flows.received(delivery.from, to, &bytes);
                }
            }
        }
    }

    fn make_trouble(&mut self) {
        if self.trouble == Trouble::None || self.rng.u8(0..100) != 0 {
            return;
        }
        let i = self.rng.usize(0..2);
        match self.rng.u8(0..6) {
            0 => self.wire.is_cut = !self.wire.is_cut,
            1 | 2 => drop(self.on_pair(i, Wire::break_off)),
            3 if self.trouble == Trouble::Cancel => self.cancel(i),
            3 => drop(self.on_pair(i, Wire::deafen)),
            4 if self.trouble == Trouble::Cancel && self.rng.bool() => self.close(i),
            _ => self.wire.is_cut = false,
        }
    }

    fn cancel(&mut self, i: usize) {
        let Some((&port, &id)) = self.rng.choice(self.sockets[i].iter()) else {
            return;
        };
        let host = &mut self.wire.hosts[i];
        let local = host.addr(port);
        let peer = host.peer_ip;
        let ports: Vec<u16> = self.sockets[1 - i].keys().copied().collect();
        let to = self
            .rng
            .choice(&ports)
            .map(|&port| SocketAddr::new(peer, port));
        let to = to.filter(|_| self.rng.bool());
        host.node.cancel(id, to).unwrap();
        self.flows
            .forgive(|from, dest| from == local && to.is_none_or(|to| to == dest));
    }

    fn close(&mut self, i: usize) {
        let Some((&port, &id)) = self.rng.choice(self.sockets[i].iter()) else {
            return;
        };
        let host = &mut self.wire.hosts[i];
        let local = host.addr(port);
        host.node.close(id).unwrap();
        self.sockets[i].remove(&port);
        self.flows.forgive(|from, to| from == local || to == local);
        // Operations of a closed socket are not notified.
        self.operations[i].retain(|_, (owner, _)| *owner != id);
        if self.sockets[i].is_empty() {
            self.to_send[i] = 0;
        }
    }

    fn is_over(&mut self) -> bool {
        let sent = |i: usize| self.to_send[i] == 0 || self.sockets[1 - i].is_empty();
        if !sent(0) || !sent(1) || self.flows.is_waiting() {
            return false;
        }
        let notifications = |(_, notifications): &(SocketId, usize)| *notifications == 1;
        let all_notified = self
            .operations
            .iter()
            .flat_map(HashMap::values)
            .all(notifications);
        let idle = |host: &Host| host.payloads.is_empty();
        let empty = (0..2).all(|i| {
            let node = &self.wire.hosts[i].node;
            self.sockets[i]
                .values()
                .all(|&id| node.waiting(id).unwrap() == (0, 0))
        });
        all_notified && empty && self.wire.hosts.iter().all(idle)
    }

    fn check_end(&mut self) {
        self.flows.assert_empty();
        for i in 0..2 {
            let host = &self.wire.hosts[i];
            let ids: Vec<_> = host.node.connections().collect();
            for id in ids {
                let stats = host.node.connection_stats(id).unwrap();
                assert_eq!(stats.rewinds, 0);
                assert_eq!(stats.restarts, 0);
                assert_eq!(stats.false_acks, 0);
                assert_eq!(stats.bad_maps, 0);
            }
        }
    }

    /// Injects frames and requests of a hostile peer.
    fn lie(&mut self) {
        if self.rng.u8(0..20) != 0 {
            return;
        }
        let mut header = Header {
            sequence: self.rng.u64(..) >> self.rng.u8(0..64),
            ack: self.rng.u64(..) >> self.rng.u8(0..64),
            len: self.rng.u32(..) >> self.rng.u8(0..32),
            from: self.rng.u16(..),
            to: self.rng.u16(0..8),
            flags: Flags::from_bits_retain(self.rng.u8(0..16)),
            ..Header::default()
        };
        let port = self.sockets[0].keys().next().copied();
        header.to = port.filter(|_| self.rng.bool()).unwrap_or(header.to);
        let len = if self.rng.bool() {
            header.len.min(4096)
        } else {
            self.rng.u32(0..5000)
        };
        let mut wire = header.encode().to_vec();
        if self.rng.u8(0..8) == 0 {
            let at = self.rng.usize(0..wire.len());
            wire[at] ^= 1 << self.rng.u8(0..8);
        }
        if self.rng.u8(0..16) == 0 {
            wire.truncate(self.rng.usize(0..48));
        }
        let body: Vec<u8> = iter::repeat_with(|| self.rng.u8(..))
            .take(len as usize)
            .collect();
        let times = self.rng.u8(1..40);
        self.on_pair(0, |wire_, i, index| {
            let pair = &mut wire_.hosts[i].pairs[index];
            for _ in 0..times {
                pair.done
                    .push_back(Done::Received(wire.clone(), body.clone()));
            }
        });
        if self.rng.u8(0..8) == 0 {
            let data = iter::repeat_with(|| self.rng.u8(..)).take(56).collect();
            let packet = crate::host::Packet::Request(0, data);
            if !self.wire.hosts[1].pairs.is_empty() {
                self.wire.packets[0].push_back(packet);
            }
        }
    }

    fn check_bounds(&self) {
        let node = &self.wire.hosts[0].node;
        for &id in self.sockets[0].values() {
            let (_, waiting) = node.waiting(id).unwrap();
            assert!(waiting < 4 * u64::from(RECV_LIMIT) + (1 << 20));
        }
        assert!(node.connections().count() <= 16);
    }
}

/// A random operation, with the number of its message as the token.
fn operation(rng: &mut Rng, number: u32) -> Rdma {
    Rdma {
        direction: *rng.choice(&[Direction::Write, Direction::Read]).unwrap(),
        rkey: 0x300,
        addr: 0,
        len: 64,
        requests: rng.u32(1..4),
        fence: rng.bool(),
        report: Report {
            token: number.into(),
            notify: true,
            remote: rng.bool(),
        },
    }
}
