//! Queue pairs.

mod attributes;
mod completer;
mod dc;
mod delivered;
mod late;
mod modify;
mod placement;
mod requester;
mod responder;
mod segment;
mod srd;
mod transition;
mod unreliable;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use crate::{
    adversary::Rule,
    wire::{Bth, Extensions, Frame, IpHeader, Opcode, Operation},
};

use super::{
    completion::{Completion, CompletionOp, Status},
    event::Event,
    ids::{CqId, PdId, QpNum, SrqId, XrcdId},
    packet::{Content, Outgoing, Packet},
    path::Path,
    psn::Psn,
    request::{RecvRequest, SendOp, Sge},
    resources::{Context, Target},
    transfer::total_len,
};

pub use attributes::{AttributeMask, MAX_RD_ATOMIC, QpAttributes, QpKind, State};
use dc::{InitiatorConnection, TargetConnections};
pub(super) use requester::{ACK_INTERVAL, Requester};
use responder::Responder;
use srd::Datagrams;
pub use srd::MAX_RDMA;
pub(super) use srd::refusal;
pub(crate) use transition::transition;

/// Numbers of queue pairs have 24 bits.
const MAX_QP: u32 = 0xff_ffff;

/// Maximum delay of the flush of a failed queue pair by an adversary, in microseconds.
const MAX_FLUSH_DELAY_US: u64 = 200;

/// Capacity of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum number of send requests in flight.
    pub max_send_wr: usize,
    /// Maximum number of receives.
    pub max_recv_wr: usize,
    /// Maximum number of elements of a send request.
    pub max_send_sge: usize,
    /// Maximum number of elements of a receive.
    pub max_recv_sge: usize,
    /// Maximum number of bytes of inline data.
    pub max_inline: usize,
}

/// Properties of a new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Transport service.
    pub kind: QpKind,
    /// Protection domain; none for [`QpKind::XrcRecv`].
    pub pd: Option<PdId>,
    /// Queue for completions of send requests; none for [`QpKind::XrcRecv`].
    pub send_cq: Option<CqId>,
    /// Queue for completions of receives; none for extended connections and a [`QpKind::Dci`].
    pub recv_cq: Option<CqId>,
    /// Shared receive queue; none for extended connections and a [`QpKind::Dci`].
    pub srq: Option<SrqId>,
    /// XRC domain of a [`QpKind::XrcRecv`].
    pub xrcd: Option<XrcdId>,
    /// Access key of a [`QpKind::Dct`].
    pub dct_key: u64,
    /// Capacity.
    pub capacity: Capacity,
    /// Whether all send requests are signaled.
    pub signal_all: bool,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) num: u32,
    pub(super) init: QpInit,
    pub(super) state: State,
    pub(super) attributes: QpAttributes,
    /// MTU of the port in bytes, the maximum length of a datagram.
    port_mtu: u32,
    /// Maximum number of packets in flight.
    max_in_flight: u32,
    /// Whether the slot of a request is free only once a completion has been polled.
    pub(super) frees_at_poll: bool,
    /// Whether the number stays unused after the destruction, as for a connection of the connection manager.
    pub(super) has_time_wait: bool,
    /// Number of receives whose completion has not been polled.
    occupied_receives: usize,
    /// Number of calls of `destroy_qp` until the queue pair is destroyed.
    pub(super) owners: usize,
    receives: VecDeque<RecvRequest>,
    requester: Requester,
    responder: Responder,
    /// Of [`QpKind::Srd`], in place of the two above.
    pub(super) datagrams: Datagrams,
    /// Of [`QpKind::Dci`].
    initiator: InitiatorConnection,
    /// Of [`QpKind::Dct`], whose responder is that of the connection in use.
    targets: TargetConnections,
    /// Time of the flush of a failed queue pair, delayed by an adversary.
    flush_after: Option<Duration>,
    /// Whether the event of the last request has been raised.
    is_last_wqe_raised: bool,
    /// Whether the queue pair is in the engine's list of senders.
    pub(super) is_scheduled: bool,
    /// The queue pair's earliest entry in the engine's timers.
    pub(super) timer: Option<Duration>,
}

impl QueuePair {
    pub(super) fn new(num: u32, init: QpInit, (port_mtu, max_in_flight): (u32, u32)) -> Self {
        Self {
            num,
            init,
            state: State::Reset,
            attributes: QpAttributes::new(init.kind, port_mtu),
            port_mtu,
            max_in_flight,
            frees_at_poll: false,
            has_time_wait: false,
            occupied_receives: 0,
            owners: 1,
            receives: VecDeque::new(),
            requester: Requester::default(),
            responder: Responder::default(),
            datagrams: Datagrams::default(),
            initiator: InitiatorConnection::default(),
            targets: TargetConnections::default(),
            flush_after: None,
            is_last_wqe_raised: false,
            is_scheduled: false,
            timer: None,
        }
    }

    /// Whether a reply or request may be ready to be sent.
    pub(super) fn has_work_to_send(&self) -> bool {
        self.responder.has_replies()
            || self.requester.has_unsent()
            || self.datagrams.has_work()
            || self.targets.has_replies()
    }

    /// The next deadline of a timer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let is_working = self.state != State::Err;
        let requester = is_working.then(|| self.requester.deadline()).flatten();
        let datagrams = self.datagrams.deadline;
        let timers = [
            requester,
            self.responder.reply_after,
            self.targets.reply_after,
            self.flush_after,
            datagrams,
        ];
        timers.into_iter().flatten().min()
    }

    /// Makes the next packet. Returns false if no packet is to be sent now.
    pub(super) fn transmit(&mut self, ctx: &mut Context<'_>, out: &mut Outgoing) -> bool {
        match self.init.kind {
            QpKind::Srd => self.transmit_datagram(ctx, out),
            QpKind::Dct => self.transmit_of_target(ctx, out),
            _ => self.transmit_reply(ctx, out) || self.transmit_request(ctx, out),
        }
    }

    /// Processes a packet for this queue pair.
    pub(super) fn handle(&mut self, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        let Some((transport, operation)) = packet.frame.bth.opcode.parse() else {
            return;
        };
        let is_response = matches!(
            operation,
            Operation::Acknowledge | Operation::AtomicAcknowledge | Operation::ReadResponse(_)
        );
        let is_from_peer = self.is_from_peer(packet);
        match self.init.kind {
            kind if transport != kind.transport() => {}
            QpKind::Ud => self.receive_datagram(packet, ctx),
            QpKind::Srd => self.receive_reliable_datagram(packet, operation, ctx),
            QpKind::Uc if is_from_peer => self.receive_unreliable(packet, operation, ctx),
            QpKind::Dct if !is_response => self.receive_connected(packet, operation, ctx),
            QpKind::Rc | QpKind::XrcSend | QpKind::Dci if is_from_peer && is_response => {
                self.receive_response(packet, operation, ctx);
            }
            QpKind::Rc | QpKind::XrcRecv if is_from_peer && !is_response => {
                self.receive_request(packet, operation, ctx);
            }
            _ => {}
        }
    }

    fn is_from_peer(&self, packet: &Packet<'_>) -> bool {
        let peer = self.attributes.path;
        peer.is_some_and(|path| {
            path.dst == packet.frame.ip.src() && path.src == packet.frame.ip.dst()
        })
    }

    /// Whether the state allows receiving messages.
    fn receives(&self) -> bool {
        matches!(
            self.state,
            State::Rtr | State::Rts | State::Sqd | State::Sqe
        )
    }

    /// Raises the event of a packet received before RTS, once.
    fn note_established(&mut self, ctx: &mut Context<'_>) {
        if self.state == State::Rtr && !self.responder.is_established {
            self.responder.is_established = true;
            let event = Event::CommunicationEstablished(QpNum(self.num));
            ctx.resources.events.push_back(event);
        }
    }

    /// Target of a request; `None` if the request names no shared queue of the XRC domain.
    fn target(&self, packet: &Packet<'_>, ctx: &Context<'_>) -> Option<Target> {
        match self.init.xrcd {
            Some(xrcd) => ctx
                .resources
                .xrc_target(xrcd, packet.frame.extensions.xrc_srq?),
            None => {
                let (pd, srq) = (self.init.pd?, self.init.srq);
                let shared = srq.and_then(|srq| ctx.resources.domain_of(srq));
                Some(Target {
                    pd,
                    recv_pd: shared.unwrap_or(pd),
                    srq,
                    cq: self.init.recv_cq?,
                })
            }
        }
    }

    /// Takes the oldest receive of the queue pair or of the shared queue.
    fn take_receive(&mut self, target: Target, ctx: &mut Context<'_>) -> Option<RecvRequest> {
        match (self.responder.current_receive.take(), target.srq) {
            (Some(current_receive), _) => Some(current_receive),
            (None, Some(srq)) => ctx.resources.take_shared(srq),
            (None, None) => self.receives.pop_front(),
        }
    }

    /// Whether a receive is posted.
    fn has_receive(&self, target: Target, ctx: &Context<'_>) -> bool {
        let shared = target.srq.and_then(|srq| ctx.resources.srqs.get(&srq));
        let shared = shared.is_some_and(|srq| !srq.receives.is_empty());
        self.responder.current_receive.is_some() || shared || !self.receives.is_empty()
    }

    fn completion(&self, wr_id: u64, op: CompletionOp, status: Status) -> Completion {
        Completion {
            wr_id,
            status,
            op,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qp: self.num,
            src_qp: self.attributes.dest_qp,
            src: None,
            header: None,
            time: Duration::ZERO,
            ended: 1,
            late_bytes: None,
            srq: self
                .init
                .srq
                .filter(|_| op == CompletionOp::Receive || op == CompletionOp::ReceiveWrite),
        }
    }

    /// Frees the slots of the requests that a polled completion has ended.
    pub(super) fn free_slots(&mut self, completion: &Completion) {
        let occupied = match completion.is_receive() {
            true => &mut self.occupied_receives,
            false => &mut self.requester.occupied,
        };
        *occupied = occupied.saturating_sub(completion.ended as usize);
    }

    /// A request that has not been executed, with an element of a local key: whether it is a receive, and its identifier.
    /// `shared` are the receives of a shared queue.
    pub(super) fn request_with_key<'a>(
        &'a self,
        lkey: u32,
        shared: impl Iterator<Item = &'a RecvRequest>,
    ) -> Option<(bool, u64)> {
        let names = |sges: &[Sge]| sges.iter().any(|sge| sge.lkey == lkey && sge.len > 0);
        let send = self.requester.wqes.iter().find(|wqe| names(wqe.sges()));
        let send = send.map(|wqe| (false, wqe.request.wr_id));
        let mut datagrams = self.datagrams.elements();
        let datagram = datagrams.find(|(_, sges)| names(sges));
        let send = send.or_else(|| datagram.map(|(wr_id, _)| (false, wr_id)));
        let mut receives = self.receives.iter().chain(shared);
        send.or_else(|| {
            let found = receives.find(|recv| names(&recv.sges))?;
            Some((true, found.wr_id))
        })
    }

    /// Takes the receives of messages that have not arrived as a whole.
    pub(super) fn take_unfinished(&mut self) -> Vec<RecvRequest> {
        let unfinished = self.responder.take_receive().into_iter();
        unfinished.chain(self.targets.take_receives()).collect()
    }

    /// Completes a receive with an error.
    fn fail_receive(&self, wr_id: u64, status: Status, cq: CqId, ctx: &mut Context<'_>) {
        let completion = self.completion(wr_id, CompletionOp::Receive, status);
        ctx.resources.complete(cq, completion, false, ctx.now);
    }

    /// Moves the queue pair to the error state; all requests are flushed, sends first unless an adversary decides otherwise.
    pub(super) fn fail(&mut self, ctx: &mut Context<'_>) {
        if self.state == State::Err {
            return;
        }
        self.state = State::Err;
        if ctx.resources.adversary.choose(Rule::FlushOrder, 2) == 1 {
            self.raise_last_wqe(ctx);
        }
        self.stop_timers();
        let delay = ctx
            .resources
            .adversary
            .delay(Rule::LateAccess, MAX_FLUSH_DELAY_US);
        self.flush_after = delay.map(|delay| ctx.now + delay);
        if self.flush_after.is_none() {
            self.flush(ctx);
            self.raise_last_wqe(ctx);
        }
    }

    /// Flushes the requests of a failed queue pair whose time has come. Until then, the device may access their memory.
    fn flush_late(&mut self, ctx: &mut Context<'_>) {
        if self.flush_after.is_none_or(|at| at > ctx.now) {
            return;
        }
        self.flush_after = None;
        let receives = self.receives.iter().map(|recv| recv.sges.clone());
        let reads = self.requester.wqes.iter().filter(|wqe| wqe.is_issued);
        let reads = reads.filter(|wqe| matches!(wqe.request.op, SendOp::Read(_)));
        let targets: Vec<_> = receives
            .chain(reads.map(|wqe| wqe.sges().to_vec()))
            .collect();
        for target in targets {
            self.spoil(&target, Rule::LateAccess, ctx);
        }
        self.flush(ctx);
        self.raise_last_wqe(ctx);
    }

    /// Raises the event of a queue pair with a shared receive queue, once.
    fn raise_last_wqe(&mut self, ctx: &mut Context<'_>) {
        if self.init.srq.is_some() && !std::mem::replace(&mut self.is_last_wqe_raised, true) {
            let last_wqe = Event::LastWqeReached(QpNum(self.num));
            ctx.resources.events.push_back(last_wqe);
        }
    }

    /// Completes all requests as flushed, in the order of each queue.
    fn flush(&mut self, ctx: &mut Context<'_>) {
        let adversary = Arc::clone(&ctx.resources.adversary);
        let mut receives = self.take_receives();
        if let Some((recv, _)) = receives.front()
            && adversary.choose(Rule::Partial, 2) == 1
        {
            self.spoil(&recv.sges, Rule::Partial, ctx);
        }
        self.stop_timers();
        loop {
            let takes_receive = adversary.choose(Rule::FlushOrder, 2) == 1;
            if takes_receive && let Some((recv, cq)) = receives.pop_front() {
                self.fail_receive(recv.wr_id, Status::Flushed, cq, ctx);
            } else if !self.flush_send(ctx) {
                break;
            }
        }
        for (recv, cq) in receives {
            self.fail_receive(recv.wr_id, Status::Flushed, cq, ctx);
        }
    }

    /// Takes all receives with the queues for their completions, the oldest first.
    fn take_receives(&mut self) -> VecDeque<(RecvRequest, CqId)> {
        let mut all: VecDeque<_> = self.responder.abandon().into_iter().collect();
        if let Some(cq) = self.init.recv_cq {
            let unfinished = self.take_unfinished();
            let receives = std::mem::take(&mut self.receives);
            all.extend(
                unfinished
                    .into_iter()
                    .chain(receives)
                    .map(|recv| (recv, cq)),
            );
        }
        all
    }

    /// Writes a part of a message that has not arrived, as a device may before a failure.
    fn spoil(&self, sges: &[Sge], rule: Rule, ctx: &mut Context<'_>) {
        let bytes = ctx.resources.adversary.number(rule).to_ne_bytes();
        let len = total_len(sges).min(bytes.len() as u64);
        if let (Some(pd), Some(part)) = (
            self.init.pd,
            usize::try_from(len).ok().and_then(|len| bytes.get(..len)),
        ) {
            // Without the right to write, nothing is written.
            let _is_allowed: bool = ctx.scatter(pd, sges, 0, Content::Bytes(part));
        }
    }

    /// UDP source port of this queue pair's frames, for the load balancing of routers.
    fn src_port(&self) -> u16 {
        let [_, _, high, low] = self.num.to_be_bytes();
        0xc000 | u16::from_be_bytes([high, low]) & 0x3fff
    }

    /// Sets the headers of a packet. Returns false if the path or the transport allows no such packet.
    fn emit(&self, head: &Head, out: &mut Outgoing) -> bool {
        let ip = head.path.header();
        let opcode = Opcode::new(self.init.kind.transport(), head.operation);
        let (Ok(ip), Some(opcode)) = (ip, opcode) else {
            return false;
        };
        out.set_headers(self.frame(ip, opcode, head));
        true
    }

    fn frame(&self, ip: IpHeader, opcode: Opcode, head: &Head) -> Frame<'static> {
        Frame {
            ip,
            src_port: self.src_port(),
            udp_checksum: 0,
            bth: Bth {
                solicited: head.solicited,
                ack_request: head.ack_request,
                ..Bth::new(opcode, head.dest_qp & MAX_QP, head.psn.get())
            },
            extensions: head.extensions,
            payload: &[],
        }
    }
}

/// Headers of an outgoing frame.
#[derive(Clone, Copy, Debug)]
struct Head {
    path: Path,
    dest_qp: u32,
    operation: Operation,
    psn: Psn,
    solicited: bool,
    ack_request: bool,
    extensions: Extensions,
}
