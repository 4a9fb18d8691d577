//! The device: requests, frames and time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    completion::Completion,
    error::EngineError,
    event::Event,
    ids::{CqId, QpNum, SrqId},
    management::{self, ManagementQp},
    memory::Memory,
    packet::{Outgoing, Packet},
    qp::{ACK_INTERVAL, AttributeMask, QpAttributes, QueuePair, State, refusal},
    request::{RecvRequest, SendRequest},
    resources::{Context, Resources, Timer},
};
use crate::{
    adversary::{Adversary, Rule},
    seed::{Seed, Sequence},
    wire::Frame,
};

/// Destination number of datagrams to a multicast group.
const MULTICAST_QP: u32 = 0xff_ffff;

/// Maximum MTU in bytes.
const MAX_MTU: u32 = 4096;

/// Default maximum number of packets in flight of a queue pair. The sequence numbers would allow 2^23; this bound limits the
/// queues of a slow peer.
const MAX_IN_FLIGHT: u32 = 256;

/// Maximum number of refusals to be sent. Packets beyond are dropped without one.
const MAX_REFUSALS: usize = 64;

/// Membership bit of a partition key; the other bits are the partition.
const FULL_MEMBER: u16 = 0x8000;

/// One RDMA device.
#[derive(Debug)]
pub struct Engine {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) qps: BTreeMap<u32, QueuePair>,
    pub(super) resources: Resources,
    /// Queue pairs with possible work to send, served in turn.
    senders: VecDeque<u32>,
    /// Member queue pairs of each multicast group.
    pub(super) groups: BTreeMap<IpAddr, BTreeSet<u32>>,
    /// The last number of an object other than a queue pair.
    pub(super) serial: u32,
    /// Numbers of queue pairs.
    pub(super) qp_nums: Sequence,
    /// Number of the queue pair destroyed last.
    pub(super) last_freed_qp: Option<u32>,
    /// Numbers of shared receive queues for extended connections.
    pub(super) srq_nums: Sequence,
    /// Queue pair 1.
    pub(super) management: ManagementQp,
    /// Refusals of reliable datagrams to queue pairs that do not exist.
    refusals: VecDeque<Frame<'static>>,
    /// Number of dropped frames: malformed, or without a destination here.
    dropped: u64,
    has_link: bool,
    /// Whether the port has its GIDs.
    has_gids: bool,
    has_failed: bool,
    mtu: u32,
    max_in_flight: u32,
}

impl Engine {
    /// Creates a device with these IP addresses and an MTU of 4096 bytes. The seed determines keys of memory and numbers of
    /// queue pairs, by which peers distinguish successive devices of an address.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>, seed: impl Into<Seed>) -> Self {
        let seed = seed.into();
        Self {
            addresses: addresses.into_iter().collect(),
            qps: BTreeMap::new(),
            resources: Resources::new(&seed.part(0)),
            senders: VecDeque::new(),
            groups: BTreeMap::new(),
            serial: 0,
            qp_nums: Sequence::of_24_bits(seed.part(1)),
            last_freed_qp: None,
            srq_nums: Sequence::of_24_bits(seed.part(2)),
            management: ManagementQp::default(),
            refusals: VecDeque::new(),
            dropped: 0,
            has_link: true,
            has_gids: true,
            has_failed: false,
            mtu: MAX_MTU,
            max_in_flight: MAX_IN_FLIGHT,
        }
    }

    /// Sets the decisions of the device, before objects exist.
    pub(crate) fn set_adversary(&mut self, adversary: &Arc<Adversary>) {
        self.resources.adversary = Arc::clone(adversary);
        if adversary.has(Rule::Reuse) {
            self.resources.keys.reuse();
        }
        if adversary.has(Rule::Keys) {
            let difference = adversary.number(Rule::Keys);
            self.resources.keys.distinguish_remote_keys(difference);
        }
    }

    /// Restricts the numbers of queue pairs created from now on to those whose first byte is `slot`, of an address shared with
    /// other engines.
    pub fn set_slot(&mut self, slot: u8) {
        self.qp_nums.restrict(slot);
    }

    /// MTU of the port in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Sets the MTU of the port: 256, 512, 1024, 2048 or 4096 bytes. The MTU is the maximum length of a datagram of queue
    /// pairs created from now on.
    pub fn set_mtu(&mut self, mtu: u32) {
        self.mtu = mtu;
    }

    /// Maximum number of packets of a reliable queue pair in flight, those of the peer's answers included.
    pub fn max_in_flight(&self) -> u32 {
        self.max_in_flight
    }

    /// Sets the maximum number of packets in flight of reliable queue pairs created from now on, at least 32, the interval of
    /// acknowledgements: fewer than the 256 packets of the default do not overrun a small buffer on the way. A single read may
    /// exceed the maximum.
    pub fn set_max_in_flight(&mut self, packets: u32) {
        self.max_in_flight = packets.max(ACK_INTERVAL);
    }

    /// Whether the port has a link and the device works. All frames of an inactive device are lost.
    pub fn is_active(&self) -> bool {
        self.has_link && !self.has_failed
    }

    /// Sets whether the port has a link. A change raises an event.
    pub fn set_link(&mut self, has_link: bool) {
        if self.has_link != has_link {
            self.has_link = has_link;
            self.resources.events.push_back(if has_link {
                Event::PortActive
            } else {
                Event::PortError
            });
        }
    }

    /// Whether the port has its GIDs: the host has its addresses.
    pub fn has_gids(&self) -> bool {
        self.has_gids
    }

    /// Sets whether the port has its GIDs. A change raises an event.
    pub fn set_gids(&mut self, has_gids: bool) {
        if self.has_gids != has_gids {
            self.has_gids = has_gids;
            self.resources.events.push_back(Event::GidChange);
        }
    }

    /// Fails the device for good: all requests are flushed, and no frame leaves or arrives any more.
    pub fn fail(&mut self, now: Duration, memory: &mut dyn Memory) {
        if self.has_failed {
            return;
        }
        self.has_failed = true;
        self.resources.late.settle_all(memory);
        self.resources.events.push_back(Event::DeviceFatal);
        let all: Vec<_> = self.qps.keys().copied().collect();
        for num in all {
            let failed = self.with_qp(QpNum(num), now, memory, |qp, ctx| {
                if qp.state != State::Reset {
                    qp.fail(ctx);
                }
                Ok(())
            });
            // The number was listed just before, so the queue pair exists.
            debug_assert!(failed.is_ok(), "{failed:?}");
        }
    }

    /// Posts a send request.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the request does not fit the queue pair or its state.
    /// - [`EngineError::Full`]: the send queue is full; poll for completions first.
    pub fn post_send(
        &mut self,
        qp: QpNum,
        request: SendRequest,
        now: Duration,
        memory: &mut dyn Memory,
    ) -> Result<(), EngineError> {
        self.with_qp(qp, now, memory, |qp, ctx| qp.post_send(request, ctx))
    }

    /// Posts send requests in order: all of them, or on error none.
    ///
    /// # Errors
    /// As for [`post_send`](Self::post_send), for the first request refused.
    pub fn post_sends(
        &mut self,
        qp: QpNum,
        requests: Vec<SendRequest>,
        now: Duration,
        memory: &mut dyn Memory,
    ) -> Result<(), EngineError> {
        self.with_qp(qp, now, memory, |qp, ctx| qp.post_sends(requests, ctx))
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the receive does not fit the queue pair, or the queue pair is in the reset state or
    ///   has a shared receive queue.
    /// - [`EngineError::Full`]: the receive queue is full; poll for completions first.
    pub fn post_recv(
        &mut self,
        qp: QpNum,
        request: RecvRequest,
        now: Duration,
        memory: &mut dyn Memory,
    ) -> Result<(), EngineError> {
        self.with_qp(qp, now, memory, |qp, ctx| qp.post_recv(request, ctx))
    }

    /// Posts a receive to a shared queue.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the receive has too many elements.
    /// - [`EngineError::Full`]: the queue is full; poll for completions first.
    pub fn post_srq_recv(&mut self, srq: SrqId, request: RecvRequest) -> Result<(), EngineError> {
        let missing = EngineError::NotFound("shared receive queue", srq.0);
        let queue = self.resources.srqs.get_mut(&srq).ok_or(missing)?;
        if request.sges.len() > queue.max_sge {
            return Err(EngineError::Invalid("the list has too many elements"));
        }
        // The slots of queues for extended connections are free once their receives are taken.
        let counts_polls = queue.xrc.is_none() && self.resources.adversary.has(Rule::SlotAtPoll);
        let len = match counts_polls {
            true => queue.occupied,
            false => queue.receives.len(),
        };
        if len >= queue.max_wr {
            return Err(EngineError::Full("receives"));
        }
        queue.occupied += 1;
        queue.receives.push_back(request);
        Ok(())
    }

    /// Changes the state and attributes of a queue pair.
    ///
    /// # Errors
    /// - [`EngineError::Invalid`]: the transition is illegal, needs more attributes, or does not allow one; or an attribute
    ///   is out of range.
    pub fn modify_qp(
        &mut self,
        qp: QpNum,
        (to, attributes, mask): (State, &QpAttributes, AttributeMask),
        now: Duration,
        memory: &mut dyn Memory,
    ) -> Result<(), EngineError> {
        self.with_qp(qp, now, memory, |qp, ctx| {
            qp.modify(to, attributes, mask, ctx)
        })
    }

    /// Processes a frame from the wire. Malformed frames and frames without a destination here are dropped.
    pub fn handle_frame(&mut self, bytes: &[u8], now: Duration, memory: &mut dyn Memory) {
        match Frame::decode(bytes) {
            Ok(frame) => self.handle_packet(&Packet::of(&frame), now, memory),
            Err(_) => self.dropped += 1,
        }
    }

    /// Processes a frame, as [`handle_frame`](Self::handle_frame), whose ICRC has been checked.
    pub(crate) fn handle_checked_frame(
        &mut self,
        bytes: &[u8],
        now: Duration,
        memory: &mut dyn Memory,
    ) {
        match Frame::decode_checked(bytes) {
            Ok(frame) => self.handle_packet(&Packet::of(&frame), now, memory),
            Err(_) => self.dropped += 1,
        }
    }

    /// Processes a packet of another engine. Packets without a destination here are dropped.
    pub(crate) fn handle_packet(
        &mut self,
        packet: &Packet<'_>,
        now: Duration,
        memory: &mut dyn Memory,
    ) {
        let (dst, dest_qp) = (packet.frame.ip.dst(), packet.frame.bth.dest_qp);
        if packet.frame.bth.pkey | FULL_MEMBER != u16::MAX {
            self.dropped += 1;
        } else if dst.is_multicast() && dest_qp == MULTICAST_QP {
            let members = self.groups.get(&dst).cloned().unwrap_or_default();
            for member in members {
                self.deliver(member, packet, now, memory);
            }
        } else if !self.addresses.contains(&dst) {
            self.dropped += 1;
        } else if dest_qp == management::QP {
            self.dropped += u64::from(!self.management.handle(packet, memory));
        } else {
            self.deliver(dest_qp, packet, now, memory);
        }
    }

    fn deliver(&mut self, qp: u32, packet: &Packet<'_>, now: Duration, memory: &mut dyn Memory) {
        let done = self.with_qp(QpNum(qp), now, memory, |qp, ctx| {
            qp.handle(packet, ctx);
            Ok(())
        });
        if done.is_err() {
            self.dropped += 1;
            if self.refusals.len() < MAX_REFUSALS {
                self.refusals.extend(refusal(packet));
            }
        }
    }

    /// Appends the next frame to `out`. Returns false if no frame is to be sent now.
    pub fn transmit(&mut self, now: Duration, memory: &mut dyn Memory, out: &mut Vec<u8>) -> bool {
        let mut next = Outgoing::default();
        while let Some(packet) = self.next_packet(now, memory, &mut next) {
            if packet.encode(memory, out).is_ok() {
                return true;
            }
        }
        false
    }

    /// Makes the next packet; `None` if no packet is to be sent now. A payload in the host's memory is to be copied before
    /// other calls of the program, which may release the memory.
    pub(crate) fn next_packet<'a>(
        &mut self,
        now: Duration,
        memory: &mut dyn Memory,
        out: &'a mut Outgoing,
    ) -> Option<Packet<'a>> {
        let has_packet = self.management.transmit(out)
            || self.transmit_refusal(out)
            || self.transmit_qps(now, memory, out);
        has_packet.then(|| out.packet()).flatten()
    }

    /// Makes the next refusal. Returns false without any.
    fn transmit_refusal(&mut self, out: &mut Outgoing) -> bool {
        let Some(refusal) = self.refusals.pop_front() else {
            return false;
        };
        out.clear();
        out.set_headers(refusal);
        true
    }

    /// Makes the next packet of a queue pair. Returns false if no packet is to be sent now.
    fn transmit_qps(&mut self, now: Duration, memory: &mut dyn Memory, out: &mut Outgoing) -> bool {
        while let Some(num) = self.senders.pop_front() {
            let Some(qp) = self.qps.get_mut(&num) else {
                continue;
            };
            qp.is_scheduled = false;
            let mut ctx = Context {
                now,
                resources: &mut self.resources,
                memory: &mut *memory,
            };
            let sent = qp.transmit(&mut ctx, out);
            self.reschedule(num, sent, now, memory);
            if sent {
                return true;
            }
        }
        false
    }

    /// Processes all timers up to `now`.
    pub fn handle_timeout(&mut self, now: Duration, memory: &mut dyn Memory) {
        while let Some(Reverse((at, _))) = self.resources.timers.peek()
            && *at <= now
        {
            match self.resources.timers.pop() {
                Some(Reverse((at, Timer::Qp(num)))) => {
                    if let Some(qp) = self.qps.get_mut(&num) {
                        qp.timer = qp.timer.filter(|timer| *timer != at);
                    }
                    // Timers of destroyed queue pairs have no effect.
                    let _gone = self.with_qp(QpNum(num), now, memory, |qp, ctx| {
                        qp.handle_timeout(ctx);
                        Ok(())
                    });
                }
                Some(Reverse((at, Timer::Late))) => self.resources.late.expire(at, memory),
                Some(Reverse((_, Timer::Cq(id)))) => {
                    self.resources.expire_cq(id, now);
                    self.fail_users_of_overrun_queues(now, memory);
                }
                None => {}
            }
        }
    }

    /// Deadline of the next call to [`handle_timeout`](Self::handle_timeout); may be earlier than any action.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.resources.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes the oldest completion of a queue. An adversary may write the received bytes only now.
    pub(crate) fn poll_cq_into(&mut self, cq: CqId, memory: &mut dyn Memory) -> Option<Completion> {
        let completion = self.poll_cq(cq)?;
        if let Some(id) = completion.late_bytes {
            self.resources.late.poll(id.get(), memory);
        }
        Some(completion)
    }

    /// Writes the bytes of peers' writes that are not in the memory yet: the memory may be deregistered afterwards.
    pub(crate) fn settle(&mut self, memory: &mut dyn Memory) {
        if !self.resources.adversary.is_kind() {
            self.resources.late.settle_all(memory);
        }
    }

    /// Takes the oldest completion of a queue.
    pub fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        let completion = self.resources.cqs.get_mut(&cq)?.poll()?;
        if self.resources.adversary.has(Rule::SlotAtPoll) {
            self.free_slots(&completion);
        }
        Some(completion)
    }

    /// Frees the slots of the requests that a polled completion has ended.
    fn free_slots(&mut self, completion: &Completion) {
        if let Some(srq) = completion.srq {
            self.resources.free_shared_slot(srq);
        } else if let Some(qp) = self.qps.get_mut(&completion.qp) {
            qp.free_slots(completion);
        }
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.resources.events.pop_front()
    }

    /// Number of frames dropped as malformed, or without a destination host or queue pair here.
    pub fn dropped_frames(&self) -> u64 {
        self.dropped
    }

    /// Calls `act` for a queue pair, then updates senders, timers and overrun queues.
    pub(super) fn with_qp<T>(
        &mut self,
        qp: QpNum,
        now: Duration,
        memory: &mut dyn Memory,
        act: impl FnOnce(&mut QueuePair, &mut Context<'_>) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let missing = EngineError::NotFound("queue pair", qp.0);
        let found = self.qps.get_mut(&qp.0).ok_or(missing)?;
        let mut ctx = Context {
            now,
            resources: &mut self.resources,
            memory: &mut *memory,
        };
        let result = act(found, &mut ctx);
        self.reschedule(qp.0, true, now, memory);
        result
    }

    /// Schedules a queue pair with work to send, adds its deadline to the timers, and fails users of overrun completion
    /// queues.
    fn reschedule(&mut self, num: u32, may_send: bool, now: Duration, memory: &mut dyn Memory) {
        self.fail_users_of_overrun_queues(now, memory);
        let Some(qp) = self.qps.get_mut(&num) else {
            return;
        };
        if may_send && !qp.is_scheduled && qp.has_work_to_send() {
            qp.is_scheduled = true;
            self.senders.push_back(num);
        }
        if let Some(deadline) = qp.deadline()
            && qp.timer.is_none_or(|timer| deadline < timer)
        {
            qp.timer = Some(deadline);
            self.resources
                .timers
                .push(Reverse((deadline, Timer::Qp(num))));
        }
    }

    fn fail_users_of_overrun_queues(&mut self, now: Duration, memory: &mut dyn Memory) {
        while let Some(cq) = self.resources.overrun.pop() {
            self.fail_users(cq, now, memory);
        }
    }

    /// Fails the queue pairs of an overrun completion queue: those with the queue, and the receiving ends of the XRC
    /// domains with a shared receive queue that completes there.
    fn fail_users(&mut self, cq: CqId, now: Duration, memory: &mut dyn Memory) {
        let bindings = self.resources.srqs.values().filter_map(|srq| srq.xrc);
        let domains: Vec<_> = bindings
            .filter(|binding| binding.cq == cq)
            .map(|binding| binding.xrcd)
            .collect();
        let users = self.qps.values_mut();
        let uses = |qp: &&mut QueuePair| {
            [qp.init.send_cq, qp.init.recv_cq].contains(&Some(cq))
                || qp.init.xrcd.is_some_and(|xrcd| domains.contains(&xrcd))
        };
        for qp in users.filter(uses) {
            if qp.state == State::Err {
                continue;
            }
            let mut ctx = Context {
                now,
                resources: &mut self.resources,
                memory: &mut *memory,
            };
            ctx.resources
                .events
                .push_back(Event::QpFatal(QpNum(qp.num)));
            qp.fail(&mut ctx);
        }
    }
}
