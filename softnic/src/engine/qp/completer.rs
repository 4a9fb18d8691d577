//! The completer: processes the peer's acknowledgements and responses, and completes requests in order.

use super::{QpKind, QueuePair, State, late::MAX_POLLED, requester::Wqe};
use crate::{
    adversary::Rule,
    engine::{
        completion::Status,
        packet::{Content, Packet},
        psn::Psn,
        request::SendOp,
        resources::Context,
        rnr::rnr_delay,
    },
    wire::{Nak, Operation, Position, Syndrome},
};

/// One request in this number fails after its effect, by an adversary.
const FAILED: u64 = 64;

impl QueuePair {
    /// Processes an acknowledgement or a response.
    pub(super) fn receive_response(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        ctx: &mut Context<'_>,
    ) {
        let psn = Psn::new(packet.frame.bth.psn);
        let is_expected =
            !psn.is_before(self.requester.unacked) && psn.is_before(self.requester.newest);
        if !is_expected || !matches!(self.state, State::Rts | State::Sqd) {
            return;
        }
        let extensions = &packet.frame.extensions;
        if let (Operation::Acknowledge, Some(aeth)) = (operation, extensions.aeth) {
            return self.receive_acknowledgement(psn, aeth.syndrome, ctx);
        }
        // A response acknowledges all packets before it.
        if !self.acknowledge(psn, ctx) || self.state == State::Err {
            return;
        }
        match (operation, extensions.atomic_ack) {
            (Operation::ReadResponse(Position::Only), _) if self.awaits_empty_response() => {
                self.receive_empty(packet.payload, ctx);
            }
            (Operation::ReadResponse(position), _) => {
                self.receive_read(position, packet.payload, ctx);
            }
            (Operation::AtomicAcknowledge, Some(original)) => self.receive_atomic(original, ctx),
            _ => {}
        }
    }

    fn receive_acknowledgement(&mut self, psn: Psn, syndrome: Syndrome, ctx: &mut Context<'_>) {
        let status = match syndrome {
            Syndrome::Ack(_) => {
                self.acknowledge(psn.plus(1), ctx);
                return;
            }
            Syndrome::Reserved(_) => return,
            Syndrome::RnrNak(timer) => {
                // A duplicate of an RNR NAK counts no retry.
                if self.requester.rnr_until.is_none() && self.acknowledge(psn, ctx) {
                    self.wait_for_receiver(rnr_delay(timer), ctx);
                }
                return;
            }
            Syndrome::Nak(Nak::SequenceError) => {
                if self.acknowledge(psn, ctx) && self.requester.resent_from != Some(psn) {
                    self.requester.resent_from = Some(psn);
                    self.retry(ctx);
                }
                return;
            }
            Syndrome::Nak(Nak::InvalidRequest) => Status::RemoteInvalidRequest,
            Syndrome::Nak(Nak::RemoteAccess) => Status::RemoteAccess,
            Syndrome::Nak(Nak::RemoteOperation) => Status::RemoteOperation,
        };
        if self.acknowledge(psn, ctx) {
            self.fail_send(status, ctx);
        }
    }

    /// Completes the requests before a packet. If the response of one of them is missing, requests that response again,
    /// and returns false.
    fn acknowledge(&mut self, end: Psn, ctx: &mut Context<'_>) -> bool {
        let before = self.requester.unacked;
        let mut is_complete = true;
        while let Some(front) = self.requester.wqes.front() {
            if front.request.op.is_local() && front.is_issued {
                self.retire_local(ctx);
                continue;
            }
            if !front.is_issued || !front.first.is_before(end) {
                break;
            }
            if front.request.op.needs_response() {
                is_complete = !self.requester.unacked.is_before(end);
                break;
            }
            if end.is_before(front.end()) {
                if self.requester.unacked.is_before(end) {
                    self.requester.unacked = end;
                }
                break;
            }
            self.requester.unacked = front.end();
            self.complete_oldest(ctx);
            if self.state == State::Err {
                break;
            }
        }
        if self.requester.unacked != before {
            self.note_progress(ctx);
        }
        let unacked = self.requester.unacked;
        if !is_complete && self.requester.resent_from != Some(unacked) {
            self.requester.resent_from = Some(unacked);
            self.requester.go_to(unacked);
            self.requester.restart_timer(ctx.now, &self.attributes);
        }
        is_complete
    }

    /// Completes the oldest request successfully. An adversary may fail the request after its effect.
    pub(super) fn complete_oldest(&mut self, ctx: &mut Context<'_>) {
        let fails = self.init.kind == QpKind::Rc
            && ctx.resources.adversary.choose(Rule::FailedButDone, FAILED) == 1;
        if fails {
            return self.fail_send(Status::RetryExceeded, ctx);
        }
        if let Some(wqe) = self.requester.retire() {
            self.complete_send(&wqe.request, wqe.len, Status::Success, ctx);
        }
        self.retire_local(ctx);
    }

    fn note_progress(&mut self, ctx: &mut Context<'_>) {
        self.requester.restore_retries(&self.attributes);
        self.requester.restart_timer(ctx.now, &self.attributes);
        self.requester.skip_acknowledged();
    }

    /// Processes the next packet of the response to the oldest request, a read.
    fn receive_read(&mut self, position: Position, payload: Content<'_>, ctx: &mut Context<'_>) {
        let Some(wqe) = self.requester.wqes.front() else {
            return;
        };
        let index = self.requester.unacked.since(wqe.first);
        let offset = index.checked_mul(self.attributes.mtu);
        let rest = offset.and_then(|offset| wqe.len.checked_sub(offset));
        let (Some(rest), SendOp::Read(_)) = (rest, wqe.request.op) else {
            return self.fail_send(Status::BadResponse, ctx);
        };
        let is_last = index + 1 == wqe.packets;
        let expected = rest.min(self.attributes.mtu) as usize;
        if payload.len() != expected || position.ends() != is_last {
            return self.fail_send(Status::BadResponse, ctx);
        }
        let offset = u64::from(wqe.len - rest);
        if !self.defer_response(payload, ctx) && !self.scatter_response(offset, payload, ctx) {
            return self.fail_send(Status::LocalProtection, ctx);
        }
        self.requester.unacked = self.requester.unacked.plus(1);
        if is_last {
            self.complete_oldest(ctx);
        }
        self.note_progress(ctx);
    }

    /// Whether the response to the oldest request is an empty read response.
    fn awaits_empty_response(&self) -> bool {
        let oldest = self.requester.wqes.front().map(|wqe| wqe.request.op);
        matches!(
            oldest,
            Some(SendOp::Flush { .. } | SendOp::AtomicWrite { .. })
        )
    }

    /// Processes the response to the oldest request, a flush or an atomic write.
    fn receive_empty(&mut self, payload: Content<'_>, ctx: &mut Context<'_>) {
        let end = self.requester.wqes.front().map(Wqe::end);
        let Some(end) = end.filter(|_| payload.is_empty()) else {
            return self.fail_send(Status::BadResponse, ctx);
        };
        self.requester.unacked = end;
        self.complete_oldest(ctx);
        self.note_progress(ctx);
    }

    /// Processes the response to the oldest request, an atomic operation.
    fn receive_atomic(&mut self, original: u64, ctx: &mut Context<'_>) {
        let Some(wqe) = self.requester.wqes.front() else {
            return;
        };
        if !wqe.request.op.is_atomic() {
            return self.fail_send(Status::BadResponse, ctx);
        }
        let (end, bytes) = (wqe.end(), original.to_ne_bytes());
        let content = Content::Bytes(&bytes);
        if !self.defer_response(content, ctx) && !self.scatter_response(0, content, ctx) {
            return self.fail_send(Status::LocalProtection, ctx);
        }
        self.requester.unacked = end;
        self.complete_oldest(ctx);
        self.note_progress(ctx);
    }

    /// Copies response data to the memory of the oldest request. Returns false if a key does not allow the access.
    fn scatter_response(&self, offset: u64, from: Content<'_>, ctx: &mut Context<'_>) -> bool {
        let (Some(wqe), Some(pd)) = (self.requester.wqes.front(), self.init.pd) else {
            return false;
        };
        // Later requests may read the bytes.
        if self.requester.wqes.len() > 1 {
            return ctx.scatter(pd, wqe.sges(), offset, from);
        }
        self.scatter((pd, wqe.sges()), offset, from, ctx)
    }

    /// Takes a short response of the oldest request, to be written at the poll of its completion. Returns false if the bytes
    /// are to be written now: a later request may read them.
    fn defer_response(&mut self, from: Content<'_>, ctx: &mut Context<'_>) -> bool {
        let is_short = (1..=MAX_POLLED).contains(&from.len());
        let is_last = self.requester.wqes.len() == 1;
        if !is_short || !is_last || ctx.resources.adversary.choose(Rule::PollWrites, 2) == 0 {
            return false;
        }
        let (Some(wqe), Some(pd)) = (self.requester.wqes.front(), self.init.pd) else {
            return false;
        };
        if !wqe.request.signaled || wqe.len as usize != from.len() {
            return false;
        }
        let late_bytes = self.defer(pd, wqe.sges(), from, ctx);
        self.requester.late_bytes = late_bytes;
        late_bytes.is_some()
    }
}
