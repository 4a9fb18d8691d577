//! Reliable datagrams: each request names its destination, arrives once, and completes in any order.
//!
//! The wire format of cards is not public. These are softnic's own frames, with opcodes that InfiniBand leaves to
//! manufacturers. A message is sent in packets of one MTU; a packet is a write, a read or a whole send, has a number of its own,
//! and is answered by an acknowledgement or by the bytes read. An unanswered packet is sent again. The receiver keeps the
//! numbers of the packets that it has executed. Immediate data come with the last bytes of a write, in a packet that names the
//! memory of the whole write.

use std::{collections::VecDeque, time::Duration};

use super::{
    Head, QueuePair, State,
    delivered::{Delivered, Earlier, WINDOW},
};
use crate::{
    adversary::Rule,
    engine::{
        access::Access,
        completion::{CompletionOp, Status},
        packet::{Outgoing, Packet},
        path::Path,
        psn::Psn,
        request::{Payload, Remote, SendOp, SendRequest, Sge},
        resources::{Context, Target},
        rnr::rnr_delay,
        transfer::{self, total_len},
    },
    wire::{
        Aeth, Bth, Deth, Extensions, Frame, Immediate, Nak, Opcode, Operation, Position, Reth,
        Syndrome, Transport,
    },
};

/// Maximum length of an RDMA write or read in bytes.
pub const MAX_RDMA: u32 = 1 << 20;

/// Maximum number of answers to be sent. Packets beyond are dropped, and sent again by their sender.
const MAX_REPLIES: usize = 1024;

/// Interval between two attempts of a packet.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Number of attempts after the first one without an answer.
const RETRIES: u8 = 7;

/// Code of the delay requested by a receiver without a receive: 640 µs.
const RNR_TIMER: u8 = 12;

/// The answer to a packet without a receive.
const NOT_READY: Syndrome = Syndrome::RnrNak(RNR_TIMER);

/// Value of `rnr_retry` for unlimited retries.
const RETRY_FOR_EVER: u8 = 7;

/// The oldest messages with a packet to be sent, one of which is chosen by an adversary.
const MAX_OVERTAKEN: usize = 4;

/// Messages in flight to, and numbers received from, any number of peers.
#[derive(Debug, Default)]
pub(in crate::engine) struct Datagrams {
    /// Messages without a completion, in posting order.
    messages: VecDeque<SrdMessage>,
    /// Number of the next new packet.
    pub(in crate::engine) next: Psn,
    /// Whether a packet may be ready to be sent.
    may_send: bool,
    replies: VecDeque<SrdReply>,
    delivered: Delivered,
    /// Time of the next retry; may be earlier than any.
    pub(super) deadline: Option<Duration>,
}

#[derive(Debug)]
struct SrdMessage {
    request: SendRequest,
    len: u32,
    /// Number of the first packet; valid once there are `packets`.
    first: Psn,
    packets: Vec<Progress>,
    /// Number of attempts to come without an answer.
    retries: u8,
    /// Number of attempts to come without a receive.
    rnr_retries: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Unsent,
    /// Sent, or refused for lack of a receive, and sent again at this time.
    Waiting(Duration),
    Answered,
}

#[derive(Debug)]
struct SrdReply {
    path: Path,
    dest_qp: u32,
    psn: Psn,
    content: SrdAnswer,
}

#[derive(Clone, Copy, Debug)]
enum SrdAnswer {
    Acknowledge(Syndrome),
    Read(Target, Reth),
}

impl Datagrams {
    /// The state after a reset. Numbers are not reused: peers have recorded the old ones.
    pub(super) fn reset(&mut self) {
        *self = Self {
            next: self.next,
            ..Self::default()
        };
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn has_work(&self) -> bool {
        self.may_send || !self.replies.is_empty()
    }

    pub(super) fn has_issued(&self) -> bool {
        self.messages.iter().any(|message| message.is_issued())
    }

    /// The requests that have no completion, with the elements of each.
    pub(super) fn elements(&self) -> impl Iterator<Item = (u64, &[Sge])> {
        let messages = self.messages.iter();
        messages.map(|message| (message.request.wr_id, message.sges()))
    }

    pub(super) fn push(&mut self, request: SendRequest, len: u32, rnr_retry: u8) {
        self.may_send = true;
        self.messages.push_back(SrdMessage {
            request,
            len,
            first: Psn::default(),
            packets: Vec::new(),
            retries: RETRIES,
            rnr_retries: rnr_retry,
        });
    }

    /// Takes the oldest message.
    pub(super) fn pop(&mut self) -> Option<SendRequest> {
        Some(self.messages.pop_front()?.request)
    }

    fn wake_at(&mut self, at: Duration) {
        self.deadline = Some(self.deadline.map_or(at, |deadline| deadline.min(at)));
    }

    /// The messages with a packet to be sent, and this packet; the oldest first.
    fn ready(&self, may_start: bool, mtu: u32) -> Vec<(usize, usize)> {
        let issued = self.messages.iter().filter(|message| message.is_issued());
        let span = issued.map(|message| self.next.since(message.first)).max();
        let window = WINDOW - span.unwrap_or(0).min(WINDOW);
        let messages = self.messages.iter().enumerate();
        let ready = messages.filter_map(|(index, message)| {
            if message.is_issued() {
                return Some((index, message.ready()?));
            }
            (may_start && message.count(mtu) <= window).then_some((index, 0))
        });
        ready.take(MAX_OVERTAKEN).collect()
    }

    /// The message of a packet's answer, and the packet.
    fn answered(&self, packet: &Packet<'_>, from: u32) -> Option<(usize, usize)> {
        let psn = Psn::new(packet.frame.bth.psn);
        let index = self.messages.iter().position(|message| {
            let to = message.request.destination;
            let is_peer =
                to.is_some_and(|to| to.qp == from && to.path.dst == packet.frame.ip.src());
            is_peer && (psn.since(message.first) as usize) < message.packets.len()
        })?;
        let part = psn.since(self.messages.get(index)?.first) as usize;
        Some((index, part))
    }
}

impl SrdMessage {
    fn is_issued(&self) -> bool {
        !self.packets.is_empty()
    }

    fn is_answered(&self) -> bool {
        self.packets
            .iter()
            .all(|packet| *packet == Progress::Answered)
    }

    fn sges(&self) -> &[Sge] {
        match &self.request.payload {
            Payload::Sges(sges) => sges,
            Payload::Inline(_) => &[],
        }
    }

    /// Number of packets.
    fn count(&self, mtu: u32) -> u32 {
        self.len.min(MAX_RDMA).div_ceil(mtu).max(1)
    }

    /// The first packet to be sent. Immediate data come with the last packet, after all others are answered.
    fn ready(&self) -> Option<usize> {
        let is_unsent = |packet: &Progress| *packet == Progress::Unsent;
        let index = self.packets.iter().position(is_unsent)?;
        let has_imm = matches!(self.request.op, SendOp::Write { imm: Some(_), .. });
        let others = self.packets.get(..self.packets.len() - 1)?;
        let waits = has_imm
            && index == others.len()
            && !others.iter().all(|packet| *packet == Progress::Answered);
        (!waits).then_some(index)
    }
}

impl QueuePair {
    /// Makes the next packet of a queue pair of reliable datagrams. Returns false if no packet is to be sent now.
    pub(super) fn transmit_datagram(&mut self, ctx: &mut Context<'_>, out: &mut Outgoing) -> bool {
        while let Some(reply) = self.datagrams.replies.pop_front() {
            if self.send_reply(&reply, ctx, out) {
                return true;
            }
        }
        while matches!(self.state, State::Rts | State::Sqd) {
            let ready = (self.datagrams).ready(self.state == State::Rts, self.attributes.mtu);
            let count = ready.len().max(1) as u64;
            let chosen = ctx.resources.adversary.choose(Rule::Unfenced, count);
            let chosen = usize::try_from(chosen).unwrap_or(0);
            let Some((index, part)) = ready.get(chosen).copied() else {
                break;
            };
            match self.send_part(index, part, ctx, out) {
                Ok(()) => return true,
                Err(status) => self.end_message(index, status, ctx),
            }
        }
        self.datagrams.may_send = false;
        false
    }

    /// Makes a packet of a message.
    fn send_part(
        &mut self,
        index: usize,
        part: usize,
        ctx: &mut Context<'_>,
        out: &mut Outgoing,
    ) -> Result<(), Status> {
        let (mtu, next) = (self.attributes.mtu, self.datagrams.next);
        let message = (self.datagrams.messages.get_mut(index)).ok_or(Status::LocalOperation)?;
        let is_send = matches!(message.request.op, SendOp::Send { .. });
        if message.len > if is_send { mtu } else { MAX_RDMA } {
            return Err(Status::LocalLength);
        }
        if !message.is_issued() {
            let count = message.count(mtu);
            message.first = next;
            message.packets = vec![Progress::Unsent; count as usize];
            self.datagrams.next = next.plus(count);
        }
        let number = u32::try_from(part).unwrap_or(0);
        let start = number * mtu;
        let len = (message.len - start).min(mtu);
        let is_last = part + 1 == message.packets.len();
        let to = message.request.destination.ok_or(Status::LocalOperation)?;
        let (operation, extensions) = operation(&message.request.op, (start, len), is_last)?;
        let head = Head {
            path: to.path,
            dest_qp: to.qp,
            operation,
            psn: message.first.plus(number),
            solicited: false,
            ack_request: true,
            extensions,
        };
        let carries = !matches!(operation, Operation::ReadRequest);
        let pd = self.init.pd.ok_or(Status::LocalOperation)?;
        out.clear();
        let range = (u64::from(start), u64::from(len));
        match &message.request.payload {
            Payload::Inline(bytes) => {
                let part = bytes.get(start as usize..(start + len) as usize);
                (out.bytes).extend_from_slice(part.ok_or(Status::LocalOperation)?);
            }
            Payload::Sges(sges) => {
                let (keys, ranges) = (&ctx.resources.keys, &mut out.ranges);
                if !transfer::resolve(keys, pd, sges, range, !carries, ranges) {
                    return Err(Status::LocalProtection);
                }
                if !carries {
                    ranges.clear();
                }
            }
        }
        if let Some(progress) = message.packets.get_mut(part) {
            *progress = Progress::Waiting(ctx.now + RETRY_AFTER);
        }
        self.datagrams.wake_at(ctx.now + RETRY_AFTER);
        let head = self.addressed(head, &to);
        if self.emit(&head, out) {
            Ok(())
        } else {
            Err(Status::LocalOperation)
        }
    }

    /// Makes the packet of a reply. Returns false for a read that is not allowed any more, which is refused.
    fn send_reply(&mut self, reply: &SrdReply, ctx: &mut Context<'_>, out: &mut Outgoing) -> bool {
        out.clear();
        let mut syndrome = Aeth::ack(0).syndrome;
        let operation = match reply.content {
            SrdAnswer::Acknowledge(answer) => {
                syndrome = answer;
                Operation::Acknowledge
            }
            SrdAnswer::Read(target, reth) => {
                let range = (0, u64::from(reth.len));
                let access = Access::REMOTE_READ;
                match self.remote(target.pd, &reth, range, access, ctx) {
                    Some(range) => out.ranges.push(range),
                    None if reth.len == 0 => {}
                    None => syndrome = Syndrome::Nak(Nak::RemoteAccess),
                }
                Operation::ReadResponse(Position::Only)
            }
        };
        let refused = matches!(syndrome, Syndrome::Nak(_));
        let head = Head {
            path: reply.path,
            dest_qp: reply.dest_qp,
            operation: if refused {
                Operation::Acknowledge
            } else {
                operation
            },
            psn: reply.psn,
            solicited: false,
            ack_request: false,
            extensions: answer(syndrome, self.num),
        };
        self.emit(&head, out)
    }

    /// Processes a packet of reliable datagrams.
    pub(super) fn receive_reliable_datagram(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        ctx: &mut Context<'_>,
    ) {
        let Some(deth) = packet.frame.extensions.deth else {
            return;
        };
        let is_answer = matches!(
            operation,
            Operation::Acknowledge | Operation::ReadResponse(_)
        );
        if is_answer {
            if matches!(self.state, State::Rts | State::Sqd) {
                self.receive_answer(packet, deth.src_qp, operation, ctx);
            }
            return;
        }
        if self.datagrams.replies.len() >= MAX_REPLIES {
            return;
        }
        let psn = Psn::new(packet.frame.bth.psn);
        let from = (packet.frame.ip.src(), deth.src_qp);
        let target = self.target(packet, ctx);
        let is_allowed = self.receives() && deth.qkey == self.attributes.qkey;
        let refused = |nak| SrdAnswer::Acknowledge(Syndrome::Nak(nak));
        let content = match (target.filter(|_| is_allowed), operation) {
            (None, _) => refused(Nak::RemoteOperation),
            (Some(target), Operation::ReadRequest) => match packet.frame.extensions.reth {
                Some(reth) if reth.len <= self.attributes.mtu => SrdAnswer::Read(target, reth),
                _ => refused(Nak::InvalidRequest),
            },
            (Some(target), _) => {
                let answer = match self.datagrams.delivered.earlier(from, psn, ctx.now) {
                    Earlier::Unrecorded => return,
                    Earlier::Executed(answer) => answer,
                    Earlier::Unexecuted => {
                        let done = self.execute_datagram(packet, operation, target, ctx);
                        if let Ok(answer) = done {
                            let delivered = &mut self.datagrams.delivered;
                            delivered.record(from, psn, answer, ctx.now);
                        }
                        done.unwrap_or_else(|refused| refused)
                    }
                };
                SrdAnswer::Acknowledge(answer)
            }
        };
        self.datagrams.replies.push_back(SrdReply {
            path: Path::new(packet.frame.ip.dst(), packet.frame.ip.src()),
            dest_qp: deth.src_qp,
            psn,
            content,
        });
    }

    /// Executes a send or a write. Returns the answer, to be repeated for later copies; the error is the answer to a packet
    /// without an effect.
    fn execute_datagram(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        target: Target,
        ctx: &mut Context<'_>,
    ) -> Result<Syndrome, Syndrome> {
        const ACK: Result<Syndrome, Syndrome> = Ok(Syndrome::Ack(0));
        let extensions = &packet.frame.extensions;
        let len = packet.payload.len() as u64;
        let (op, byte_len) = match (operation, extensions.reth) {
            (Operation::Send(..), _) => (CompletionOp::Receive, len),
            (Operation::Write(..), Some(reth)) => {
                if extensions.imm.is_some() && !self.has_receive(target, ctx) {
                    return Err(NOT_READY);
                }
                self.execute_write(packet, &reth, target, ctx)?;
                if extensions.imm.is_none() {
                    return ACK;
                }
                (CompletionOp::ReceiveWrite, reth.len.into())
            }
            _ => return Err(Syndrome::Nak(Nak::InvalidRequest)),
        };
        let recv = self.take_receive(target, ctx).ok_or(NOT_READY)?;
        if op == CompletionOp::Receive {
            let status = if len > total_len(&recv.sges) {
                Status::LocalLength
            } else if self.scatter((target.recv_pd, &recv.sges), 0, packet.payload, ctx) {
                Status::Success
            } else {
                Status::LocalProtection
            };
            if status != Status::Success {
                self.fail_receive(recv.wr_id, status, target.cq, ctx);
                return Ok(Syndrome::Nak(Nak::InvalidRequest));
            }
        }
        let mut completion = self.completion(recv.wr_id, op, Status::Success);
        completion.byte_len = u32::try_from(byte_len).unwrap_or(u32::MAX);
        completion.imm = extensions.imm;
        completion.src_qp = extensions.deth.map_or(0, |deth| deth.src_qp);
        completion.src = Some(packet.frame.ip.src());
        ctx.resources
            .complete(target.cq, completion, false, ctx.now);
        ACK
    }

    /// Writes the payload of a packet to the end of the memory that the packet names.
    fn execute_write(
        &self,
        packet: &Packet<'_>,
        reth: &Reth,
        target: Target,
        ctx: &mut Context<'_>,
    ) -> Result<(), Syndrome> {
        let len = packet.payload.len();
        let has_imm = packet.frame.extensions.imm.is_some();
        let earlier = (reth.len as usize).checked_sub(len);
        let earlier = earlier
            .filter(|earlier| *earlier == 0 || has_imm && reth.len <= MAX_RDMA)
            .ok_or(Syndrome::Nak(Nak::InvalidRequest))?;
        if reth.len > 0 {
            let range = (0, reth.len.into());
            let to = self.remote(target.pd, reth, range, Access::REMOTE_WRITE, ctx);
            let to = to.ok_or(Syndrome::Nak(Nak::RemoteAccess))?;
            transfer::scatter(ctx.memory, &[to.part(earlier, len)], packet.payload);
        }
        Ok(())
    }

    /// Processes the answer to a packet.
    fn receive_answer(
        &mut self,
        packet: &Packet<'_>,
        from: u32,
        operation: Operation,
        ctx: &mut Context<'_>,
    ) {
        let Some((index, part)) = self.datagrams.answered(packet, from) else {
            return;
        };
        let (Some(message), Some(aeth)) = (
            self.datagrams.messages.get(index),
            packet.frame.extensions.aeth,
        ) else {
            return;
        };
        if message.packets.get(part) == Some(&Progress::Answered) {
            return;
        }
        let is_read = matches!(message.request.op, SendOp::Read(_));
        let status = match aeth.syndrome {
            Syndrome::RnrNak(timer) => return self.wait_for_receive(index, part, timer, ctx),
            Syndrome::Nak(Nak::InvalidRequest) => Status::RemoteInvalidRequest,
            Syndrome::Nak(Nak::RemoteAccess) => Status::RemoteAccess,
            Syndrome::Nak(Nak::RemoteOperation) => Status::RemoteDestination,
            Syndrome::Nak(Nak::SequenceError) | Syndrome::Reserved(_) => return,
            Syndrome::Ack(_) if is_read != matches!(operation, Operation::ReadResponse(_)) => {
                Status::BadResponse
            }
            Syndrome::Ack(_) => {
                let start = u64::from(self.attributes.mtu) * part as u64;
                let rest = u64::from(message.len).saturating_sub(start);
                let expected = rest.min(self.attributes.mtu.into());
                match self.init.pd {
                    _ if !is_read => Status::Success,
                    Some(_) if packet.payload.len() as u64 != expected => Status::BadResponse,
                    Some(pd) if self.scatter((pd, message.sges()), start, packet.payload, ctx) => {
                        Status::Success
                    }
                    _ => Status::LocalProtection,
                }
            }
        };
        self.answered(index, part, status, ctx);
    }

    /// Records the answer to a packet, and completes the message after the last one or a failure.
    fn answered(&mut self, index: usize, part: usize, status: Status, ctx: &mut Context<'_>) {
        let Some(message) = self.datagrams.messages.get_mut(index) else {
            return;
        };
        message.retries = RETRIES;
        if let Some(progress) = message.packets.get_mut(part) {
            *progress = Progress::Answered;
        }
        if status != Status::Success || message.is_answered() {
            self.end_message(index, status, ctx);
        }
        self.datagrams.may_send = true;
    }

    /// Completes a message. The queue pair stays as it is: other destinations are not concerned.
    fn end_message(&mut self, index: usize, status: Status, ctx: &mut Context<'_>) {
        if let Some(message) = self.datagrams.messages.remove(index) {
            self.complete_send(&message.request, message.len, status, ctx);
        }
        self.note_drained(ctx);
    }

    /// Sends a packet again after a delay, or fails the message without retries left.
    fn wait_for_receive(&mut self, index: usize, part: usize, timer: u8, ctx: &mut Context<'_>) {
        let for_ever = self.attributes.rnr_retry == RETRY_FOR_EVER;
        let at = ctx.now + rnr_delay(timer);
        let Some(message) = self.datagrams.messages.get_mut(index) else {
            return;
        };
        match message.rnr_retries.checked_sub(1) {
            None if !for_ever => return self.end_message(index, Status::RnrRetryExceeded, ctx),
            retries => message.rnr_retries = retries.unwrap_or(0),
        }
        message.retries = RETRIES;
        if let Some(progress) = message.packets.get_mut(part) {
            *progress = Progress::Waiting(at);
        }
        self.datagrams.wake_at(at);
    }

    /// Sends the packets again that have waited long enough, or fails their messages without retries left.
    pub(super) fn retry_datagrams(&mut self, ctx: &mut Context<'_>) {
        if self.datagrams.deadline.is_none_or(|at| at > ctx.now) {
            return;
        }
        self.datagrams.deadline = None;
        let mut index = 0;
        while let Some(message) = self.datagrams.messages.get_mut(index) {
            let (mut next, mut expired) = (None::<Duration>, false);
            for progress in &mut message.packets {
                match *progress {
                    Progress::Waiting(at) if at <= ctx.now => {
                        *progress = Progress::Unsent;
                        expired = true;
                    }
                    Progress::Waiting(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    Progress::Unsent | Progress::Answered => {}
                }
            }
            match message.retries.checked_sub(1) {
                _ if !expired => {}
                Some(retries) => message.retries = retries,
                None => {
                    self.end_message(index, Status::ResponseTimeout, ctx);
                    continue;
                }
            }
            if let Some(at) = next {
                self.datagrams.wake_at(at);
            }
            index += 1;
        }
        self.datagrams.may_send = true;
    }
}

/// Whether a request is one of reliable datagrams. EFA's library refuses requests without a completion, and all flags but that of
/// inline data.
pub(super) fn fits(request: &SendRequest, signal_all: bool) -> bool {
    let has_operation = match request.op {
        SendOp::Send { invalidate, .. } => invalidate.is_none(),
        SendOp::Write { .. } | SendOp::Read(_) => true,
        _ => false,
    };
    let has_flags = request.solicited || request.fence;
    let is_signaled = request.signaled || signal_all;
    has_operation && is_signaled && !has_flags && request.destination.is_some()
}

/// Operation and extension headers of a packet with a part of a message, without the datagram header.
fn operation(
    op: &SendOp,
    (start, len): (u32, u32),
    is_last: bool,
) -> Result<(Operation, Extensions), Status> {
    let mut extensions = Extensions::default();
    let reth = |remote: Remote| Reth {
        addr: remote.addr.wrapping_add(start.into()),
        rkey: remote.rkey,
        len,
    };
    let immediate = |imm: Option<u32>| match imm {
        Some(_) => Immediate::Data,
        None => Immediate::None,
    };
    let operation = match *op {
        SendOp::Send { imm, .. } => {
            extensions.imm = imm;
            Operation::Send(Position::Only, immediate(imm))
        }
        SendOp::Write { remote, imm } => {
            extensions.imm = imm.filter(|_| is_last);
            extensions.reth = Some(match extensions.imm {
                None => reth(remote),
                Some(_) => Reth {
                    addr: remote.addr,
                    rkey: remote.rkey,
                    len: start + len,
                },
            });
            Operation::Write(Position::Only, immediate(extensions.imm))
        }
        SendOp::Read(remote) => {
            extensions.reth = Some(reth(remote));
            Operation::ReadRequest
        }
        _ => return Err(Status::LocalOperation),
    };
    Ok((operation, extensions))
}

/// Extension headers of an answer from the queue pair `num`.
fn answer(syndrome: Syndrome, num: u32) -> Extensions {
    Extensions {
        deth: Some(Deth {
            qkey: 0,
            src_qp: num,
        }),
        aeth: Some(Aeth { syndrome, msn: 0 }),
        ..Extensions::default()
    }
}

/// The refusal of a request to a queue pair that does not exist; `None` for other packets.
pub(in crate::engine) fn refusal(packet: &Packet<'_>) -> Option<Frame<'static>> {
    let (transport, operation) = packet.frame.bth.opcode.parse()?;
    let is_answer = matches!(
        operation,
        Operation::Acknowledge | Operation::ReadResponse(_)
    );
    if transport != Transport::Srd || is_answer {
        return None;
    }
    let (to, from) = (packet.frame.ip.src(), packet.frame.ip.dst());
    let opcode = Opcode::new(Transport::Srd, Operation::Acknowledge)?;
    let dest_qp = packet.frame.extensions.deth?.src_qp;
    Some(Frame {
        ip: Path::new(from, to).header().ok()?,
        src_port: packet.frame.src_port,
        udp_checksum: 0,
        bth: Bth::new(opcode, dest_qp, packet.frame.bth.psn),
        extensions: answer(
            Syndrome::Nak(Nak::RemoteOperation),
            packet.frame.bth.dest_qp,
        ),
        payload: &[],
    })
}
