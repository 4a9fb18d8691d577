//! The requester: sends requests in order, and retransmits from a missing packet on (go-back-N).

use std::{collections::VecDeque, num::NonZero, time::Duration};

use super::{Head, QpAttributes, QpKind, QueuePair, State, dc, srd};
use crate::{
    adversary::Rule,
    engine::{
        completion::{CompletionOp, Status},
        error::EngineError,
        event::Event,
        ids::QpNum,
        packet::Outgoing,
        psn::Psn,
        request::{Destination, Payload, Remote, SendOp, SendRequest, Sge},
        resources::Context,
        rnr::ack_timeout,
        transfer::{self, total_len},
    },
    wire::{AtomicEth, Deth, Extensions, Feth, Immediate, Operation, Position, Reth},
};

/// Interval in packets between acknowledgement requests within a long message.
pub(in crate::engine) const ACK_INTERVAL: u32 = 32;

/// Maximum length of a message in bytes.
const MAX_MESSAGE: u64 = 1 << 31;

/// Numbers of shared receive queues have 24 bits.
const MAX_SRQ_NUMBER: u32 = 0xff_ffff;

/// Value of `rnr_retry` for unlimited retries.
const RETRY_FOR_EVER: u8 = 7;

/// A posted send request.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) request: SendRequest,
    /// Length of the message in bytes.
    pub(super) len: u32,
    /// Sequence number of the first packet; with `packets`, valid once `is_issued`.
    pub(super) first: Psn,
    pub(super) packets: u32,
    /// Whether sending has started.
    pub(super) is_issued: bool,
    /// Whether an adversary has decided about the start.
    pub(super) is_decided: bool,
}

impl Wqe {
    /// Sequence number after the last packet.
    pub(super) fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    pub(super) fn sges(&self) -> &[Sge] {
        match &self.request.payload {
            Payload::Sges(sges) => sges,
            Payload::Inline(_) => &[],
        }
    }
}

/// The send queue and its progress.
#[derive(Debug, Default)]
pub(in crate::engine) struct Requester {
    /// Requests in posting order, the oldest first.
    pub(super) wqes: VecDeque<Wqe>,
    /// Number of requests without a polled completion of theirs or of a later one.
    pub(super) occupied: usize,
    /// Number of requests that have ended since the latest completion.
    ended: u32,
    /// Bytes that the poll of the next completion writes.
    pub(super) late_bytes: Option<NonZero<u32>>,
    /// Start of the current request, delayed by an adversary.
    pub(super) start_after: Option<Duration>,
    /// Index of the request being sent, and the number of its packets already sent.
    pub(super) current: usize,
    sent: u32,
    /// Oldest unacknowledged packet.
    pub(super) unacked: Psn,
    /// Next packet to be sent.
    pub(super) next: Psn,
    /// Packet after the newest ever sent.
    pub(super) newest: Psn,
    /// Reads and atomics without a complete response.
    pub(super) reads_in_flight: u32,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// Deadline of the retransmission of unacknowledged packets.
    ack_deadline: Option<Duration>,
    /// End of the delay requested by the peer's RNR NAK.
    pub(super) rnr_until: Option<Duration>,
    /// Start of the latest retransmission caused by a gap: further packets after the same gap cause no other.
    pub(super) resent_from: Option<Psn>,
    /// Whether the end of draining is still to be reported; no request is started in state SQD.
    pub(super) is_draining: bool,
}

/// Result of starting a request.
enum Started {
    /// The request has packets to send.
    Yes,
    /// The request must wait.
    Wait,
    /// The request was local, and is done.
    Local,
    /// The request has failed.
    Failed(Status),
}

impl Requester {
    pub(super) fn start(&mut self, psn: Psn, attributes: &QpAttributes) {
        self.unacked = psn;
        self.next = psn;
        self.newest = psn;
        self.restore_retries(attributes);
    }

    pub(super) fn restore_retries(&mut self, attributes: &QpAttributes) {
        self.retries_left = attributes.retry_count;
        self.rnr_retries_left = attributes.rnr_retry;
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.rnr_until.is_none() && self.start_after.is_none() && self.current < self.wqes.len()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let timers = [self.ack_deadline, self.rnr_until, self.start_after];
        timers.into_iter().flatten().min()
    }

    /// Restarts the acknowledgement timer, or stops the timer if all packets are acknowledged.
    pub(super) fn restart_timer(&mut self, now: Duration, attributes: &QpAttributes) {
        self.ack_deadline = match ack_timeout(attributes.timeout) {
            Some(timeout) if self.unacked != self.newest && self.rnr_until.is_none() => {
                Some(now + timeout)
            }
            _ => None,
        };
    }

    /// Continues at a packet of the requests in flight, earlier or later.
    pub(super) fn go_to(&mut self, psn: Psn) {
        self.next = psn;
        self.sent = 0;
        self.current = self.wqes.len();
        for (index, wqe) in self.wqes.iter().enumerate() {
            if !wqe.is_issued {
                self.current = index;
                break;
            }
            if !wqe.request.op.is_local() && psn.is_before(wqe.end()) {
                self.current = index;
                self.sent = psn.since(wqe.first);
                break;
            }
        }
    }

    /// Removes the oldest request.
    pub(super) fn retire(&mut self) -> Option<Wqe> {
        let wqe = self.wqes.pop_front()?;
        match self.current.checked_sub(1) {
            Some(current) => self.current = current,
            None => self.sent = 0,
        }
        if wqe.is_issued && wqe.request.op.needs_response() {
            self.reads_in_flight -= 1;
        }
        Some(wqe)
    }

    /// Skips packets acknowledged before their retransmission.
    pub(super) fn skip_acknowledged(&mut self) {
        if self.next.is_before(self.unacked) {
            self.go_to(self.unacked);
        }
    }
}

impl QueuePair {
    /// Posts a send request.
    pub(in crate::engine) fn post_send(
        &mut self,
        request: SendRequest,
        ctx: &mut Context<'_>,
    ) -> Result<(), EngineError> {
        if self.drops_early(ctx) {
            return Ok(());
        }
        self.check_send(&request, 0)?;
        self.enqueue(request, ctx);
        Ok(())
    }

    /// Posts all requests in order, or none.
    pub(in crate::engine) fn post_sends(
        &mut self,
        requests: Vec<SendRequest>,
        ctx: &mut Context<'_>,
    ) -> Result<(), EngineError> {
        if self.drops_early(ctx) {
            return Ok(());
        }
        for (earlier, request) in requests.iter().enumerate() {
            self.check_send(request, earlier)?;
        }
        for request in requests {
            self.enqueue(request, ctx);
        }
        Ok(())
    }

    /// Adds a checked request to the send queue, or flushes the request in an error state.
    fn enqueue(&mut self, mut request: SendRequest, ctx: &mut Context<'_>) {
        request.signaled |= self.init.signal_all;
        self.requester.occupied += 1;
        if !ctx.resources.adversary.is_kind() {
            ctx.resources.late.settle_targets(self.num, ctx.memory);
        }
        let is_failed = self.state == State::Err && self.flush_after.is_none();
        if is_failed || self.state == State::Sqe {
            return self.complete_send(&request, 0, Status::Flushed, ctx);
        }
        let len = match (&request.op, &request.payload) {
            (SendOp::AtomicWrite { value, .. }, _) => value.len() as u64,
            (_, Payload::Sges(sges)) => total_len(sges),
            (_, Payload::Inline(bytes)) => bytes.len() as u64,
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if self.init.kind == QpKind::Srd {
            return self.datagrams.push(request, len, self.attributes.rnr_retry);
        }
        self.requester.wqes.push_back(Wqe {
            request,
            len,
            first: Psn::default(),
            packets: 0,
            is_issued: false,
            is_decided: false,
        });
    }

    /// Checks a request with `earlier` requests of the same batch before it.
    fn check_send(&self, request: &SendRequest, earlier: usize) -> Result<(), EngineError> {
        let capacity = &self.init.capacity;
        if !matches!(
            self.state,
            State::Rts | State::Sqd | State::Sqe | State::Err
        ) {
            return Err(EngineError::Invalid("the queue pair cannot send yet"));
        }
        let len = match self.frees_at_poll {
            true => self.requester.occupied,
            false => self.requester.wqes.len() + self.datagrams.len(),
        };
        if len + earlier >= capacity.max_send_wr {
            return Err(EngineError::Full("send requests"));
        }
        match &request.payload {
            Payload::Sges(sges) if sges.len() > capacity.max_send_sge => {
                return Err(EngineError::Invalid("the list has too many elements"));
            }
            Payload::Inline(bytes) if bytes.len() > capacity.max_inline => {
                return Err(EngineError::Invalid("the inline data are too long"));
            }
            _ => {}
        }
        if request.op.is_bare() && !request.payload.is_empty() {
            return Err(EngineError::Invalid("the operation takes no payload"));
        }
        if let SendOp::Flush { placement, .. } = request.op
            && placement.rights().is_none()
        {
            return Err(EngineError::Invalid("the flush has no known placement"));
        }
        let fits = match (self.init.kind, &request.op) {
            (
                QpKind::Ud,
                SendOp::Send {
                    invalidate: None, ..
                },
            ) => request.destination.is_some(),
            (QpKind::Ud, _) => false,
            (QpKind::Srd, _) => srd::fits(request, self.init.signal_all),
            (QpKind::Uc, SendOp::Send { invalidate, .. }) => invalidate.is_none(),
            (QpKind::Uc, op) => !op.needs_response(),
            (QpKind::Rc, _) => true,
            (QpKind::XrcSend, op) => {
                let number = request.xrc_srq;
                op.is_local() || number.is_some_and(|number| number <= MAX_SRQ_NUMBER)
            }
            (QpKind::Dci, _) => dc::fits(request),
            (QpKind::XrcRecv | QpKind::Dct, _) => false,
        };
        if fits {
            Ok(())
        } else {
            Err(EngineError::Invalid(
                "the transport lacks the operation, or the address",
            ))
        }
    }

    /// Completes a send request. Success of unsignaled requests makes no completion.
    pub(super) fn complete_send(
        &mut self,
        request: &SendRequest,
        byte_len: u32,
        status: Status,
        ctx: &mut Context<'_>,
    ) {
        self.requester.ended += 1;
        if status == Status::Success && !request.signaled {
            return;
        }
        let op = match request.op {
            SendOp::Send { .. } => CompletionOp::Send,
            SendOp::Write { .. } => CompletionOp::Write,
            SendOp::Read(_) => CompletionOp::Read,
            SendOp::CompareSwap { .. } => CompletionOp::CompareSwap,
            SendOp::FetchAdd { .. } => CompletionOp::FetchAdd,
            SendOp::Flush { .. } => CompletionOp::Flush,
            SendOp::AtomicWrite { .. } => CompletionOp::AtomicWrite,
            SendOp::LocalInvalidate(_) => CompletionOp::LocalInvalidate,
            SendOp::Bind { .. } => CompletionOp::Bind,
        };
        let mut completion = self.completion(request.wr_id, op, status);
        completion.byte_len = byte_len;
        completion.ended = std::mem::take(&mut self.requester.ended);
        completion.late_bytes = self.requester.late_bytes.take();
        if let Some(cq) = self.init.send_cq {
            ctx.resources.complete(cq, completion, false, ctx.now);
        }
    }

    /// Completes the oldest request as flushed. Returns false without a request.
    pub(super) fn flush_send(&mut self, ctx: &mut Context<'_>) -> bool {
        if let Some(request) = self.datagrams.pop() {
            self.complete_send(&request, 0, Status::Flushed, ctx);
            return true;
        }
        let Some(wqe) = self.requester.retire() else {
            return false;
        };
        let is_read = wqe.is_issued && matches!(wqe.request.op, SendOp::Read(_));
        if is_read && ctx.resources.adversary.choose(Rule::Partial, 2) == 1 {
            self.spoil(wqe.sges(), Rule::Partial, ctx);
        }
        self.complete_send(&wqe.request, 0, Status::Flushed, ctx);
        true
    }

    /// Stops the timers of requests that are flushed.
    pub(super) fn stop_timers(&mut self) {
        self.requester.ack_deadline = None;
        self.requester.rnr_until = None;
        self.requester.start_after = None;
        self.datagrams.deadline = None;
    }

    /// Completes the oldest request with an error, and moves the queue pair to the error state, or to SQE if
    /// unreliable.
    pub(super) fn fail_send(&mut self, status: Status, ctx: &mut Context<'_>) {
        if self.state == State::Err {
            // The requests are flushed already, or will be.
            return;
        }
        if let Some(wqe) = self.requester.retire() {
            self.complete_send(&wqe.request, 0, status, ctx);
        }
        match self.init.kind {
            kind if kind.is_reliable() => self.fail(ctx),
            _ => {
                self.state = State::Sqe;
                self.stop_timers();
                while self.flush_send(ctx) {}
            }
        }
    }

    /// Makes the next packet of a request. Returns false if no packet is to be sent now.
    pub(super) fn transmit_request(&mut self, ctx: &mut Context<'_>, out: &mut Outgoing) -> bool {
        while matches!(self.state, State::Rts | State::Sqd)
            && self.requester.rnr_until.is_none()
            && self.requester.start_after.is_none()
        {
            match self.begin(ctx) {
                Started::Local => {}
                Started::Wait => return false,
                Started::Yes => match self.send_packet(ctx, out) {
                    Ok(()) => return true,
                    // Earlier requests complete before the failed one.
                    Err(_) if self.requester.current > 0 => return false,
                    Err(status) => self.fail_send(status, ctx),
                },
                Started::Failed(_) if self.requester.current > 0 => return false,
                Started::Failed(status) => self.fail_send(status, ctx),
            }
        }
        false
    }

    /// Starts the current request, unless already started.
    fn begin(&mut self, ctx: &mut Context<'_>) -> Started {
        let current = self.requester.current;
        let Some(wqe) = self.requester.wqes.get(current) else {
            return Started::Wait;
        };
        let op = wqe.request.op;
        let in_flight = self.requester.next.since(self.requester.unacked);
        if in_flight >= self.max_in_flight && self.init.kind.is_reliable() {
            return Started::Wait;
        }
        if wqe.is_issued {
            if op.is_local() {
                self.requester.current += 1;
                return Started::Local;
            }
            return Started::Yes;
        }
        if op.needs_response() && self.attributes.max_rd_atomic == 0 && self.state != State::Sqd {
            // The request would wait for ever.
            return Started::Failed(Status::LocalOperation);
        }
        if self.must_wait(wqe) || self.is_delayed(ctx) {
            return Started::Wait;
        }
        if op.is_local() {
            return self.do_locally(&op, ctx);
        }
        let Some(wqe) = self.requester.wqes.get(current) else {
            return Started::Wait;
        };
        let (len, mtu) = (wqe.len, self.attributes.mtu);
        if self.init.kind == QpKind::Ud && len > mtu {
            // Not sent, and no error, by the specification (C10-93.1.1). No earlier datagram is unfinished.
            self.complete_oldest(ctx);
            return Started::Local;
        }
        if u64::from(len) > MAX_MESSAGE || (op.is_atomic() && len != 8) {
            return Started::Failed(Status::LocalLength);
        }
        self.connect(wqe.request.destination, ctx);
        let requester = &mut self.requester;
        if let Some(wqe) = requester.wqes.get_mut(current) {
            wqe.first = requester.next;
            wqe.packets = if op.is_atomic() {
                1
            } else {
                len.div_ceil(mtu).max(1)
            };
            wqe.is_issued = true;
            requester.reads_in_flight += u32::from(op.needs_response());
        }
        Started::Yes
    }

    fn must_wait(&self, wqe: &Wqe) -> bool {
        let reads = self.requester.reads_in_flight;
        let max_reads = u32::from(self.attributes.max_rd_atomic);
        let limited = wqe.request.op.needs_response() && reads >= max_reads;
        let fenced = wqe.request.fence && reads > 0;
        limited || fenced || self.awaits_connection(wqe) || self.state == State::Sqd
    }

    /// Executes a request without packets. The completion waits for earlier requests.
    fn do_locally(&mut self, op: &SendOp, ctx: &mut Context<'_>) -> Started {
        let keys = &mut ctx.resources.keys;
        let Some(pd) = self.init.pd else {
            return Started::Failed(Status::LocalOperation);
        };
        let done = match *op {
            SendOp::LocalInvalidate(key) => keys.invalidate(pd, self.num, key),
            SendOp::Bind {
                rkey,
                new_rkey,
                binding,
            } => keys.bind(pd, self.num, (rkey, new_rkey), binding),
            _ => None,
        };
        if done.is_none() {
            return Started::Failed(Status::Bind);
        }
        let requester = &mut self.requester;
        if let Some(wqe) = requester.wqes.get_mut(requester.current) {
            wqe.is_issued = true;
            wqe.first = requester.next;
        }
        requester.current += 1;
        self.retire_local(ctx);
        Started::Local
    }

    /// Completes local requests at the head of the queue.
    pub(super) fn retire_local(&mut self, ctx: &mut Context<'_>) {
        let is_done = |wqe: &Wqe| wqe.is_issued && wqe.request.op.is_local();
        while self.requester.wqes.front().is_some_and(is_done) {
            if let Some(wqe) = self.requester.retire() {
                self.complete_send(&wqe.request, 0, Status::Success, ctx);
            }
        }
        self.note_drained(ctx);
    }

    /// Reports the end of draining, once.
    pub(super) fn note_drained(&mut self, ctx: &mut Context<'_>) {
        let in_flight = self.requester.wqes.front().is_some_and(|wqe| wqe.is_issued);
        let in_flight = in_flight || self.datagrams.has_issued();
        if self.state == State::Sqd && self.requester.is_draining && !in_flight {
            self.requester.is_draining = false;
            if self.attributes.sqd_notify {
                let event = Event::SendQueueDrained(QpNum(self.num));
                ctx.resources.events.push_back(event);
            }
        }
    }

    /// Makes the next packet of the current request.
    fn send_packet(&mut self, ctx: &mut Context<'_>, out: &mut Outgoing) -> Result<(), Status> {
        let requester = &self.requester;
        let Some(wqe) = requester.wqes.get(requester.current) else {
            return Ok(());
        };
        let (sent, mtu) = (requester.sent, self.attributes.mtu);
        let rest = sent
            .checked_mul(mtu)
            .and_then(|done| wqe.len.checked_sub(done));
        let rest = rest.unwrap_or(0);
        let packets = wqe.packets - sent;
        let carries = !wqe.request.op.needs_response();
        let count = self.run(wqe, sent, out.max_count);
        let len = if carries { rest.min(mtu * count) } else { 0 };
        let range = (
            u64::from(wqe.len - rest),
            u64::from(if carries { len } else { rest }),
        );
        let head = self.head(wqe, sent, rest).ok_or(Status::LocalOperation)?;
        let pd = self.init.pd.ok_or(Status::LocalOperation)?;
        out.clear();
        match (&wqe.request.payload, &wqe.request.op) {
            (_, SendOp::AtomicWrite { value, .. }) => out.bytes.extend_from_slice(value),
            (Payload::Inline(bytes), _) => {
                let start = (wqe.len - rest) as usize;
                let part = bytes.get(start..start + len as usize);
                out.bytes
                    .extend_from_slice(part.ok_or(Status::LocalOperation)?);
            }
            (Payload::Sges(sges), _) => {
                // The memory for a response is checked before the request is sent.
                let (keys, ranges) = (&ctx.resources.keys, &mut out.ranges);
                if !transfer::resolve(keys, pd, sges, range, !carries, ranges) {
                    return Err(Status::LocalProtection);
                }
                if !carries {
                    ranges.clear();
                }
            }
        }
        if !self.emit(&head, out) {
            return Err(Status::LocalOperation);
        }
        out.set_count(count);
        self.packet_sent(if carries { count } else { packets }, ctx);
        Ok(())
    }

    /// Number of next frames to be handed over as one packet, at most `max`: new middle packets of a message without an
    /// acknowledgement request.
    fn run(&self, wqe: &Wqe, sent: u32, max: u32) -> u32 {
        let requester = &self.requester;
        let is_new = requester.next == requester.newest;
        let answers = wqe.request.op.needs_response();
        if sent == 0 || answers || !is_new || !self.init.kind.is_reliable() {
            return 1;
        }
        let in_flight = requester.next.since(requester.unacked);
        let window = self.max_in_flight.saturating_sub(in_flight);
        let quiet = ACK_INTERVAL - 1 - requester.next.get() % ACK_INTERVAL;
        let before_last = wqe.packets - sent - 1;
        max.min(window).min(quiet).min(before_last).max(1)
    }

    fn packet_sent(&mut self, packets: u32, ctx: &mut Context<'_>) {
        let requester = &mut self.requester;
        requester.next = requester.next.plus(packets);
        requester.sent += packets;
        let done = requester.wqes.get(requester.current);
        if done.is_some_and(|wqe| requester.sent >= wqe.packets) {
            requester.current += 1;
            requester.sent = 0;
        }
        if requester.newest.is_before(requester.next) {
            requester.newest = requester.next;
        }
        if self.init.kind.is_reliable() {
            if requester.ack_deadline.is_none() {
                requester.restart_timer(ctx.now, &self.attributes);
            }
        } else if requester.current > 0 {
            // An unreliable request is done when all of its packets are sent.
            requester.unacked = requester.next;
            if let Some(wqe) = requester.retire() {
                self.complete_send(&wqe.request, wqe.len, Status::Success, ctx);
            }
            self.retire_local(ctx);
        }
    }

    /// Headers of packet number `sent` of a request, with `rest` bytes of the message left.
    fn head(&self, wqe: &Wqe, sent: u32, rest: u32) -> Option<Head> {
        let request = &wqe.request;
        let is_last = sent + 1 == wqe.packets;
        let (operation, mut extensions) = operation(wqe, sent, rest)?;
        let xrc_srq = request.xrc_srq;
        extensions.xrc_srq = xrc_srq.filter(|_| self.init.kind == QpKind::XrcSend);
        extensions.dc = self.connection_header();
        let answers = request.op.needs_response();
        let psn = self.requester.next;
        let interval = psn.get() % ACK_INTERVAL == ACK_INTERVAL - 1;
        let head = Head {
            path: self
                .attributes
                .path
                .or(request.destination.map(|to| to.path))?,
            dest_qp: self.attributes.dest_qp,
            operation,
            psn,
            solicited: request.solicited && is_last && completes_at_peer(&request.op),
            ack_request: self.init.kind.is_reliable() && (is_last || interval || answers),
            extensions,
        };
        match (self.init.kind, request.destination) {
            (QpKind::Ud, Some(to)) => Some(self.addressed(head, &to)),
            (QpKind::Ud, None) => None,
            _ => Some(head),
        }
    }

    /// Completes the headers of a datagram for the destination.
    pub(super) fn addressed(&self, head: Head, to: &Destination) -> Head {
        // The highest bit of a Q_Key selects the Q_Key of the queue pair.
        let qkey = match u32::try_from(to.key) {
            Ok(qkey) if qkey >> 31 == 0 => qkey,
            _ => self.attributes.qkey,
        };
        Head {
            path: to.path,
            dest_qp: to.qp,
            extensions: Extensions {
                deth: Some(Deth {
                    qkey,
                    src_qp: self.num,
                }),
                ..head.extensions
            },
            ..head
        }
    }

    /// Processes expired timers: ends an RNR delay, or retransmits after an acknowledgement timeout.
    pub(in crate::engine) fn handle_timeout(&mut self, ctx: &mut Context<'_>) {
        self.responder.release_replies(ctx.now);
        self.targets.release_replies(ctx.now);
        self.flush_late(ctx);
        if self.state == State::Err {
            return;
        }
        self.retry_datagrams(ctx);
        let requester = &mut self.requester;
        if requester.start_after.is_some_and(|at| at <= ctx.now) {
            requester.start_after = None;
        }
        if requester.rnr_until.is_some_and(|until| until <= ctx.now) {
            requester.rnr_until = None;
            requester.restart_timer(ctx.now, &self.attributes);
        }
        if requester
            .ack_deadline
            .is_some_and(|deadline| deadline <= ctx.now)
        {
            requester.resent_from = None;
            self.retry(ctx);
        }
    }

    /// Retransmits from the oldest unacknowledged packet, or fails the request without retries left.
    pub(super) fn retry(&mut self, ctx: &mut Context<'_>) {
        let requester = &mut self.requester;
        match requester.retries_left.checked_sub(1) {
            Some(retries) => {
                requester.retries_left = retries;
                requester.go_to(requester.unacked);
                requester.restart_timer(ctx.now, &self.attributes);
            }
            None => self.fail_send(Status::RetryExceeded, ctx),
        }
    }

    /// Delays and retransmits after an RNR NAK, or fails the request without retries left.
    pub(super) fn wait_for_receiver(&mut self, delay: Duration, ctx: &mut Context<'_>) {
        let requester = &mut self.requester;
        let for_ever = self.attributes.rnr_retry == RETRY_FOR_EVER;
        match requester.rnr_retries_left.checked_sub(1) {
            None if !for_ever => self.fail_send(Status::RnrRetryExceeded, ctx),
            retries => {
                if !for_ever {
                    requester.rnr_retries_left = retries.unwrap_or(0);
                }
                requester.go_to(requester.unacked);
                requester.rnr_until = Some(ctx.now + delay);
                requester.restart_timer(ctx.now, &self.attributes);
            }
        }
    }
}

/// Whether the peer's completion queue gets a completion of the operation.
fn completes_at_peer(op: &SendOp) -> bool {
    matches!(op, SendOp::Send { .. } | SendOp::Write { imm: Some(_), .. })
}

/// Operation and extension headers of a packet, without the datagram header; `None` for requests without packets.
fn operation(wqe: &Wqe, sent: u32, rest: u32) -> Option<(Operation, Extensions)> {
    let is_last = sent + 1 == wqe.packets;
    let position = Position::of(sent == 0, is_last);
    let done = u64::from(wqe.len - rest);
    let mut extensions = Extensions::default();
    let reth = |remote: Remote, len| Reth {
        addr: remote.addr.wrapping_add(done),
        rkey: remote.rkey,
        len,
    };
    let operation = match wqe.request.op {
        SendOp::Send { imm, invalidate } => {
            extensions.imm = imm.filter(|_| is_last);
            extensions.invalidate = invalidate.filter(|_| is_last);
            Operation::Send(position, immediate(&extensions))
        }
        SendOp::Write { remote, imm } => {
            extensions.reth = (sent == 0).then(|| reth(remote, wqe.len));
            extensions.imm = imm.filter(|_| is_last);
            Operation::Write(position, immediate(&extensions))
        }
        SendOp::Read(remote) => {
            extensions.reth = Some(reth(remote, rest));
            Operation::ReadRequest
        }
        SendOp::CompareSwap {
            remote,
            compare,
            swap,
        } => {
            extensions.atomic = Some(atomic(remote, swap, compare));
            Operation::CompareSwap
        }
        SendOp::FetchAdd { remote, add } => {
            extensions.atomic = Some(atomic(remote, add, 0));
            Operation::FetchAdd
        }
        SendOp::Flush {
            remote,
            len,
            placement,
            whole_region,
        } => {
            extensions.feth = Some(Feth {
                placement: placement.0,
                selectivity: u8::from(whole_region),
            });
            extensions.reth = Some(reth(remote, len));
            Operation::Flush
        }
        SendOp::AtomicWrite { remote, .. } => {
            extensions.reth = Some(reth(remote, wqe.len));
            Operation::AtomicWrite
        }
        SendOp::LocalInvalidate(_) | SendOp::Bind { .. } => return None,
    };
    Some((operation, extensions))
}

fn immediate(extensions: &Extensions) -> Immediate {
    match (extensions.imm, extensions.invalidate) {
        (Some(_), _) => Immediate::Data,
        (None, Some(_)) => Immediate::Invalidate,
        (None, None) => Immediate::None,
    }
}

fn atomic(remote: Remote, swap_add: u64, compare: u64) -> AtomicEth {
    AtomicEth {
        addr: remote.addr,
        rkey: remote.rkey,
        swap_add,
        compare,
    }
}
