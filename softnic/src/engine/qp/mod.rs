//! Queue pairs.

mod attributes;
mod completer;
mod modify;
mod placement;
mod requester;
mod responder;
mod segment;
mod transition;
mod unreliable;

use std::{collections::VecDeque, time::Duration};

use crate::wire::{Bth, Extensions, Frame, IpHeader, Opcode, Operation, Transport};

use super::{
    completion::{Completion, CompletionOp, Status},
    event::Event,
    ids::{CqId, PdId, QpNum, SrqId},
    path::Path,
    psn::Psn,
    request::RecvRequest,
    resources::Context,
};

pub use attributes::{AttributeMask, QpAttributes, QpKind, State};
pub(super) use requester::Requester;
use responder::Responder;

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
    /// Protection domain.
    pub pd: PdId,
    /// Queue for completions of send requests.
    pub send_cq: CqId,
    /// Queue for completions of receives.
    pub recv_cq: CqId,
    /// Shared receive queue.
    pub srq: Option<SrqId>,
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
    receives: VecDeque<RecvRequest>,
    requester: Requester,
    responder: Responder,
    /// Whether the queue pair is in the engine's list of senders.
    pub(super) is_scheduled: bool,
    /// The queue pair's earliest entry in the engine's timers.
    pub(super) timer: Option<Duration>,
}

impl QueuePair {
    pub(super) fn new(num: u32, init: QpInit) -> Self {
        Self {
            num,
            init,
            state: State::Reset,
            attributes: QpAttributes::default(),
            receives: VecDeque::new(),
            requester: Requester::default(),
            responder: Responder::default(),
            is_scheduled: false,
            timer: None,
        }
    }

    /// Whether a reply or request may be ready to be sent.
    pub(super) fn wants_to_send(&self) -> bool {
        self.responder.has_replies() || self.requester.has_unsent()
    }

    /// The next deadline of a timer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.requester.deadline()
    }

    /// Appends one frame to `out`. Returns false if no frame is to be sent now.
    pub(super) fn transmit(&mut self, ctx: &mut Context<'_>, out: &mut Vec<u8>) -> bool {
        self.transmit_reply(ctx, out) || self.transmit_request(ctx, out)
    }

    /// Processes a frame for this queue pair.
    pub(super) fn handle(&mut self, frame: &Frame<'_>, ctx: &mut Context<'_>) {
        let Some((transport, operation)) = frame.bth.opcode.parse() else {
            return;
        };
        match (self.init.kind, transport) {
            (QpKind::Ud, Transport::Ud) => self.receive_datagram(frame, ctx),
            (QpKind::Uc, Transport::Uc) if self.is_from_peer(frame) => {
                self.receive_unreliable(frame, operation, ctx);
            }
            (QpKind::Rc, Transport::Rc) if self.is_from_peer(frame) => match operation {
                Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::ReadResponse(_) => self.receive_response(frame, operation, ctx),
                _ => self.receive_request(frame, operation, ctx),
            },
            _ => {}
        }
    }

    fn is_from_peer(&self, frame: &Frame<'_>) -> bool {
        let peer = self.attributes.path;
        peer.is_some_and(|path| path.dst == frame.ip.src() && path.src == frame.ip.dst())
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

    /// Takes the oldest receive of the queue pair or of the shared queue.
    fn take_receive(&mut self, ctx: &mut Context<'_>) -> Option<RecvRequest> {
        match (self.responder.held.take(), self.init.srq) {
            (Some(held), _) => Some(held),
            (None, Some(srq)) => ctx.resources.take_shared(srq),
            (None, None) => self.receives.pop_front(),
        }
    }

    /// Whether a receive is posted.
    fn has_receive(&self, ctx: &Context<'_>) -> bool {
        let shared = self.init.srq.and_then(|srq| ctx.resources.srqs.get(&srq));
        let shared = shared.is_some_and(|srq| !srq.receives.is_empty());
        self.responder.held.is_some() || shared || !self.receives.is_empty()
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
            has_grh: false,
            time: Duration::ZERO,
        }
    }

    fn complete_receive(&self, completion: Completion, solicited: bool, ctx: &mut Context<'_>) {
        let cq = self.init.recv_cq;
        ctx.resources.complete(cq, completion, solicited, ctx.now);
    }

    /// Completes a receive with an error.
    fn fail_receive(&self, wr_id: u64, status: Status, ctx: &mut Context<'_>) {
        let completion = self.completion(wr_id, CompletionOp::Receive, status);
        self.complete_receive(completion, false, ctx);
    }

    /// Moves the queue pair to the error state; all requests are flushed, sends first.
    pub(super) fn fail(&mut self, ctx: &mut Context<'_>) {
        if self.state == State::Err {
            return;
        }
        self.state = State::Err;
        self.flush(ctx);
        if self.init.srq.is_some() {
            let event = Event::LastWqeReached(QpNum(self.num));
            ctx.resources.events.push_back(event);
        }
    }

    /// Completes all requests as flushed.
    fn flush(&mut self, ctx: &mut Context<'_>) {
        self.flush_sends(ctx);
        for recv in self.responder.abandon() {
            self.fail_receive(recv.wr_id, Status::Flushed, ctx);
        }
        while let Some(recv) = self.receives.pop_front() {
            self.fail_receive(recv.wr_id, Status::Flushed, ctx);
        }
    }

    /// UDP source port of this queue pair's frames, for the load balancing of routers.
    fn src_port(&self) -> u16 {
        let [_, _, high, low] = self.num.to_be_bytes();
        0xc000 | u16::from_be_bytes([high, low]) & 0x3fff
    }

    /// Appends a frame with a payload of `len` bytes, written by `fill`.
    fn emit(
        &self,
        head: &Head,
        len: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        let transport = match self.init.kind {
            QpKind::Rc => Transport::Rc,
            QpKind::Uc => Transport::Uc,
            QpKind::Ud => Transport::Ud,
        };
        let ip = head.path.header();
        let opcode = Opcode::new(transport, head.operation);
        let (Ok(ip), Some(opcode)) = (ip, opcode) else {
            return false;
        };
        let frame = self.frame(ip, opcode, head);
        frame.encode_with(len, out, fill).is_ok()
    }

    fn frame(&self, ip: IpHeader, opcode: Opcode, head: &Head) -> Frame<'static> {
        Frame {
            ip,
            src_port: self.src_port(),
            udp_checksum: 0,
            bth: Bth {
                solicited: head.solicited,
                ack_request: head.ack_request,
                ..Bth::new(opcode, head.dest_qp, head.psn.get())
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
