//! A simulated host: a node, and its queue pairs.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    net::{IpAddr, SocketAddr},
    ops::Range,
    time::Duration,
};

use rds_proto::{
    connection::{Body, Completion, Direction, Request, Tag},
    link::{Action, Attempt, Failure, RequestId},
    node::{ConnectionId, Node},
    wire::{CongestionMap, Header, RESERVED_PORT},
};

/// A send queue entry.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) tag: Tag,
    pub(crate) signaled: bool,
    pub(crate) what: What,
}

#[derive(Debug)]
pub(crate) enum What {
    Frame([u8; Header::SIZE], Bytes),
    /// Operation of a message; `true` if it fetches data.
    Operation(u64, bool),
    Probe,
}

/// Source of a frame's body, read by the device on transmission.
#[derive(Debug)]
pub(crate) enum Bytes {
    Nothing,
    Payload(u64, Range<u32>),
    Map(Range<usize>),
}

/// A completion queue entry.
#[derive(Debug)]
pub(crate) enum Done {
    Sent(Tag, Completion),
    Received(Vec<u8>, Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Receives once connected.
    Connecting,
    Up,
    /// Only completions remain.
    Error,
    Gone,
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) connection: ConnectionId,
    pub(crate) attempt: Attempt,
    pub(crate) state: State,
    /// Index of the connected queue pair on the other host.
    pub(crate) peer: Option<usize>,
    pub(crate) queue: VecDeque<Posted>,
    /// Received by the peer, without a completion yet.
    pub(crate) arrived: VecDeque<Posted>,
    pub(crate) done: VecDeque<Done>,
    map: Vec<u8>,
    /// The pure acknowledgement in flight.
    ack: Option<Tag>,
    /// The node has requested to close.
    closing: bool,
    /// Polling fails.
    pub(crate) cq_failed: bool,
}

/// A message of the connection manager.
#[derive(Debug)]
pub(crate) enum Packet {
    Request(usize, Vec<u8>),
    Reply(usize, usize, Vec<u8>),
    Ready(usize),
    Reject(usize),
    Gone(usize),
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) node: Node<u64, Vec<u8>>,
    pub(crate) ip: IpAddr,
    pub(crate) peer_ip: IpAddr,
    pub(crate) pairs: Vec<QueuePair>,
    /// Queue pairs of the other host by connection request.
    requests: HashMap<RequestId, usize>,
    /// Memory readable by the device.
    pub(crate) payloads: HashMap<u64, Vec<u8>>,
    /// Memory of messages that finish without a send completion.
    retained: HashMap<u64, Vec<u8>>,
    /// Performed operations, with all fetched data stored.
    pub(crate) operated: HashSet<u64>,
    depth: u32,
}

impl Host {
    pub(crate) fn new(node: Node<u64, Vec<u8>>, ip: IpAddr, peer_ip: IpAddr, depth: u32) -> Self {
        Self {
            node,
            ip,
            peer_ip,
            pairs: Vec::new(),
            requests: HashMap::new(),
            payloads: HashMap::new(),
            retained: HashMap::new(),
            operated: HashSet::new(),
            depth,
        }
    }

    fn pair(&mut self, attempt: Attempt, connection: ConnectionId) -> Option<usize> {
        self.pairs
            .iter()
            .position(|pair| pair.attempt == attempt && pair.connection == connection)
    }

    fn add(&mut self, connection: ConnectionId, attempt: Attempt, peer: Option<usize>) -> usize {
        let up = |pair: &&QueuePair| pair.connection == connection && pair.state != State::Gone;
        let live = self.pairs.iter().filter(up).count();
        assert_eq!(live, 0, "a queue pair at a time");
        self.pairs.push(QueuePair {
            connection,
            attempt,
            state: State::Connecting,
            peer,
            queue: VecDeque::new(),
            arrived: VecDeque::new(),
            done: VecDeque::new(),
            map: vec![0; CongestionMap::SIZE],
            ack: None,
            closing: false,
            cq_failed: false,
        });
        self.pairs.len() - 1
    }

    /// Performs the node's actions; returns messages for the other host.
    pub(crate) fn pump(&mut self, now: Duration) -> Vec<Packet> {
        let mut packets = Vec::new();
        let expired: Vec<ConnectionId> = self
            .node
            .connections()
            .filter(|&id| self.node.deadline(id).is_some_and(|at| at <= now))
            .collect();
        for id in expired {
            self.work(now, id, &mut packets);
        }
        while let Some(id) = self.node.busy() {
            self.work(now, id, &mut packets);
        }
        self.node.retire_acked();
        while let Some(finished) = self.node.finished() {
            let draft = finished.message.draft;
            let payload = self.payloads.remove(&draft.payload);
            let payload = payload.expect("a message is over once");
            if !draft.urgent && draft.rdma.is_none() {
                self.retained.insert(draft.payload, payload);
            }
        }
        packets
    }

    fn work(&mut self, now: Duration, id: ConnectionId, packets: &mut Vec<Packet>) {
        while let Some(action) = self.node.poll(now, id) {
            self.act(id, action, packets);
        }
        let up = |pair: &QueuePair| pair.connection == id && pair.state == State::Up;
        if let Some(index) = self.pairs.iter().position(up) {
            self.post(now, id, index);
            self.probe(now, id, index);
        }
        for index in 0..self.pairs.len() {
            let pair = &mut self.pairs[index];
            let is_drained = pair.cq_failed || pair.done.is_empty();
            if pair.state == State::Error && pair.closing && is_drained {
                pair.state = State::Gone;
                let (id, attempt) = (pair.connection, pair.attempt);
                if pair.cq_failed {
                    self.node.mark_rx_lost(id);
                }
                self.node.closed(now, id, attempt);
            }
        }
    }

    fn act(&mut self, id: ConnectionId, action: Action, packets: &mut Vec<Packet>) {
        match action {
            Action::Dial(attempt) => {
                let index = self.add(id, attempt, None);
                let data = self.node.proposal(id).unwrap().encode();
                packets.push(Packet::Request(index, data));
            }
            Action::Accept(request, attempt) => {
                let peer = self.requests[&request];
                let data = self.node.answer(id).unwrap().encode();
                let index = self.add(id, attempt, Some(peer));
                packets.push(Packet::Reply(peer, index, data));
            }
            Action::Reject(request) => {
                packets.push(Packet::Reject(self.requests[&request]));
            }
            Action::Close(attempt) => {
                let index = self.pair(attempt, id).unwrap();
                let pair = &mut self.pairs[index];
                packets.extend(pair.peer.map(Packet::Gone));
                pair.closing = true;
                pair.fail(Completion::Flushed);
            }
        }
    }

    fn post(&mut self, now: Duration, id: ConnectionId, index: usize) {
        let pair = &mut self.pairs[index];
        for free in (1..=self.depth).rev().skip(pair.queue.len()) {
            let Some(work) = self.node.transmit(id, free) else {
                break;
            };
            let what = match work.request {
                Request::Frame { header, body, .. } => {
                    let fields = Header::decode(&header, false).unwrap();
                    assert!(fields.from != RESERVED_PORT && fields.to != RESERVED_PORT);
                    let bytes = match body {
                        Body::Nothing => Bytes::Nothing,
                        Body::Message { payload, range } => Bytes::Payload(*payload, range),
                        Body::Map { map, range } => {
                            let part = &map.as_bytes()[range.clone()];
                            pair.map[range.clone()].copy_from_slice(part);
                            Bytes::Map(range)
                        }
                    };
                    What::Frame(header, bytes)
                }
                Request::Rdma { rdma, payload } => {
                    What::Operation(*payload, rdma.direction == Direction::Read)
                }
                Request::Atomic { payload, .. } => What::Operation(*payload, true),
            };
            pair.queue.push_back(Posted {
                tag: work.tag,
                signaled: work.signaled,
                what,
            });
        }
        if let Some((tag, header)) = self.node.acknowledge(now, id) {
            assert_eq!(pair.ack, None, "one acknowledgement at a time");
            pair.ack = Some(tag);
            pair.queue.push_back(Posted {
                tag,
                signaled: true,
                what: What::Frame(header, Bytes::Nothing),
            });
        }
    }

    /// Posts a probe, if due.
    fn probe(&mut self, now: Duration, id: ConnectionId, index: usize) {
        if let Some(tag) = self.node.probe(now, id) {
            self.pairs[index].queue.push_back(Posted {
                tag,
                signaled: true,
                what: What::Probe,
            });
        }
    }

    /// The body of a frame at the time of transmission.
    pub(crate) fn fetch(&self, index: usize, bytes: &Bytes) -> Vec<u8> {
        match bytes {
            Bytes::Nothing => vec![],
            Bytes::Payload(id, range) => {
                let payload = self.payloads.get(id).or_else(|| self.retained.get(id));
                let payload = payload.expect("the device reads memory it was given");
                payload[range.start as usize..range.end as usize].to_vec()
            }
            Bytes::Map(range) => self.pairs[index].map[range.clone()].to_vec(),
        }
    }

    /// Handles up to `count` completions of a queue pair.
    pub(crate) fn poll(&mut self, now: Duration, index: usize, count: usize) {
        for _ in 0..count {
            let pair = &mut self.pairs[index];
            let (id, attempt) = (pair.connection, pair.attempt);
            match pair.done.pop_front() {
                _ if pair.cq_failed => break,
                None => break,
                Some(Done::Sent(tag, completion)) => {
                    pair.ack = pair.ack.filter(|&ack| ack != tag);
                    self.node.completed(id, tag, completion);
                    if completion != Completion::Success {
                        self.node.failed(id, attempt, Failure::Lost);
                    }
                }
                Some(Done::Received(header, body)) => {
                    let _: Result<_, _> = self.node.received(now, id, &header, body);
                }
            }
        }
    }

    /// Handles a message of the connection manager; returns the answer.
    pub(crate) fn on_packet(&mut self, now: Duration, packet: Packet) -> Option<Packet> {
        match packet {
            Packet::Request(from, data) => {
                let id = RequestId(self.requests.len() as u64);
                self.requests.insert(id, from);
                let ends = (self.ip, self.peer_ip);
                let refused = self.node.request(now, ends, &data, id).is_err();
                refused.then_some(Packet::Reject(from))
            }
            Packet::Reply(to, from, data) => {
                let pair = &mut self.pairs[to];
                let (id, attempt) = (pair.connection, pair.attempt);
                if pair.state != State::Connecting
                    || !self
                        .node
                        .established(now, id, attempt, Some(&data))
                        .unwrap_or(false)
                {
                    return Some(Packet::Gone(from));
                }
                let pair = &mut self.pairs[to];
                pair.peer = Some(from);
                pair.state = State::Up;
                Some(Packet::Ready(from))
            }
            Packet::Ready(to) => {
                let pair = &mut self.pairs[to];
                let (id, attempt) = (pair.connection, pair.attempt);
                if pair.state == State::Connecting
                    && self
                        .node
                        .established(now, id, attempt, None)
                        .unwrap_or(false)
                {
                    self.pairs[to].state = State::Up;
                }
                None
            }
            Packet::Reject(to) | Packet::Gone(to) => {
                let failure = if matches!(packet, Packet::Reject(_)) {
                    Failure::Refused
                } else {
                    Failure::Lost
                };
                let pair = &self.pairs[to];
                if matches!(pair.state, State::Connecting | State::Up) {
                    let (id, attempt) = (pair.connection, pair.attempt);
                    self.node.failed(id, attempt, failure);
                }
                None
            }
        }
    }

    /// Whether an operation is in flight.
    pub(crate) fn has_operation(&self, operation: u64) -> bool {
        let mut posted = self
            .pairs
            .iter()
            .flat_map(|pair| pair.queue.iter().chain(&pair.arrived));
        posted.any(|posted| matches!(posted.what, What::Operation(id, _) if id == operation))
    }

    /// The address of a local port.
    pub(crate) fn addr(&self, port: u16) -> SocketAddr {
        (self.ip, port).into()
    }
}

impl QueuePair {
    /// Completes all requests with errors, independent of their arrival.
    pub(crate) fn fail(&mut self, first: Completion) {
        let posted = self.arrived.drain(..).chain(self.queue.drain(..));
        let mut completion = first;
        for posted in posted {
            self.done.push_back(Done::Sent(posted.tag, completion));
            completion = Completion::Flushed;
        }
        self.state = State::Error;
    }
}
