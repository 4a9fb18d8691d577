//! The responder of a reliable connection: executes the peer's requests once and in order, and replies.

use std::{collections::VecDeque, num::NonZero, time::Duration};

use super::{
    Head, QpKind, QpNum, QueuePair,
    late::MAX_POLLED,
    segment::{take_segment, write_end},
};
use crate::{
    adversary::Rule,
    engine::{
        access::Access,
        completion::{CompletionOp, Status},
        event::Event,
        ids::{CqId, PdId},
        keys::RemoteAccess,
        late::Cause,
        memory::{Atomic, HostRange},
        packet::{Content, Outgoing, Packet},
        psn::Psn,
        request::RecvRequest,
        resources::{Context, Target},
        transfer::total_len,
    },
    wire::{Aeth, AtomicEth, Extensions, Immediate, Nak, Operation, Position, Reth, Syndrome},
};

/// Maximum number of pending replies beyond two for each read or atomic in flight, for duplicates and acknowledgements.
const MAX_SPARE_REPLIES: usize = 16;

/// Maximum delay of a reply by an adversary, in microseconds.
const MAX_DELAY_US: u64 = 50;

/// A partially received message.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A message to the receive queue.
    Send {
        /// Receive of the message.
        recv: RecvRequest,
        /// Bytes received so far.
        received: u64,
        /// Objects named by the first packet.
        target: Target,
    },
    /// An RDMA write.
    Write {
        /// Destination memory.
        reth: Reth,
        /// Bytes received so far.
        received: u32,
        /// Objects named by the first packet.
        target: Target,
    },
}

/// A pending reply.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Acknowledge(Psn, Syndrome),
    Atomic(Psn, u64),
    /// An empty read response: a flush or an atomic write is done.
    Empty(Psn),
    /// The rest of a read: the next packet, the domain and the remaining memory, and whether the packet is the first of
    /// the response.
    Read(Psn, (PdId, Reth), bool),
}

/// Reply to an atomic operation, an atomic write or a flush, kept for duplicates of the request.
#[derive(Clone, Copy, Debug)]
struct Replay {
    psn: Psn,
    reply: Reply,
}

/// Progress of the peer's requests.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// Sequence number of the expected packet.
    pub(super) expected: Psn,
    /// Number of completed messages, modulo 2^24.
    msn: u32,
    pub(super) incoming: Option<Incoming>,
    /// Receive of a partially received and dropped message, for the next message.
    pub(super) current_receive: Option<RecvRequest>,
    replies: VecDeque<Reply>,
    replays: VecDeque<Replay>,
    /// Whether a NAK for the expected packet has been sent.
    is_nak_sent: bool,
    pub(super) is_established: bool,
    /// Time of the next reply, delayed by an adversary.
    pub(super) reply_after: Option<Duration>,
    /// The packet that has ended the connection of a target, and the reply to all packets from then on.
    refused: Option<(Psn, Nak)>,
}

/// Reason for refusing a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refusal {
    /// No receive is posted; the peer retries.
    NotReady,
    /// The queue pair fails. A taken receive, if any, completes with the status.
    Fatal(Nak, Option<Status>),
}

pub(super) const INVALID: Refusal = Refusal::Fatal(Nak::InvalidRequest, None);
pub(super) const FORBIDDEN: Refusal = Refusal::Fatal(Nak::RemoteAccess, None);

impl Responder {
    pub(super) fn start(&mut self, psn: Psn) {
        self.expected = psn;
    }

    /// A responder of a target's connection, with the receive of a message that an earlier connection has not finished.
    pub(super) fn of_connection(expected: Psn, current_receive: Option<RecvRequest>) -> Self {
        Self {
            expected,
            current_receive,
            is_established: true,
            ..Self::default()
        }
    }

    /// Takes the receive of a message that has not arrived as a whole.
    pub(super) fn take_receive(&mut self) -> Option<RecvRequest> {
        let incoming = self.abandon().map(|(recv, _)| recv);
        incoming.or_else(|| self.current_receive.take())
    }

    /// Whether a message is being received, whose receive has no completion yet.
    pub(super) fn has_receive(&self) -> bool {
        self.current_receive.is_some() || matches!(self.incoming, Some(Incoming::Send { .. }))
    }

    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty() && self.reply_after.is_none()
    }

    /// Ends a delay of replies.
    pub(super) fn release_replies(&mut self, now: Duration) {
        self.reply_after = self.reply_after.filter(|at| *at > now);
    }

    /// Delays the replies from now on, by an adversary's decision.
    fn delay_replies(&mut self, ctx: &Context<'_>) {
        if self.reply_after.is_none() {
            let delay = ctx.resources.adversary.delay(Rule::Unfenced, MAX_DELAY_US);
            self.reply_after = delay.map(|delay| ctx.now + delay);
        }
    }

    /// Delays the replies from now on until a time, or the end of an earlier delay if later.
    pub(super) fn delay_until(&mut self, at: Duration) {
        self.reply_after = self.reply_after.max(Some(at));
    }

    pub(super) fn drop_replies(&mut self) {
        self.replies.clear();
    }

    /// Drops the message in progress, and returns its receive and the queue for the completion.
    pub(super) fn abandon(&mut self) -> Option<(RecvRequest, CqId)> {
        match self.incoming.take() {
            Some(Incoming::Send { recv, target, .. }) => Some((recv, target.cq)),
            _ => None,
        }
    }

    /// Adds an acknowledgement, and replaces a pending one: the newer one covers both.
    fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome) {
        if let Some(Reply::Acknowledge(_, Syndrome::Ack(_))) = self.replies.back() {
            self.replies.pop_back();
        }
        self.replies.push_back(Reply::Acknowledge(psn, syndrome));
    }

    fn reads_waiting(&self) -> usize {
        let is_read = |reply: &&Reply| matches!(reply, Reply::Read(..));
        self.replies.iter().filter(is_read).count()
    }
}

impl QueuePair {
    /// Processes a request of the peer.
    pub(super) fn receive_request(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        ctx: &mut Context<'_>,
    ) {
        if !self.receives() {
            return;
        }
        if let Some((psn, nak)) = self.responder.refused {
            if self.responder.replies.is_empty() {
                self.responder.acknowledge(psn, Syndrome::Nak(nak));
            }
            return;
        }
        self.note_established(ctx);
        let psn = Psn::new(packet.frame.bth.psn);
        let expected = self.responder.expected;
        match psn.distance(expected) {
            0 => {}
            1.. => {
                if !self.responder.is_nak_sent {
                    self.responder.is_nak_sent = true;
                    let nak = Syndrome::Nak(Nak::SequenceError);
                    self.responder.acknowledge(expected, nak);
                }
                return;
            }
            _ => return self.receive_duplicate(packet, operation, psn, ctx),
        }
        match self.carry_out(packet, operation, psn, ctx) {
            Ok(()) => self.responder.is_nak_sent = false,
            Err(Refusal::NotReady) => {
                self.responder.is_nak_sent = true;
                let syndrome = Syndrome::RnrNak(self.attributes.min_rnr_timer);
                self.responder.acknowledge(psn, syndrome);
            }
            Err(Refusal::Fatal(nak, status)) => self.refuse(psn, nak, status, ctx),
        }
    }

    /// Replies with a fatal NAK, and fails the queue pair. The NAK also fails the peer's queue pair.
    fn refuse(&mut self, psn: Psn, nak: Nak, status: Option<Status>, ctx: &mut Context<'_>) {
        self.responder.acknowledge(psn, Syndrome::Nak(nak));
        if let Some(status) = status
            && let Some((recv, cq)) = self.responder.abandon()
        {
            self.fail_receive(recv.wr_id, status, cq, ctx);
        }
        if self.init.kind == QpKind::Dct {
            self.responder.refused = Some((psn, nak));
            return;
        }
        let num = QpNum(self.num);
        ctx.resources.events.push_back(match nak {
            Nak::RemoteAccess => Event::QpAccessError(num),
            _ => Event::QpRequestError(num),
        });
        self.fail(ctx);
    }

    /// Executes the expected request.
    fn carry_out(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        psn: Psn,
        ctx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let mut packets = packet.count;
        let target = self.target(packet, ctx).ok_or(INVALID)?;
        let pd = target.pd;
        let is_within = matches!(operation, Operation::Write(position, _) if !position.begins());
        if !is_within {
            self.settle(
                matches!(operation, Operation::Write(_, Immediate::None)),
                ctx,
            );
        }
        match operation {
            Operation::Send(position, immediate) => {
                self.receive_send(packet, (position, immediate), target, ctx)?;
            }
            Operation::Write(position, _) => self.receive_write(packet, position, target, ctx)?,
            Operation::ReadRequest => packets = self.receive_read_request(packet, psn, pd, ctx)?,
            Operation::CompareSwap | Operation::FetchAdd => {
                self.receive_atomic_request(packet, (operation, psn), pd, ctx)?;
            }
            Operation::Flush => self.receive_flush(packet, psn, pd, ctx)?,
            Operation::AtomicWrite => self.receive_atomic_write(packet, psn, pd, ctx)?,
            _ => return Err(INVALID),
        }
        self.responder.expected = psn.plus(packets);
        if matches!(
            operation,
            Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd
        ) {
            self.responder.delay_replies(ctx);
        }
        // A response acknowledges its request. An acknowledgement beside a lost response would complete the request.
        let has_response = !matches!(operation, Operation::Send(..) | Operation::Write(..));
        if packet.frame.bth.ack_request && !has_response {
            let ack = Aeth::ack(0).syndrome;
            self.responder.acknowledge(psn, ack);
        }
        Ok(())
    }

    fn message_done(&mut self) {
        self.responder.msn = self.responder.msn.wrapping_add(1) & 0xff_ffff;
    }

    /// Checks the length of a packet's payload: exactly the MTU before the last packet, and not empty in the last of
    /// several.
    fn length_fits(&self, position: Position, packet: &Packet<'_>) -> bool {
        let (mtu, len) = (self.attributes.mtu as usize, packet.payload.len());
        match position {
            Position::First | Position::Middle => len == mtu * packet.count as usize,
            Position::Last => len > 0 && len <= mtu,
            Position::Only => len <= mtu,
        }
    }

    fn receive_send(
        &mut self,
        packet: &Packet<'_>,
        (position, immediate): (Position, Immediate),
        target: Target,
        ctx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let fits = self.length_fits(position, packet);
        let (recv, received) = match (position.begins(), self.responder.incoming.take()) {
            (true, None) if fits => {
                let recv = self.take_receive(target, ctx).ok_or(Refusal::NotReady)?;
                (recv, 0)
            }
            (
                false,
                Some(Incoming::Send {
                    recv,
                    received,
                    target: first,
                }),
            ) if fits && first == target => (recv, received),
            (_, incoming) => {
                self.responder.incoming = incoming;
                return Err(INVALID);
            }
        };
        let late_bytes = self.defer_message(target.recv_pd, &recv, (position, packet.payload), ctx);
        let total = match late_bytes {
            Some(_) => Ok(packet.payload.len() as u64),
            None => take_segment(self, (target.recv_pd, &recv), received, packet.payload, ctx),
        };
        let invalidated = packet
            .frame
            .extensions
            .invalidate
            .filter(|_| immediate == Immediate::Invalidate);
        let wr_id = recv.wr_id;
        self.responder.incoming = Some(Incoming::Send {
            recv,
            received: total.unwrap_or(received),
            target,
        });
        let end = total.map_err(|status| match status {
            Status::LocalLength => Refusal::Fatal(Nak::InvalidRequest, Some(status)),
            _ => Refusal::Fatal(Nak::RemoteOperation, Some(status)),
        })?;
        if !position.ends() {
            return Ok(());
        }
        if let Some(key) = invalidated {
            let keys = &mut ctx.resources.keys;
            if keys.invalidate(target.pd, self.num, key).is_none() {
                return Err(Refusal::Fatal(Nak::RemoteAccess, Some(Status::LocalAccess)));
            }
        }
        self.responder.incoming = None;
        self.message_done();
        let mut completion = self.completion(wr_id, CompletionOp::Receive, Status::Success);
        completion.byte_len = u32::try_from(end).unwrap_or(u32::MAX);
        completion.imm = packet.frame.extensions.imm;
        completion.invalidated = invalidated;
        completion.late_bytes = late_bytes;
        let solicited = packet.frame.bth.solicited;
        ctx.resources
            .complete(target.cq, completion, solicited, ctx.now);
        Ok(())
    }

    /// Takes a short message, to be written at the poll of its completion; `None` if the bytes are to be written now.
    fn defer_message(
        &self,
        pd: PdId,
        recv: &RecvRequest,
        (position, payload): (Position, Content<'_>),
        ctx: &mut Context<'_>,
    ) -> Option<NonZero<u32>> {
        let len = payload.len();
        let fits = len as u64 <= total_len(&recv.sges) && (1..=MAX_POLLED).contains(&len);
        if position != Position::Only
            || !fits
            || ctx.resources.adversary.choose(Rule::PollWrites, 2) == 0
        {
            return None;
        }
        self.defer(pd, &recv.sges, payload, ctx)
    }

    /// A peer's access to a whole range.
    pub(super) fn remote_access(&self, pd: PdId, reth: &Reth, access: Access) -> RemoteAccess {
        RemoteAccess {
            pd,
            qp: self.num,
            rkey: reth.rkey,
            addr: reth.addr,
            len: reth.len.into(),
            access,
        }
    }

    /// Host memory of a peer's access; `None` if not allowed.
    pub(super) fn remote(
        &self,
        pd: PdId,
        reth: &Reth,
        (offset, len): (u32, u64),
        access: Access,
        ctx: &Context<'_>,
    ) -> Option<HostRange> {
        let granted = self.attributes.access.contains(access);
        let remote_access = RemoteAccess {
            addr: reth.addr.checked_add(offset.into())?,
            len,
            ..self.remote_access(pd, reth, access)
        };
        granted
            .then(|| ctx.resources.keys.remote(remote_access))
            .flatten()
    }

    fn receive_write(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        target: Target,
        ctx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let (reth, received) = self.write_in_progress(packet, position, target)?;
        // A missing receive takes precedence over errors of memory, since the peer retries.
        let takes_receive = position.ends() && packet.frame.extensions.imm.is_some();
        if takes_receive && !self.has_receive(target, ctx) {
            return Err(Refusal::NotReady);
        }
        let len = packet.payload.len();
        let end = write_end(&reth, received, position, len);
        let end = end
            .filter(|_| self.length_fits(position, packet))
            .ok_or(INVALID)?;
        // The whole range is checked at each packet, since the key may be removed meanwhile.
        let range = (0, reth.len.into());
        let target_range = self.remote(target.pd, &reth, range, Access::REMOTE_WRITE, ctx);
        if needs_key(&reth, ctx) {
            target_range.ok_or(FORBIDDEN)?;
        }
        let recv = if takes_receive {
            Some(self.take_receive(target, ctx).ok_or(Refusal::NotReady)?)
        } else {
            None
        };
        if let (Some(target_range), true) = (target_range, len > 0) {
            let to = target_range.part(received as usize, len);
            self.write_part(to, packet.payload, reth.rkey, ctx);
        }
        if takes_receive {
            // The completion makes all bytes visible.
            ctx.resources.late.precede_completion(self.num);
        }
        self.responder.incoming = Some(Incoming::Write {
            reth,
            received: end,
            target,
        });
        if !position.ends() {
            return Ok(());
        }
        self.responder.incoming = None;
        self.message_done();
        if let Some(recv) = recv {
            let op = CompletionOp::ReceiveWrite;
            let mut completion = self.completion(recv.wr_id, op, Status::Success);
            completion.byte_len = reth.len;
            completion.imm = packet.frame.extensions.imm;
            let solicited = packet.frame.bth.solicited;
            ctx.resources
                .complete(target.cq, completion, solicited, ctx.now);
        }
        Ok(())
    }

    /// Memory of a write, and the bytes received before this packet.
    fn write_in_progress(
        &self,
        packet: &Packet<'_>,
        position: Position,
        target: Target,
    ) -> Result<(Reth, u32), Refusal> {
        if !self.attributes.access.contains(Access::REMOTE_WRITE) {
            return Err(INVALID);
        }
        match (
            position.begins(),
            &self.responder.incoming,
            packet.frame.extensions.reth,
        ) {
            (true, None, Some(reth)) => Ok((reth, 0)),
            (
                false,
                Some(Incoming::Write {
                    reth,
                    received,
                    target: first,
                }),
                _,
            ) if *first == target => Ok((*reth, *received)),
            _ => Err(INVALID),
        }
    }

    /// Processes a read request, and returns the number of response packets.
    fn receive_read_request(
        &mut self,
        packet: &Packet<'_>,
        psn: Psn,
        pd: PdId,
        ctx: &mut Context<'_>,
    ) -> Result<u32, Refusal> {
        let max = usize::from(self.attributes.max_dest_rd_atomic);
        let granted = self.attributes.access.contains(Access::REMOTE_READ);
        let reth = packet
            .frame
            .extensions
            .reth
            .filter(|_| packet.payload.is_empty());
        let reth = reth.filter(|_| granted && self.responder.incoming.is_none());
        let reth = reth
            .filter(|_| self.responder.reads_waiting() < max)
            .ok_or(INVALID)?;
        let range = (0, reth.len.into());
        let memory = self.remote(pd, &reth, range, Access::REMOTE_READ, ctx);
        if needs_key(&reth, ctx) {
            memory.ok_or(FORBIDDEN)?;
        }
        self.responder
            .replies
            .push_back(Reply::Read(psn, (pd, reth), true));
        self.message_done();
        Ok(self.packets(reth.len))
    }

    fn packets(&self, len: u32) -> u32 {
        len.div_ceil(self.attributes.mtu).max(1)
    }

    fn receive_atomic_request(
        &mut self,
        packet: &Packet<'_>,
        (operation, psn): (Operation, Psn),
        pd: PdId,
        ctx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let max = usize::from(self.attributes.max_dest_rd_atomic);
        let granted = self.attributes.access.contains(Access::REMOTE_ATOMIC);
        let atomic = packet.frame.extensions.atomic.filter(|atomic| {
            granted && max > 0 && atomic.addr.is_multiple_of(8) && packet.payload.is_empty()
        });
        let atomic = atomic
            .filter(|_| self.responder.incoming.is_none())
            .ok_or(INVALID)?;
        let AtomicEth {
            addr,
            rkey,
            swap_add,
            compare,
        } = atomic;
        let reth = Reth { addr, rkey, len: 8 };
        let host = self.remote(pd, &reth, (0, 8), Access::REMOTE_ATOMIC, ctx);
        // The region's addresses may be aligned differently from the host's.
        let host = host
            .filter(|host| host.addr.is_multiple_of(8))
            .ok_or(FORBIDDEN)?;
        let atomic = match operation {
            Operation::CompareSwap => Atomic::CompareSwap {
                compare,
                swap: swap_add,
            },
            _ => Atomic::FetchAdd(swap_add),
        };
        let original = self.execute(host, atomic, ctx);
        self.reply_once(psn, Reply::Atomic(psn, original));
        Ok(())
    }

    /// Executes an atomic operation, and returns the old number. An adversary writes the new number later: atomic only among
    /// the operations of the device.
    fn execute(&mut self, host: HostRange, atomic: Atomic, ctx: &mut Context<'_>) -> u64 {
        let adversary = &ctx.resources.adversary;
        if !adversary.is_kind() {
            let is_torn = adversary.choose(Rule::Torn, 2) == 1;
            ctx.resources.late.settle_all(ctx.memory);
            if is_torn {
                let mut old = [0; 8];
                ctx.memory.read(host, &mut old);
                let old = u64::from_ne_bytes(old);
                let new = atomic.apply(old).to_ne_bytes().to_vec();
                let at = self.place_late((host, new), (Rule::Torn, Cause::Remote), ctx);
                self.responder.delay_until(at);
                return old;
            }
        }
        ctx.memory.atomic(host.addr, atomic)
    }

    /// Replies to a request that is not executed again, and keeps the reply for duplicates.
    pub(super) fn reply_once(&mut self, psn: Psn, reply: Reply) {
        let max = usize::from(self.attributes.max_dest_rd_atomic);
        if self.responder.replays.len() >= max {
            self.responder.replays.pop_front();
        }
        self.responder.replays.push_back(Replay { psn, reply });
        self.responder.replies.push_back(reply);
        self.message_done();
    }

    /// Repeats the reply to an executed request, since the first reply may be lost.
    fn receive_duplicate(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        psn: Psn,
        ctx: &Context<'_>,
    ) {
        let max = usize::from(self.attributes.max_dest_rd_atomic);
        if self.responder.replies.len() >= 2 * max + MAX_SPARE_REPLIES {
            // Dropped: the peer retransmits.
            return;
        }
        let expected = self.responder.expected;
        match operation {
            Operation::Send(..) | Operation::Write(..) => {
                let ack = Aeth::ack(0).syndrome;
                self.responder.acknowledge(expected.previous(), ack);
            }
            Operation::ReadRequest => {
                let target = self.target(packet, ctx);
                let (Some(reth), Some(Target { pd, .. })) = (packet.frame.extensions.reth, target)
                else {
                    return;
                };
                let end = psn.plus(self.packets(reth.len));
                let range = (0, reth.len.into());
                let memory = self.remote(pd, &reth, range, Access::REMOTE_READ, ctx);
                if !expected.is_before(end) && (memory.is_some() || reth.len == 0) {
                    self.responder
                        .replies
                        .push_back(Reply::Read(psn, (pd, reth), true));
                }
            }
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush
            | Operation::AtomicWrite => {
                let mut replays = self.responder.replays.iter();
                let replay = replays.find(|replay| replay.psn == psn);
                let reply = match (replay, operation) {
                    (Some(replay), _) => Some(replay.reply),
                    // A flush has no result, so its reply need not be kept: rxe has more flushes in flight than agreed.
                    (None, Operation::Flush) => Some(Reply::Empty(psn)),
                    (None, _) => None,
                };
                self.responder.replies.extend(reply);
            }
            _ => {}
        }
    }

    /// Makes the next reply. Returns false if no reply is pending.
    pub(super) fn transmit_reply(&mut self, ctx: &mut Context<'_>, out: &mut Outgoing) -> bool {
        while self.responder.has_replies()
            && let Some(reply) = self.responder.replies.pop_front()
        {
            out.clear();
            let sent = match reply {
                Reply::Acknowledge(psn, syndrome) => {
                    let head = self.reply_head(Operation::Acknowledge, psn, Some(syndrome));
                    head.is_some_and(|head| self.emit(&head, out))
                }
                Reply::Atomic(psn, original) => {
                    let ack = Some(Aeth::ack(0).syndrome);
                    let head = self.reply_head(Operation::AtomicAcknowledge, psn, ack);
                    head.is_some_and(|mut head| {
                        head.extensions.atomic_ack = Some(original);
                        self.emit(&head, out)
                    })
                }
                Reply::Empty(psn) => {
                    let ack = Some(Aeth::ack(0).syndrome);
                    let only = Operation::ReadResponse(Position::Only);
                    let head = self.reply_head(only, psn, ack);
                    head.is_some_and(|head| self.emit(&head, out))
                }
                Reply::Read(psn, rest, begins) => self.transmit_read(psn, rest, begins, ctx, out),
            };
            if sent {
                return true;
            }
        }
        false
    }

    /// Makes the next packet of a read response, and queues the rest.
    fn transmit_read(
        &mut self,
        psn: Psn,
        (pd, reth): (PdId, Reth),
        begins: bool,
        ctx: &mut Context<'_>,
        out: &mut Outgoing,
    ) -> bool {
        let len = reth.len.min(self.attributes.mtu);
        let position = Position::of(begins, len == reth.len);
        let memory = self.remote(pd, &reth, (0, len.into()), Access::REMOTE_READ, ctx);
        if memory.is_none() && len > 0 {
            // The key was removed after the request had been accepted.
            self.refuse(psn, Nak::RemoteAccess, None, ctx);
            return false;
        }
        let syndrome = (position != Position::Middle).then(|| Aeth::ack(0).syndrome);
        let Some(head) = self.reply_head(Operation::ReadResponse(position), psn, syndrome) else {
            return false;
        };
        if let (Some(range), true) = (memory, len > 0) {
            out.ranges.push(range);
        }
        let sent = self.emit(&head, out);
        if !position.ends() {
            let rest = Reth {
                addr: reth.addr.wrapping_add(len.into()),
                len: reth.len - len,
                ..reth
            };
            self.responder
                .replies
                .push_front(Reply::Read(psn.plus(1), (pd, rest), false));
        }
        sent
    }

    fn reply_head(
        &self,
        operation: Operation,
        psn: Psn,
        syndrome: Option<Syndrome>,
    ) -> Option<Head> {
        let msn = self.responder.msn;
        Some(Head {
            path: self.attributes.path?,
            dest_qp: self.attributes.dest_qp,
            operation,
            psn,
            solicited: false,
            ack_request: false,
            extensions: Extensions {
                aeth: syndrome.map(|syndrome| Aeth { syndrome, msn }),
                ..Extensions::default()
            },
        })
    }
}

/// Whether a read or a write needs a valid key: for no bytes only by an adversary.
fn needs_key(reth: &Reth, ctx: &Context<'_>) -> bool {
    reth.len > 0 || ctx.resources.adversary.choose(Rule::Zero, 2) == 1
}
