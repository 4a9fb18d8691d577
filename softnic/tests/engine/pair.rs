//! Two engines on a wire with loss, duplication, delay, reordering and corruption of frames, in virtual time.

use std::{cmp::Reverse, collections::BinaryHeap, net::IpAddr, time::Duration};

use fastrand::Rng;
use softnic::{
    engine::{
        Access, AttributeMask, Capacity, Completion, CqId, Engine, EngineError, Event, Path,
        Payload, PdId, QpAttributes, QpInit, QpKind, QpNum, RecvRequest, Region, SendOp,
        SendRequest, Sge, SrqId, State, XrcdId,
    },
    wire::Frame,
};

use crate::shadow::{BASE, Shadow};

/// Bytes of memory of each host.
pub(crate) const MEMORY: usize = 1 << 20;

/// All rights, remote and local.
pub(crate) const ALL: Access = Access(0x1f);

/// All rights, with those for flushes.
pub(crate) const EVERYTHING: Access = Access(0x31f);

/// Access key of the target.
pub(crate) const DCT_KEY: u64 = 0x1234_5678_9abc_def0;

/// Probability of each fault for a frame, and the longest delay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    pub(crate) corruption: f64,
    pub(crate) delay: Duration,
}

/// A host: engine, memory, and objects.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) memory: Shadow,
    pub(crate) addr: IpAddr,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
    pub(crate) qp: QpNum,
    /// Shared receive queue and domain of a host with the receiving end of an extended connection.
    pub(crate) xrc: Option<(SrqId, XrcdId)>,
    /// Key of a region of the whole memory except the last page.
    pub(crate) key: u32,
}

impl Host {
    fn new(addr: &str, kind: QpKind, srq: bool) -> Self {
        let addr = addr.parse().unwrap();
        let mut engine = Engine::new([addr], 7);
        let pd = engine.alloc_pd();
        let cq = engine.create_cq(1 << 14);
        let srq = srq.then(|| engine.create_srq(pd, 64, 4).unwrap());
        let qp = engine.create_qp(init(kind, pd, cq, srq)).unwrap();
        let mut host = Self {
            engine,
            memory: Shadow::new(MEMORY),
            addr,
            pd,
            cq,
            qp,
            xrc: None,
            key: 0,
        };
        host.key = host.register(BASE, MEMORY as u64 - 4096, EVERYTHING);
        host
    }

    /// Registers memory under its own addresses, and opens the range in the shadow memory.
    pub(crate) fn register(&mut self, addr: u64, len: u64, access: Access) -> u32 {
        let writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        self.memory.open(addr, len, access.intersects(writes));
        let region = Region {
            pd: self.pd,
            host: addr,
            start: addr,
            len,
            access,
        };
        self.engine.register(region).unwrap()
    }

    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge {
            addr: BASE + offset,
            len,
            lkey: self.key,
        }
    }

    pub(crate) fn poll(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.engine.poll_cq(self.cq)).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }
}

pub(crate) fn init(kind: QpKind, pd: PdId, cq: CqId, srq: Option<SrqId>) -> QpInit {
    QpInit {
        kind,
        pd: Some(pd),
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq,
        xrcd: None,
        dct_key: 0,
        capacity: Capacity {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 256,
        },
        signal_all: false,
    }
}

/// A signaled request.
pub(crate) fn request(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendRequest {
    SendRequest {
        wr_id,
        op,
        payload: Payload::Sges(sges.to_vec()),
        destination: None,
        xrc_srq: None,
        signaled: true,
        solicited: false,
        fence: false,
    }
}

pub(crate) const SEND: SendOp = SendOp::Send {
    imm: None,
    invalidate: None,
};

/// A frame in flight: arrival time, serial number, receiver, and bytes.
type InFlight = Reverse<(Duration, u64, usize, Vec<u8>)>;

/// Two hosts and the wire between them.
pub(crate) struct Pair {
    pub(crate) hosts: [Host; 2],
    pub(crate) now: Duration,
    pub(crate) faults: Faults,
    pub(crate) rng: Rng,
    /// Whether the wire drops all frames.
    pub(crate) is_cut: bool,
    in_flight: BinaryHeap<InFlight>,
    sent: u64,
}

impl Pair {
    /// Two queue pairs in the reset state.
    pub(crate) fn new(kind: QpKind, srq: bool) -> Self {
        Self {
            hosts: [
                Host::new("10.9.0.1", kind, srq),
                Host::new("10.9.0.2", kind, srq),
            ],
            now: Duration::ZERO,
            faults: Faults::default(),
            rng: Rng::with_seed(0),
            is_cut: false,
            in_flight: BinaryHeap::new(),
            sent: 0,
        }
    }

    /// The sending end (first host) and the receiving end of an extended connection, in the reset state.
    pub(crate) fn xrc() -> Self {
        let mut pair = Self::new(QpKind::Rc, false);
        let [a, b] = &mut pair.hosts;
        a.qp = a
            .engine
            .create_qp(QpInit {
                recv_cq: None,
                ..init(QpKind::XrcSend, a.pd, a.cq, None)
            })
            .unwrap();
        b.engine.destroy_qp(b.qp).unwrap();
        let xrcd = b.engine.open_xrcd();
        let srq = b.engine.create_xrc_srq(b.pd, (xrcd, b.cq), 64, 4);
        b.qp = b
            .engine
            .create_qp(QpInit {
                pd: None,
                send_cq: None,
                recv_cq: None,
                xrcd: Some(xrcd),
                ..init(QpKind::XrcRecv, b.pd, b.cq, None)
            })
            .unwrap();
        b.xrc = Some((srq.unwrap(), xrcd));
        pair
    }

    /// An initiator (first host) and a target with a shared receive queue, in the reset state.
    pub(crate) fn dynamic() -> Self {
        let mut pair = Self::new(QpKind::Rc, true);
        let [a, b] = &mut pair.hosts;
        a.qp = a
            .engine
            .create_qp(QpInit {
                recv_cq: None,
                ..init(QpKind::Dci, a.pd, a.cq, None)
            })
            .unwrap();
        let srq = b.engine.qp_srq(b.qp);
        b.qp = b
            .engine
            .create_qp(QpInit {
                dct_key: DCT_KEY,
                ..init(QpKind::Dct, b.pd, b.cq, srq)
            })
            .unwrap();
        pair
    }

    /// Number of the shared receive queue of the second host.
    pub(crate) fn xrc_number(&self) -> u32 {
        let host = &self.hosts[1];
        let (srq, _) = host.xrc.unwrap();
        host.engine.srq_number(srq).unwrap()
    }

    /// Two connected queue pairs that are ready to send, with usual attributes.
    pub(crate) fn connected(kind: QpKind) -> Self {
        let mut pair = Self::new(kind, false);
        pair.connect(&attributes());
        pair
    }

    /// Brings both queue pairs to RTS.
    pub(crate) fn connect(&mut self, attributes: &QpAttributes) {
        for side in [0, 1] {
            self.bring_up(side, attributes, State::Rts);
        }
    }

    /// Brings a queue pair to its last state.
    pub(crate) fn connect_side(&mut self, side: usize) {
        self.bring_up(side, &attributes(), State::Rts);
    }

    /// Brings a queue pair to RTR.
    pub(crate) fn bring_up_to_rtr(&mut self, side: usize) {
        self.bring_up(side, &attributes(), State::Rtr);
    }

    fn bring_up(&mut self, side: usize, attributes: &QpAttributes, last: State) {
        let (peer, psns) = (1 - side, [attributes.sq_psn, attributes.rq_psn]);
        let path = Path::new(self.hosts[side].addr, self.hosts[peer].addr);
        let attributes = &QpAttributes {
            path: Some(path),
            dest_qp: self.hosts[peer].qp.0,
            sq_psn: psns[side],
            rq_psn: psns[peer],
            ..*attributes
        };
        use AttributeMask as Has;
        let kind = self.kind(side);
        if matches!(kind, QpKind::Dci | QpKind::Dct) {
            return self.bring_up_dynamic(side, attributes);
        }
        let ud = matches!(kind, QpKind::Ud | QpKind::Srd);
        let initiates = matches!(kind, QpKind::Rc | QpKind::XrcSend);
        let responds = matches!(kind, QpKind::Rc | QpKind::XrcRecv);
        let init = Has::PKEY_INDEX | Has::PORT | if ud { Has::QKEY } else { Has::ACCESS };
        let mut rtr = Has::default();
        if !ud {
            rtr = Has::PATH | Has::MTU | Has::DEST_QP | Has::RQ_PSN;
        }
        let mut rts = Has::SQ_PSN;
        if responds {
            rtr = rtr | Has::MAX_DEST_RD_ATOMIC | Has::MIN_RNR_TIMER;
        }
        if initiates || responds {
            rts = rts | Has::TIMEOUT;
        }
        if initiates {
            rts = rts | Has::RETRY_COUNT | Has::RNR_RETRY | Has::MAX_RD_ATOMIC;
        }
        for (to, mask) in [(State::Init, init), (State::Rtr, rtr), (State::Rts, rts)] {
            self.modify(side, to, attributes, mask).unwrap();
            if to == last {
                break;
            }
        }
    }

    fn bring_up_dynamic(&mut self, side: usize, attributes: &QpAttributes) {
        use AttributeMask as Has;
        let init = Has::PKEY_INDEX | Has::PORT;
        let timers = Has::TIMEOUT | Has::RETRY_COUNT | Has::RNR_RETRY | Has::MAX_RD_ATOMIC;
        let steps = match self.kind(side) {
            QpKind::Dct => vec![
                (State::Init, init | Has::ACCESS),
                (State::Rtr, Has::PATH | Has::MTU | Has::MIN_RNR_TIMER),
            ],
            _ => vec![
                (State::Init, init),
                (State::Rtr, Has::MTU),
                (State::Rts, timers | Has::SQ_PSN),
            ],
        };
        for (to, mask) in steps {
            self.modify(side, to, attributes, mask).unwrap();
        }
    }

    fn kind(&self, side: usize) -> QpKind {
        let host = &self.hosts[side];
        host.engine.qp_kind(host.qp).unwrap()
    }

    pub(crate) fn modify(
        &mut self,
        side: usize,
        to: State,
        attributes: &QpAttributes,
        mask: AttributeMask,
    ) -> Result<(), EngineError> {
        let host = &mut self.hosts[side];
        let change = (to, attributes, mask);
        host.engine
            .modify_qp(host.qp, change, self.now, &mut host.memory)
    }

    pub(crate) fn state(&self, side: usize) -> State {
        let host = &self.hosts[side];
        host.engine.query_qp(host.qp).unwrap().0
    }

    pub(crate) fn post(&mut self, side: usize, request: SendRequest) {
        self.try_post(side, request).unwrap();
    }

    pub(crate) fn try_post(
        &mut self,
        side: usize,
        request: SendRequest,
    ) -> Result<(), EngineError> {
        let host = &mut self.hosts[side];
        host.engine
            .post_send(host.qp, request, self.now, &mut host.memory)
    }

    /// Posts a receive to the queue pair, or to its shared queue.
    pub(crate) fn post_recv(&mut self, side: usize, wr_id: u64, sges: &[Sge]) {
        let host = &mut self.hosts[side];
        let request = RecvRequest {
            wr_id,
            sges: sges.to_vec(),
        };
        let shared = host.engine.qp_srq(host.qp);
        let posted = match shared.or(host.xrc.map(|(srq, _)| srq)) {
            Some(srq) => host.engine.post_srq_recv(srq, request),
            None => host
                .engine
                .post_recv(host.qp, request, self.now, &mut host.memory),
        };
        posted.unwrap();
    }

    /// The next frame of a host.
    pub(crate) fn transmit(&mut self, side: usize) -> Option<Vec<u8>> {
        let host = &mut self.hosts[side];
        let mut frame = Vec::new();
        let sent = host.engine.transmit(self.now, &mut host.memory, &mut frame);
        sent.then_some(frame)
    }

    /// Delivers a frame to a host.
    pub(crate) fn deliver(&mut self, side: usize, frame: &[u8]) {
        let host = &mut self.hosts[side];
        host.engine.handle_frame(frame, self.now, &mut host.memory);
    }

    fn launch(&mut self, side: usize, frame: &[u8]) {
        let copies = 1 + usize::from(self.rng.f64() < self.faults.duplication);
        for _ in 0..copies {
            if self.is_cut || self.rng.f64() < self.faults.loss {
                continue;
            }
            let mut copy = frame.to_vec();
            if self.rng.f64() < self.faults.corruption {
                let at = self.rng.usize(..copy.len());
                copy[at] ^= 1 << self.rng.u8(..8);
                // No checksum covers fields changed by routers, or reserved fields.
                if Frame::decode(&copy).is_ok() {
                    continue;
                }
            }
            let delay = self.faults.delay.mul_f64(self.rng.f64());
            self.sent += 1;
            let arrival = self.now + Duration::from_micros(1) + delay;
            let entry = (arrival, self.sent, 1 - side, copy);
            self.in_flight.push(Reverse(entry));
        }
    }

    /// Carries frames and advances the time until `done`, or until no frame or timer is left. Returns the last `done`.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        for _ in 0..2_000_000 {
            for side in [0, 1] {
                while let Some(frame) = self.transmit(side) {
                    self.launch(side, &frame);
                }
            }
            if done(self) {
                return true;
            }
            let arrival = self.in_flight.peek().map(|Reverse((at, ..))| *at);
            let timers = self
                .hosts
                .iter()
                .filter_map(|host| host.engine.next_timeout());
            let Some(next) = arrival.into_iter().chain(timers).min() else {
                return false;
            };
            self.now = self.now.max(next);
            while self
                .in_flight
                .peek()
                .is_some_and(|Reverse((at, ..))| *at <= self.now)
            {
                if let Some(Reverse((_, _, side, frame))) = self.in_flight.pop() {
                    self.deliver(side, &frame);
                }
            }
            for host in &mut self.hosts {
                host.engine.handle_timeout(self.now, &mut host.memory);
            }
        }
        unreachable!("the engines never come to rest")
    }

    /// Carries frames and advances the time until no frame or timer is left.
    pub(crate) fn run(&mut self) {
        self.run_until(|_| false);
    }
}

/// Usual attributes.
pub(crate) fn attributes() -> QpAttributes {
    QpAttributes {
        access: EVERYTHING,
        qkey: 0x1111,
        mtu: 256,
        sq_psn: 7,
        rq_psn: 0xff_fffa,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        min_rnr_timer: 1,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..QpAttributes::default()
    }
}
