//! State of a fabric: hosts, links, and frames in flight.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
    fmt,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    faults::{Faults, Nth},
    pcap::Pcap,
};
use crate::{
    abi::Notifier,
    cm::{Manager, Reach},
    engine::{Engine, Memory},
};

/// A host of the network.
pub(super) struct NetworkHost {
    pub(super) addrs: Arc<[IpAddr]>,
    pub(super) engine: Engine,
    pub(super) manager: Manager,
    pub(super) notifier: Arc<Notifier>,
    /// Whether the host is in `active`.
    is_listed: bool,
    /// The host's earliest entry in `deadlines`.
    deadline: Option<Duration>,
}

impl NetworkHost {
    /// Next deadline of the host's engine and connection manager.
    fn next_timeout(&self) -> Option<Duration> {
        let timers = [self.engine.next_timeout(), self.manager.next_timeout()];
        timers.into_iter().flatten().min()
    }
}

/// A frame in flight: arrival time, serial number, receiver, and bytes.
type InFlight = Reverse<(Duration, u64, usize, Vec<u8>)>;

/// Hosts, links, and frames in flight.
pub(crate) struct Network {
    seed: u64,
    pub(super) faults: Faults,
    /// Current time of a manual fabric.
    pub(super) virtual_now: Duration,
    pub(super) hosts: Vec<NetworkHost>,
    pub(super) memory: Box<dyn Memory + Send>,
    by_addr: HashMap<IpAddr, usize>,
    /// Number of frames sent so far, by link.
    counts: HashMap<(usize, usize), u64>,
    cuts: HashSet<(usize, usize)>,
    delayed: BinaryHeap<InFlight>,
    /// Earliest deadline of each host. Entries of cancelled timers stay, so an entry may be too early.
    deadlines: BinaryHeap<Reverse<(Duration, usize)>>,
    /// Frames arriving now, in order.
    arriving: VecDeque<(usize, Vec<u8>)>,
    /// Hosts with possible frames to send, or events.
    active: VecDeque<usize>,
    /// Buffers of frames, for reuse.
    spare: Vec<Vec<u8>>,
    serial: u64,
    pcap: Option<Pcap>,
}

/// Maximum number of frames from a host before arrived frames are processed, so that a receiver's RNR NAK stops the
/// sender early.
const BURST: usize = 16;

/// Maximum number of buffers kept for reuse.
const MAX_SPARE: usize = 1024;

impl Network {
    pub(super) fn new(seed: u64, memory: Box<dyn Memory + Send>) -> Self {
        Self {
            seed,
            faults: Faults::default(),
            virtual_now: Duration::ZERO,
            hosts: Vec::new(),
            memory,
            by_addr: HashMap::new(),
            counts: HashMap::new(),
            cuts: HashSet::new(),
            delayed: BinaryHeap::new(),
            deadlines: BinaryHeap::new(),
            arriving: VecDeque::new(),
            active: VecDeque::new(),
            spare: Vec::new(),
            serial: 0,
            pcap: None,
        }
    }

    pub(super) fn add_host(&mut self, addrs: &[IpAddr]) -> usize {
        let index = self.hosts.len();
        for addr in addrs {
            let taken = self.by_addr.insert(*addr, index);
            assert!(taken.is_none(), "another host has the address {addr}");
        }
        let all = addrs.iter().copied();
        // Successive managers start with distant communication ids.
        let first = u32::try_from(index).unwrap_or(0).rotate_right(12);
        self.hosts.push(NetworkHost {
            addrs: addrs.into(),
            engine: Engine::new(all.clone()),
            manager: Manager::new(all, guid(index), first),
            notifier: Arc::default(),
            is_listed: false,
            deadline: None,
        });
        index
    }

    /// Reachability of an address for a host. A host's networks contain 256 addresses (IPv4), or have 64-bit prefixes
    /// (IPv6).
    pub(super) fn reach(&self, host: usize, addr: IpAddr) -> Reach {
        if addr.is_multicast() || self.by_addr.contains_key(&addr) {
            return Reach::Known;
        }
        let own = &self.hosts[host].addrs;
        if own.iter().any(|own| network(*own) == network(addr)) {
            Reach::OnLink
        } else {
            Reach::Nowhere
        }
    }

    pub(super) fn record(&mut self) {
        self.pcap.get_or_insert_with(Pcap::new);
    }

    pub(super) fn recorded(&self) -> Option<&[u8]> {
        self.pcap.as_ref().map(Pcap::bytes)
    }

    pub(super) fn set_cut(&mut self, link: (usize, usize), is_cut: bool) {
        if is_cut {
            self.cuts.insert(link);
        } else {
            self.cuts.remove(&link);
        }
    }

    /// Adds a host to `active`.
    pub(super) fn activate(&mut self, host: usize) {
        if !self.hosts[host].is_listed {
            self.hosts[host].is_listed = true;
            self.active.push_back(host);
        }
    }

    /// Processes all frames and events without a delay.
    pub(super) fn pump(&mut self, now: Duration) {
        self.deliver_all(now);
        while let Some(host) = self.active.pop_front() {
            self.hosts[host].is_listed = false;
            let has_more = self.collect(host, now);
            self.deliver_all(now);
            // Only after the receivers, whose NAKs may make frames unnecessary.
            if has_more {
                self.activate(host);
            }
        }
    }

    /// Delivers all frames arriving now.
    fn deliver_all(&mut self, now: Duration) {
        while let Some((host, frame)) = self.arriving.pop_front() {
            self.deliver(host, frame, now);
        }
    }

    /// Sends frames of a host, and delivers the host's events. Returns whether more frames may be pending.
    fn collect(&mut self, host: usize, now: Duration) -> bool {
        let NetworkHost {
            engine, manager, ..
        } = &mut self.hosts[host];
        while let Some(datagram) = engine.poll_management() {
            manager.handle_message(datagram.from, datagram.to, &datagram.bytes, now);
        }
        while let Some((path, bytes)) = manager.transmit() {
            engine.send_management(path, bytes);
        }
        let mut has_more = true;
        for _ in 0..BURST {
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.clear();
            let engine = &mut self.hosts[host].engine;
            if !engine.transmit(now, &mut *self.memory, &mut frame) {
                self.keep(frame);
                has_more = false;
                break;
            }
            self.launch(host, frame, now);
        }
        let NetworkHost {
            engine,
            manager,
            notifier,
            ..
        } = &mut self.hosts[host];
        while let Some(event) = engine.poll_event() {
            notifier.event(event);
        }
        while let Some(event) = manager.poll_event() {
            notifier.cm_event(event);
        }
        self.keep_deadline(host);
        has_more
    }

    /// Adds the next deadline of a host to `deadlines`, unless an earlier entry exists.
    fn keep_deadline(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if let Some(next) = host.next_timeout()
            && host.deadline.is_none_or(|kept| next < kept)
        {
            host.deadline = Some(next);
            self.deadlines.push(Reverse((next, index)));
        }
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE {
            self.spare.push(buffer);
        }
    }

    fn deliver(&mut self, host: usize, frame: Vec<u8>, now: Duration) {
        let engine = &mut self.hosts[host].engine;
        if engine.is_active() {
            engine.handle_frame(&frame, now, &mut *self.memory);
        }
        self.keep(frame);
        self.activate(host);
    }

    /// Sets whether a host's port has a link.
    pub(super) fn set_link(&mut self, host: usize, has_link: bool) {
        self.hosts[host].engine.set_link(has_link);
        self.activate(host);
    }

    /// Fails a host's device for good, and frees the host's addresses.
    pub(super) fn kill(&mut self, host: usize, now: Duration) {
        let NetworkHost {
            engine, manager, ..
        } = &mut self.hosts[host];
        engine.fail(now, &mut *self.memory);
        manager.remove_device();
        self.by_addr.retain(|_, of| *of != host);
        self.activate(host);
    }

    /// Sends a frame to the destination host, or to all hosts for multicast.
    fn launch(&mut self, from: usize, frame: Vec<u8>, now: Duration) {
        if !self.hosts[from].engine.is_active() {
            return self.keep(frame);
        }
        if let Some(pcap) = &mut self.pcap {
            pcap.push(now, &frame);
        }
        let dst = destination(&frame);
        match dst {
            Some(dst) if dst.is_multicast() => {
                for to in 0..self.hosts.len() {
                    self.send((from, to), &frame, now);
                }
                self.keep(frame);
            }
            Some(dst) => match self.by_addr.get(&dst) {
                Some(&to) => self.send_one((from, to), frame, now),
                None => self.keep(frame),
            },
            None => self.keep(frame),
        }
    }

    /// Sends a frame over a link. A link without faults takes the buffer without a copy.
    fn send_one(&mut self, link: (usize, usize), frame: Vec<u8>, now: Duration) {
        if self.faults == Faults::default() && !self.cuts.contains(&link) {
            *self.counts.entry(link).or_default() += 1;
            self.arriving.push_back((link.1, frame));
        } else {
            self.send(link, &frame, now);
            self.keep(frame);
        }
    }

    fn send(&mut self, link: (usize, usize), frame: &[u8], now: Duration) {
        let count = self.counts.entry(link).or_default();
        let nth = Nth {
            seed: self.seed,
            link,
            n: *count,
        };
        *count += 1;
        if self.cuts.contains(&link) {
            return;
        }
        for copy in nth.fate(&self.faults).into_iter().flatten() {
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(frame);
            if let Some(bit) = copy.flipped {
                let at = usize::try_from(bit % (8 * frame.len() as u64)).unwrap_or(0);
                bytes[at / 8] ^= 1 << (at % 8);
            }
            if copy.delay.is_zero() {
                self.arriving.push_back((link.1, bytes));
            } else {
                self.serial += 1;
                let entry = (now + copy.delay, self.serial, link.1, bytes);
                self.delayed.push(Reverse(entry));
            }
        }
    }

    /// Processes all arrivals and timers up to `now`.
    pub(super) fn advance(&mut self, now: Duration) {
        while self
            .delayed
            .peek()
            .is_some_and(|Reverse((at, ..))| *at <= now)
        {
            if let Some(Reverse((_, _, host, frame))) = self.delayed.pop() {
                self.arriving.push_back((host, frame));
            }
        }
        // Arrived frames may cancel timers.
        self.pump(now);
        while let Some(&Reverse((at, index))) = self.deadlines.peek()
            && at <= now
        {
            self.deadlines.pop();
            let host = &mut self.hosts[index];
            host.deadline = host.deadline.filter(|kept| *kept != at);
            host.engine.handle_timeout(now, &mut *self.memory);
            host.manager.handle_timeout(now);
            self.activate(index);
        }
        self.pump(now);
    }

    /// Deadline of the next call to [`advance`](Self::advance).
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let arrival = self.delayed.peek().map(|Reverse((at, ..))| *at);
        let timer = self.deadlines.peek().map(|Reverse((at, _))| *at);
        arrival.into_iter().chain(timer).min()
    }

    /// Whether frames or events without a delay are pending.
    fn is_busy(&self) -> bool {
        !self.active.is_empty() || !self.arriving.is_empty()
    }

    /// Processes pending frames, or advances the virtual time to the next deadline. Returns false if nothing is
    /// pending.
    pub(super) fn step(&mut self) -> bool {
        if self.is_busy() {
            self.pump(self.virtual_now);
            return true;
        }
        let Some(deadline) = self.next_deadline() else {
            return false;
        };
        self.virtual_now = self.virtual_now.max(deadline);
        self.advance(self.virtual_now);
        true
    }
}

/// GUID of a host's device, with the bit for local administration set.
pub(crate) fn guid(index: usize) -> u64 {
    0x0200_00ff_fe00_0001 + index as u64
}

/// Network of an address: the first 24 bits (IPv4) or 64 bits (IPv6).
fn network(addr: IpAddr) -> (bool, u64) {
    match addr {
        IpAddr::V4(addr) => (true, u64::from(u32::from(addr) >> 8)),
        IpAddr::V6(addr) => {
            let [a, b, c, d, e, f, g, h, ..] = addr.octets();
            (false, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
        }
    }
}

/// Destination address of a frame made by an engine.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    match frame.first()? >> 4 {
        4 => {
            let addr: [u8; 4] = frame.get(16..20)?.try_into().ok()?;
            Some(addr.into())
        }
        6 => {
            let addr: [u8; 16] = frame.get(24..40)?.try_into().ok()?;
            Some(addr.into())
        }
        _ => None,
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("seed", &self.seed)
            .field("faults", &self.faults)
            .field("hosts", &self.hosts.len())
            .finish_non_exhaustive()
    }
}
