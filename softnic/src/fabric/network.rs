//! State of a fabric: hosts, links, and frames in flight.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    fmt,
    net::IpAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    faults::{Copy, Faults, Nth},
    recording::RecordedFrame,
    traffic::Traffic,
};
use crate::{
    abi::{Notifier, scripted},
    cm::{Manager, Reach},
    engine::{Engine, Memory, Outgoing, Packet},
    failure::{Failures, mix},
};

/// A host of the network.
pub(super) struct NetworkHost {
    pub(super) addrs: Arc<[IpAddr]>,
    pub(super) engine: Engine,
    pub(super) manager: Manager,
    pub(super) notifier: Arc<Notifier>,
    /// Requested failures of the host's calls.
    pub(super) failures: Arc<Failures>,
    /// Scripted devices of the host.
    pub(super) scripted: Vec<Weak<scripted::Shared>>,
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
    by_addr: BTreeMap<IpAddr, usize>,
    /// Number of frames sent so far, by link.
    counts: BTreeMap<(usize, usize), u64>,
    cuts: BTreeSet<(usize, usize)>,
    delayed: BinaryHeap<InFlight>,
    /// Earliest deadline of each host. Entries of cancelled timers stay, so an entry may be too early.
    deadlines: BinaryHeap<Reverse<(Duration, usize)>>,
    /// Hosts with possible frames to send, or events.
    active: VecDeque<usize>,
    /// Buffers of the packet being sent.
    outgoing: Outgoing,
    serial: u64,
    pub(super) traffic: Traffic,
    /// Sent frames; `None` unless recorded.
    recording: Option<Vec<RecordedFrame>>,
}

/// Maximum number of frames from a host before other hosts send, so that a receiver's RNR NAK stops the sender early.
const BURST: u32 = 16;

impl Network {
    pub(super) fn new(seed: u64, memory: Box<dyn Memory + Send>) -> Self {
        Self {
            seed,
            faults: Faults::default(),
            virtual_now: Duration::ZERO,
            hosts: Vec::new(),
            memory,
            by_addr: BTreeMap::new(),
            counts: BTreeMap::new(),
            cuts: BTreeSet::new(),
            delayed: BinaryHeap::new(),
            deadlines: BinaryHeap::new(),
            active: VecDeque::new(),
            outgoing: Outgoing::default(),
            serial: 0,
            traffic: Traffic::default(),
            recording: None,
        }
    }

    /// Adds a host, and returns its index.
    ///
    /// # Panics
    /// If an address is taken or given twice. The network is unchanged then.
    pub(super) fn add_host(&mut self, addrs: &[IpAddr]) -> usize {
        let index = self.hosts.len();
        let mut own = BTreeSet::new();
        for addr in addrs {
            let is_free = !self.by_addr.contains_key(addr);
            assert!(is_free, "another host has the address {addr}");
            assert!(own.insert(*addr), "the host has the address {addr} twice");
        }
        let all = addrs.iter().copied();
        self.by_addr.extend(all.clone().map(|addr| (addr, index)));
        // Successive managers start with distant communication ids.
        let first = u32::try_from(index).unwrap_or(0).rotate_right(12);
        self.hosts.push(NetworkHost {
            addrs: addrs.into(),
            engine: Engine::new(all.clone()),
            manager: Manager::new(all, guid(index), first),
            notifier: Arc::default(),
            failures: Arc::new(Failures::new(mix(self.seed) ^ index as u64)),
            scripted: Vec::new(),
            is_listed: false,
            deadline: None,
        });
        index
    }

    /// The host with an address.
    pub(super) fn host_of(&self, addr: IpAddr) -> Option<usize> {
        self.by_addr.get(&addr).copied()
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
        self.recording.get_or_insert_default();
    }

    pub(super) fn recorded(&self) -> Option<&[RecordedFrame]> {
        self.recording.as_deref()
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
        let mut outgoing = std::mem::take(&mut self.outgoing);
        while let Some(host) = self.active.pop_front() {
            self.hosts[host].is_listed = false;
            let has_more = self.collect(host, &mut outgoing, now);
            // Only after the receivers, whose NAKs may make frames unnecessary.
            if has_more {
                self.activate(host);
            }
        }
        self.outgoing = outgoing;
    }

    /// Sends frames of a host, and delivers the host's events. Returns whether more frames may be pending.
    fn collect(&mut self, host: usize, outgoing: &mut Outgoing, now: Duration) -> bool {
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
        let is_plain = self.faults == Faults::default() && self.cuts.is_empty();
        let sends_runs = is_plain && self.recording.is_none();
        let mut left = BURST;
        while left > 0 {
            outgoing.max_count = if sends_runs { left } else { 1 };
            let engine = &mut self.hosts[host].engine;
            let Some(packet) = engine.next_packet(now, &mut *self.memory, outgoing) else {
                has_more = false;
                break;
            };
            left = left.saturating_sub(packet.count);
            self.launch(host, &packet, now);
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

    /// Lets a host's engine process a frame.
    fn deliver(&mut self, host: usize, handle: impl FnOnce(&mut Engine, &mut dyn Memory)) {
        let engine = &mut self.hosts[host].engine;
        if engine.is_active() {
            handle(engine, &mut *self.memory);
        }
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

    /// Sends a packet to the destination host, or to all hosts for multicast.
    fn launch(&mut self, from: usize, packet: &Packet<'_>, now: Duration) {
        if !self.hosts[from].engine.is_active() {
            return;
        }
        if self.recording.is_some() {
            let bytes = self.encode(packet);
            let recording = self.recording.get_or_insert_default();
            recording.push(RecordedFrame { at: now, bytes });
        }
        let dst = packet.frame.ip.dst();
        if dst.is_multicast() {
            for to in 0..self.hosts.len() {
                self.send((from, to), packet, now);
            }
        } else if let Some(&to) = self.by_addr.get(&dst) {
            self.send((from, to), packet, now);
        }
    }

    /// Bytes of a packet, to be recorded, corrupted or delayed.
    fn encode(&mut self, packet: &Packet<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let encoded = packet.encode(&mut *self.memory, &mut bytes);
        debug_assert!(encoded.is_ok(), "{encoded:?}");
        bytes
    }

    /// Sends a packet over a link. Copies without a fault are delivered at once, and never encoded.
    fn send(&mut self, link: (usize, usize), packet: &Packet<'_>, now: Duration) {
        let count = self.counts.entry(link).or_default();
        let nth = Nth {
            seed: self.seed,
            link,
            n: *count,
        };
        *count += u64::from(packet.count);
        self.traffic.frames += u64::from(packet.count);
        if self.cuts.contains(&link) {
            self.traffic.lost += 1;
            return;
        }
        let copies = nth.copies(&self.faults);
        match copies.iter().flatten().count() {
            0 => self.traffic.lost += 1,
            1 => {}
            _ => self.traffic.duplicated += 1,
        }
        for copy in copies.into_iter().flatten() {
            if copy == Copy::default() {
                self.deliver(link.1, |engine, memory| {
                    engine.handle_packet(packet, now, memory);
                });
                continue;
            }
            let mut bytes = self.encode(packet);
            if let Some(bit) = copy.flipped {
                self.traffic.corrupted += 1;
                let at = usize::try_from(bit % (8 * bytes.len() as u64)).unwrap_or(0);
                bytes[at / 8] ^= 1 << (at % 8);
            }
            if copy.delay.is_zero() {
                self.deliver(link.1, |engine, memory| {
                    engine.handle_frame(&bytes, now, memory);
                });
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
                self.deliver(host, |engine, memory| {
                    engine.handle_frame(&frame, now, memory);
                });
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
        !self.active.is_empty()
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

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network")
            .field("seed", &self.seed)
            .field("faults", &self.faults)
            .field("hosts", &self.hosts.len())
            .finish_non_exhaustive()
    }
}
