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
    identity::{LOCAL_GUID, guid_of, of_addr},
    limits::Accounts,
    order::LinkOrder,
    recording::{RecordedFrame, Recording},
    traffic::Traffic,
};
use crate::{
    abi::{Notifier, scripted},
    adversary::{Adversary, AdversaryOptions, Rule},
    card::Card,
    carrier::{Carrier, Forward},
    check::{CheckedMemory, Checker},
    cm::{IdNum, Manager, Message, Reach, Timing},
    engine::{Engine, Memory, Outgoing, Packet, management_frame},
    failure::Failures,
    mix::mix,
    seed::Seed,
    wire::Frame,
};

/// A host of the network.
pub(super) struct NetworkHost {
    pub(super) addrs: Arc<[IpAddr]>,
    pub(super) engine: Engine,
    pub(super) manager: Manager,
    /// GUID of the device.
    pub(super) guid: u64,
    pub(super) notifier: Arc<Notifier>,
    /// Requested failures of the host's calls.
    pub(super) failures: Arc<Failures>,
    /// Decisions of the host's device.
    pub(super) adversary: Arc<Adversary>,
    /// The card whose limits the host's device has.
    pub(super) card: Option<Card>,
    /// Limits of the host, and the resources in use by its programs.
    pub(super) accounts: Arc<Accounts>,
    /// Scripted devices of the host.
    pub(super) scripted: Vec<Weak<scripted::Shared>>,
    /// The socket of a host over UDP.
    pub(super) carrier: Option<Carrier>,
    /// Whether the host is in `active`.
    is_listed: bool,
    /// The host's earliest entry in `deadlines`.
    deadline: Option<Duration>,
}

impl NetworkHost {
    /// Whether a queue pair is beyond the host's socket: at another address, or of another process at the same one.
    fn is_beyond(&self, dst: IpAddr, qp_num: u32) -> bool {
        let Some(carrier) = &self.carrier else {
            return false;
        };
        if dst.is_multicast() {
            // The socket gets a copy back if the host is a member.
            return dst.is_ipv4();
        }
        !self.addrs.contains(&dst) || carrier.is_elsewhere(qp_num)
    }

    /// Sends the keeper of a shared address the end of a connection for the case that this process ends now.
    fn keep_will(&self, id: u32) {
        let carrier = self.carrier.as_ref();
        let Some(carrier) = carrier.filter(|carrier| carrier.shared().is_some()) else {
            return;
        };
        let message = self.manager.last_message(IdNum(id));
        let packet = message.and_then(|(path, bytes)| {
            let frame = Carrier::outgoing(&management_frame(&path, &bytes)?, 0);
            let mut packet = Vec::new();
            frame.encode(&mut packet).ok()?;
            Some((path.dst, packet))
        });
        let packet = packet.as_ref().map(|(to, packet)| (*to, &packet[..]));
        carrier.set_will(id, packet);
    }

    /// Next deadline of the host's engine and connection manager.
    fn next_timeout(&self) -> Option<Duration> {
        let timers = [self.engine.next_timeout(), self.manager.next_timeout()];
        timers.into_iter().flatten().min()
    }
}

/// Receiver of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Receiver {
    Host(usize),
    /// The address of another process' host, over UDP.
    Udp(IpAddr),
}

impl Receiver {
    /// Number of the receiver in links; other processes have the last one.
    fn index(self) -> usize {
        match self {
            Self::Host(host) => host,
            Self::Udp(_) => usize::MAX,
        }
    }
}

/// A frame in flight: arrival time, serial number, sender, receiver, and bytes.
type InFlight = Reverse<(Duration, u64, usize, Receiver, Vec<u8>)>;

/// Hosts, links, and frames in flight.
pub(crate) struct Network {
    /// Seed of the faults.
    seed: u64,
    /// Seed of the numbers that peers see.
    pub(super) numbers: Seed,
    pub(super) faults: Faults,
    /// Maximum length of an IP packet on the links; `None` for links without a limit.
    pub(super) link_mtu: Option<u32>,
    /// Order of the frames of a link; `None` if a frame with a shorter delay overtakes others.
    pub(super) order: Option<LinkOrder>,
    /// Whether a router is between the networks, which are one link otherwise.
    pub(super) has_router: bool,
    /// Times of the connection managers of hosts added from now on.
    pub(super) timing: Timing,
    /// Rules of devices of hosts added from now on, and their seed.
    pub(super) adversary: AdversaryOptions,
    /// The card of devices of hosts added from now on.
    pub(super) card: Option<Card>,
    /// Checks of programs on hosts added from now on.
    checker: Option<Arc<Checker>>,
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
    /// Sent frames, and frames received over UDP; `None` unless recorded.
    recording: Option<Recording>,
}

/// Maximum number of datagrams that a host receives before other threads get the lock, and the rest of a range from the kernel.
const MAX_RECEIVED: u32 = 64;

/// Maximum number of frames from a host before other hosts send, so that a receiver's RNR NAK stops the sender early.
const BURST: u32 = 16;

/// Maximum number of frames from a host over UDP, the kernel's maximum for one call.
const BURST_OVER_UDP: u32 = 64;

impl Network {
    pub(super) fn new(seed: u64, memory: Box<dyn Memory + Send>) -> Self {
        Self {
            seed,
            numbers: seed.into(),
            faults: Faults::default(),
            link_mtu: None,
            order: None,
            has_router: false,
            timing: Timing::FABRIC,
            adversary: AdversaryOptions::default(),
            card: None,
            checker: None,
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

    /// Checks the programs on hosts added from now on.
    pub(super) fn check(&mut self, checker: Arc<Checker>) {
        self.memory = Box::new(CheckedMemory::new(&checker));
        self.checker = Some(checker);
    }

    pub(super) fn checker(&self) -> Option<&Arc<Checker>> {
        self.checker.as_ref()
    }

    /// Adds a host, and returns its index.
    ///
    /// # Panics
    /// If an address is taken or given twice. The network is unchanged then.
    pub(super) fn add_host(&mut self, addrs: &[IpAddr]) -> usize {
        let seed = self.numbers.part(self.hosts.len() as u64);
        self.add_host_of(addrs, &seed, LOCAL_GUID | seed.number(0) >> 8)
    }

    /// Adds a host whose numbers are those of a seed, but for the GUID.
    fn add_host_of(&mut self, addrs: &[IpAddr], seed: &Seed, guid: u64) -> usize {
        let index = self.hosts.len();
        let mut addrs_of_host = BTreeSet::new();
        for addr in addrs {
            let is_free = !self.by_addr.contains_key(addr);
            assert!(is_free, "another host has the address {addr}");
            assert!(
                addrs_of_host.insert(*addr),
                "the host has the address {addr} twice"
            );
        }
        let all = addrs.iter().copied();
        self.by_addr.extend(all.clone().map(|addr| (addr, index)));
        // Keys, ids and numbers of queue pairs are this host's alone, also beside those of other processes with other seeds.
        if let Some(checker) = &self.checker {
            checker.add_host(index, addrs);
        }
        let adversary = Arc::new(Adversary::new(self.adversary, index as u64));
        let engine_seed = match adversary.has(Rule::Colliding) {
            true => self.numbers.part(0).part(1),
            false => seed.part(1),
        };
        let mut engine = Engine::new(all.clone(), engine_seed);
        engine.set_adversary(&adversary);
        let mut manager = Manager::new(all, guid, seed.part(2));
        manager.set_timing(self.timing);
        manager.set_adversary(&adversary);
        if let Some(card) = self.card {
            let row = card.specification();
            manager.set_max_depths(row.max_qp_rd_atom, row.max_qp_init_rd_atom);
        }
        self.hosts.push(NetworkHost {
            addrs: addrs.into(),
            engine,
            manager,
            guid,
            notifier: Arc::default(),
            failures: Arc::new(Failures::new(mix(self.seed) ^ index as u64)),
            adversary,
            card: self.card,
            accounts: Accounts::new(self.card),
            scripted: Vec::new(),
            carrier: None,
            is_listed: false,
            deadline: None,
        });
        if let Some(link_mtu) = self.link_mtu {
            self.set_mtu(index, link_mtu);
        }
        index
    }

    /// Adds a host with the device of an address, as of each process there, but without a socket, and returns its index.
    pub(super) fn add_host_without_socket(&mut self, addr: IpAddr) -> usize {
        let seed = of_addr(&self.numbers, addr);
        self.add_host_of(&[addr], &seed, guid_of(addr))
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
        if let Some(carrier) = &self.hosts[host].carrier {
            return match carrier.has_route(addr) {
                true => Reach::Known,
                false => Reach::Nowhere,
            };
        }
        let local = &self.hosts[host].addrs;
        if local.iter().any(|local| network(*local) == network(addr)) {
            Reach::OnLink
        } else {
            Reach::Nowhere
        }
    }

    pub(super) fn record(&mut self, recording: Recording) {
        self.recording = Some(recording);
    }

    pub(super) fn recorded(&self) -> Option<&[RecordedFrame]> {
        self.recording.as_ref().and_then(Recording::frames)
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
        self.exchange_messages(host, now);
        let mut has_more = true;
        let is_plain =
            self.faults == Faults::default() && self.cuts.is_empty() && self.link_mtu.is_none();
        let is_over_udp = self.hosts[host].carrier.is_some();
        let sends_runs = is_plain && self.recording.is_none() && !is_over_udp;
        let mut remaining = if is_over_udp { BURST_OVER_UDP } else { BURST };
        while remaining > 0 {
            outgoing.max_count = if sends_runs { remaining } else { 1 };
            let engine = &mut self.hosts[host].engine;
            let Some(packet) = engine.next_packet(now, &mut *self.memory, outgoing) else {
                has_more = false;
                break;
            };
            remaining = remaining.saturating_sub(packet.count);
            self.launch(host, &packet, now);
        }
        let NetworkHost {
            engine,
            manager,
            notifier,
            carrier,
            ..
        } = &mut self.hosts[host];
        while let Some(event) = engine.poll_event() {
            notifier.event(event);
        }
        while let Some(event) = manager.poll_event() {
            notifier.cm_event(event);
        }
        self.traffic.lost += carrier.as_mut().map_or(0, Carrier::flush);
        self.keep_deadline(host);
        has_more
    }

    /// Moves messages between a host's connection manager and its queue pair 1.
    fn exchange_messages(&mut self, host: usize, now: Duration) {
        let host = &mut self.hosts[host];
        while let Some(datagram) = host.engine.poll_management() {
            let bytes = &datagram.bytes;
            host.manager
                .handle_message(datagram.from, datagram.to, bytes, now);
            host.keep_will(Message::ids(bytes).remote);
        }
        while let Some((path, bytes)) = host.manager.transmit() {
            host.engine.send_management(path, bytes);
            host.keep_will(Message::ids(&bytes).local);
        }
    }

    /// Adds the next deadline of a host to `deadlines`, unless an earlier entry exists.
    fn keep_deadline(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        if let Some(next) = host.next_timeout()
            && host.deadline.is_none_or(|deadline| next < deadline)
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

    /// Hands a frame over to the receiver's engine, or to the sender's socket.
    fn deliver_bytes(&mut self, from: usize, to: Receiver, frame: &[u8], now: Duration) {
        match to {
            Receiver::Host(to) => self.deliver(to, |engine, memory| {
                engine.handle_frame(frame, now, memory);
            }),
            Receiver::Udp(dst) => {
                if let Some(carrier) = &mut self.hosts[from].carrier {
                    let lost = carrier.flush();
                    let sent = carrier.send(dst, frame);
                    self.traffic.lost += lost + u64::from(!sent);
                }
            }
        }
    }

    /// Processes datagrams pending at a host's socket, up to a number, so that other threads get the lock.
    pub(super) fn receive(&mut self, host: usize, now: Duration) {
        let mut received_count = 0;
        loop {
            let NetworkHost {
                engine, carrier, ..
            } = &mut self.hosts[host];
            let Some(carrier) = carrier else {
                break;
            };
            // A waiting thread is woken for datagrams at the socket alone.
            if received_count >= MAX_RECEIVED && !carrier.has_pending() {
                break;
            }
            let Some(packet) = carrier.receive() else {
                break;
            };
            received_count += 1;
            if let Some(recording) = &mut self.recording {
                recording.push(now, packet);
            }
            if engine.is_active() {
                engine.handle_checked_frame(packet, now, &mut *self.memory);
            }
        }
        if received_count > 0 {
            self.activate(host);
            self.pump(now);
        }
    }

    /// Processes datagrams forwarded by the keeper of a host's address. Returns false if the keeper has ended.
    pub(super) fn receive_forwarded(&mut self, host: usize, now: Duration) -> bool {
        let is_kept = loop {
            let NetworkHost {
                engine, carrier, ..
            } = &mut self.hosts[host];
            let Some(carrier) = carrier else {
                return false;
            };
            match carrier.receive_forwarded() {
                Forward::Packet(packet) => {
                    if let Some(recording) = &mut self.recording {
                        recording.push(now, packet);
                    }
                    if engine.is_active() {
                        engine.handle_frame(packet, now, &mut *self.memory);
                    }
                }
                Forward::Nothing => break true,
                Forward::Ended => break false,
            }
        };
        self.activate(host);
        self.pump(now);
        is_kept
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
        let dst = packet.frame.ip.dst();
        if self.hosts[from].is_beyond(dst, packet.frame.bth.dest_qp) {
            let number = self.reserve(from, dst, packet);
            let frame = Carrier::outgoing(packet.frame, number);
            let packet = packet.with_headers(&frame);
            self.record_packet(&packet, now);
            self.send(from, Receiver::Udp(dst), &packet, now);
            return;
        }
        self.record_packet(packet, now);
        if dst.is_multicast() {
            for to in 0..self.hosts.len() {
                if !self.is_routed(packet, &self.hosts[to].addrs) {
                    self.send(from, Receiver::Host(to), packet, now);
                }
            }
        } else if let Some(&to) = self.by_addr.get(&dst) {
            if self.is_routed(packet, &[dst]) {
                self.forward((from, to), packet, now);
            } else {
                self.send(from, Receiver::Host(to), packet, now);
            }
        }
    }

    /// Records a packet, if the fabric records.
    fn record_packet(&mut self, packet: &Packet<'_>, now: Duration) {
        if self.recording.is_some() {
            let bytes = self.encode(packet);
            if let Some(recording) = &mut self.recording {
                recording.push(now, &bytes);
            }
        }
    }

    /// Whether a router is between the sender of a packet and a host with these addresses.
    fn is_routed(&self, packet: &Packet<'_>, addrs: &[IpAddr]) -> bool {
        let from = network(packet.frame.ip.src());
        self.has_router && !addrs.iter().any(|addr| network(*addr) == from)
    }

    /// Sends a packet over the router, which drops the packet if its hops are used up.
    fn forward(&mut self, (from, to): (usize, usize), packet: &Packet<'_>, now: Duration) {
        match packet.frame.ip.forwarded() {
            Some(ip) => {
                let frame = Frame {
                    ip,
                    ..*packet.frame
                };
                self.send(from, Receiver::Host(to), &packet.with_headers(&frame), now);
            }
            None => {
                self.traffic.frames += u64::from(packet.count);
                self.traffic.lost += u64::from(packet.count);
            }
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
    fn send(&mut self, from: usize, to: Receiver, packet: &Packet<'_>, now: Duration) {
        let link = (from, to.index());
        let count = self.counts.entry(link).or_default();
        let nth = Nth {
            seed: self.seed,
            link,
            n: *count,
        };
        *count += u64::from(packet.count);
        self.traffic.frames += u64::from(packet.count);
        let is_too_long = self
            .link_mtu
            .is_some_and(|mtu| packet.frame_len() > mtu as usize);
        if is_too_long || self.cuts.contains(&link) {
            self.traffic.lost += 1;
            return;
        }
        let copies = nth.copies(&self.faults);
        match copies.iter().flatten().count() {
            0 => self.traffic.lost += 1,
            1 => {}
            _ => self.traffic.duplicated += 1,
        }
        for mut copy in copies.into_iter().flatten() {
            if let Some(order) = &mut self.order {
                copy.delay = order.delay(link, now, copy.delay);
            }
            match to {
                Receiver::Host(to) if copy == Copy::default() => {
                    self.deliver(to, |engine, memory| {
                        engine.handle_packet(packet, now, memory);
                    });
                    continue;
                }
                Receiver::Udp(dst) if copy == Copy::default() => {
                    self.append(from, dst, packet);
                    continue;
                }
                Receiver::Host(_) | Receiver::Udp(_) => {}
            }
            let mut bytes = match to {
                Receiver::Host(_) => self.encode(packet),
                // Sent alone.
                Receiver::Udp(_) => {
                    let frame = Carrier::outgoing(packet.frame, 0);
                    self.encode(&packet.with_headers(&frame))
                }
            };
            if let Some(bit) = copy.flipped {
                self.traffic.corrupted += 1;
                let at = usize::try_from(bit % (8 * bytes.len() as u64)).unwrap_or(0);
                bytes[at / 8] ^= 1 << (at % 8);
            }
            if copy.delay.is_zero() {
                self.deliver_bytes(from, to, &bytes, now);
            } else {
                self.serial += 1;
                let entry = (now + copy.delay, self.serial, from, to, bytes);
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
            if let Some(Reverse((_, _, from, to, frame))) = self.delayed.pop() {
                self.deliver_bytes(from, to, &frame, now);
            }
        }
        // Arrived frames may cancel timers.
        self.pump(now);
        while let Some(&Reverse((at, index))) = self.deadlines.peek()
            && at <= now
        {
            self.deadlines.pop();
            let host = &mut self.hosts[index];
            host.deadline = host.deadline.filter(|deadline| *deadline != at);
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
    pub(super) fn is_busy(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, process, thread, time::Instant};

    use super::*;
    use crate::{
        Fabric,
        fabric::{port::Shared, timekeeper},
        wire::{Bth, Extensions, IpHeader, Opcode},
    };

    /// A host that does not exist: work for it panics.
    const MISSING: usize = 99;

    fn wait_until(condition: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < until, "the thread does no more work");
            thread::yield_now();
        }
    }

    #[test]
    fn panic_for_one_frame_or_timer_ends_no_timekeeper() {
        let shared = Shared::new(0, false);
        let mut network = shared.lock();
        network.add_host(&[IpAddr::from([10, 9, 0, 1])]);
        let at = Duration::ZERO;
        for (serial, to) in (0..).zip([MISSING, 0, MISSING, 0]) {
            let entry = (at, serial, 0, Receiver::Host(to), Vec::new());
            network.delayed.push(Reverse(entry));
        }
        network
            .deadlines
            .extend([0, MISSING, 0].map(|host| Reverse((at, host))));
        drop(network);
        timekeeper::start(&shared);
        wait_until(|| shared.lock().next_deadline().is_none());
        // Work that the panic has interrupted.
        wait_until(|| !shared.lock().is_busy());
        shared.close();
    }

    #[test]
    fn panic_for_one_datagram_ends_no_receiving_thread() {
        let [.., run] = process::id().to_be_bytes();
        let [addr, peer] = [1, 2].map(|host| IpAddr::from([127, 64 | run & 0x3f, 250, host]));
        let fabric = Fabric::new().record();
        let host = fabric.host_over_udp(addr).unwrap();
        let socket = UdpSocket::bind((peer, 0)).unwrap();
        let frame = Frame {
            ip: IpHeader::new(peer, addr).unwrap(),
            src_port: socket.local_addr().unwrap().port(),
            udp_checksum: 0,
            bth: Bth::new(Opcode::RC_SEND_ONLY, 7, 0),
            extensions: Extensions::default(),
            payload: b"to no queue pair",
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        let (_, datagram) = bytes.split_at(28);
        for count in 1..4 {
            fabric.shared.lock().active.push_back(MISSING);
            socket.send_to(datagram, (addr, crate::wire::PORT)).unwrap();
            let received = || fabric.shared.lock().recorded().map_or(0, <[_]>::len);
            wait_until(|| received() == count);
            wait_until(|| !fabric.shared.lock().is_busy());
        }
        drop(host);
    }
}
