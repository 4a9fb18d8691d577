//! Receiving without acknowledgements: unreliable connections and datagrams.

use super::{
    QueuePair, State,
    responder::Incoming,
    segment::{take_segment, write_end},
};
use crate::{
    adversary::Rule,
    engine::{
        access::Access,
        completion::{CompletionOp, NetworkHeader, Status},
        packet::{Content, Packet},
        psn::Psn,
        request::RecvRequest,
        resources::{Context, Target},
        transfer::{scatter, total_len},
    },
    wire::{Operation, Position, Reth},
};

/// Length of the header (GRH) before a datagram in the receive.
const GRH_LEN: usize = 40;

/// Length of an IPv4 header, at the end of the GRH; the bytes before it are undefined.
const IPV4_LEN: usize = 20;

impl QueuePair {
    /// Processes a packet of an unreliable connection. A message with a missing packet is dropped.
    pub(super) fn receive_unreliable(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        ctx: &mut Context<'_>,
    ) {
        if !self.receives() {
            return;
        }
        self.note_established(ctx);
        let psn = Psn::new(packet.frame.bth.psn);
        let in_order = psn == self.responder.expected;
        self.responder.expected = psn.plus(1);
        let position = match operation {
            Operation::Send(position, _) | Operation::Write(position, _) => position,
            _ => return,
        };
        if !in_order || position.begins() {
            self.drop_message();
        }
        let mtu = self.attributes.mtu as usize;
        let len = packet.payload.len();
        let fits = if position.ends() {
            len <= mtu
        } else {
            len == mtu
        };
        if !fits {
            return self.drop_message();
        }
        let Some(target) = self.target(packet, ctx) else {
            return;
        };
        let receive = match operation {
            Operation::Send(..) => self.receive_unreliable_send(packet, position, target, ctx),
            _ => self.receive_unreliable_write(packet, position, target, ctx),
        };
        if receive.is_none() {
            self.drop_message();
        }
    }

    /// Drops the message in progress, and keeps the receive for the next message.
    fn drop_message(&mut self) {
        if let Some((recv, _)) = self.responder.abandon() {
            self.responder.current_receive = Some(recv);
        }
    }

    /// Drops a message longer than its receive, which is kept for the next message. A shared receive fails, since another
    /// queue pair may be the one to use it.
    fn drop_too_long(&mut self, recv: RecvRequest, target: Target, ctx: &mut Context<'_>) {
        if target.srq.is_some() {
            self.fail_receive(recv.wr_id, Status::LocalLength, target.cq, ctx);
        } else {
            self.responder.current_receive = Some(recv);
        }
    }

    fn receive_unreliable_send(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        target: Target,
        ctx: &mut Context<'_>,
    ) -> Option<()> {
        let (recv, received) = match self.responder.incoming.take() {
            Some(Incoming::Send { recv, received, .. }) => (recv, received),
            _ if position.begins() => (self.take_receive(target, ctx)?, 0),
            _ => return None,
        };
        let end = match take_segment(self, (target.recv_pd, &recv), received, packet.payload, ctx) {
            Ok(end) => end,
            Err(Status::LocalLength) => {
                self.drop_too_long(recv, target, ctx);
                return Some(());
            }
            Err(status) => {
                self.fail_receive(recv.wr_id, status, target.cq, ctx);
                self.fail(ctx);
                return Some(());
            }
        };
        if !position.ends() {
            self.responder.incoming = Some(Incoming::Send {
                recv,
                received: end,
                target,
            });
            return Some(());
        }
        let op = CompletionOp::Receive;
        let mut completion = self.completion(recv.wr_id, op, Status::Success);
        completion.byte_len = u32::try_from(end).unwrap_or(u32::MAX);
        completion.imm = packet.frame.extensions.imm;
        let solicited = packet.frame.bth.solicited;
        ctx.resources
            .complete(target.cq, completion, solicited, ctx.now);
        Some(())
    }

    fn receive_unreliable_write(
        &mut self,
        packet: &Packet<'_>,
        position: Position,
        target: Target,
        ctx: &mut Context<'_>,
    ) -> Option<()> {
        let (reth, received): (Reth, u32) = match self.responder.incoming.take() {
            Some(Incoming::Write { reth, received, .. }) => (reth, received),
            None if position.begins() => (packet.frame.extensions.reth?, 0),
            _ => return None,
        };
        let len = packet.payload.len();
        let end = write_end(&reth, received, position, len)?;
        if len > 0 {
            let range = (received, len as u64);
            let to = self.remote(target.pd, &reth, range, Access::REMOTE_WRITE, ctx)?;
            scatter(ctx.memory, &[to], packet.payload);
        }
        if !position.ends() {
            self.responder.incoming = Some(Incoming::Write {
                reth,
                received: end,
                target,
            });
            return Some(());
        }
        if let Some(imm) = packet.frame.extensions.imm {
            let recv = self.take_receive(target, ctx)?;
            let op = CompletionOp::ReceiveWrite;
            let mut completion = self.completion(recv.wr_id, op, Status::Success);
            completion.byte_len = reth.len;
            completion.imm = Some(imm);
            let solicited = packet.frame.bth.solicited;
            ctx.resources
                .complete(target.cq, completion, solicited, ctx.now);
        }
        Some(())
    }

    /// Processes a datagram. Datagrams with a wrong Q_Key, without a receive or longer than the receive are dropped.
    pub(super) fn receive_datagram(&mut self, packet: &Packet<'_>, ctx: &mut Context<'_>) {
        let Some(deth) = packet.frame.extensions.deth else {
            return;
        };
        let ready = matches!(
            self.state,
            State::Rtr | State::Rts | State::Sqd | State::Sqe
        );
        if !ready || deth.qkey != self.attributes.qkey {
            return;
        }
        let Some(target) = self.target(packet, ctx) else {
            return;
        };
        let Some(recv) = self.take_receive(target, ctx) else {
            return;
        };
        let mut grh = header(packet);
        if packet.frame.ip.dst().is_ipv4() && ctx.resources.adversary.has(Rule::Grh) {
            for byte in &mut grh[..GRH_LEN - IPV4_LEN] {
                [*byte, ..] = ctx.resources.adversary.number(Rule::Grh).to_le_bytes();
            }
        }
        let len = (GRH_LEN + packet.payload.len()) as u64;
        let pd = target.recv_pd;
        if len > total_len(&recv.sges) {
            return self.drop_too_long(recv, target, ctx);
        }
        let status = if ctx.scatter(pd, &recv.sges, 0, Content::Bytes(&grh))
            && self.scatter((pd, &recv.sges), GRH_LEN as u64, packet.payload, ctx)
        {
            Status::Success
        } else {
            Status::LocalProtection
        };
        if status != Status::Success {
            self.fail_receive(recv.wr_id, status, target.cq, ctx);
            return self.fail(ctx);
        }
        let mut completion = self.completion(recv.wr_id, CompletionOp::Receive, status);
        completion.byte_len = u32::try_from(len).unwrap_or(u32::MAX);
        completion.imm = packet.frame.extensions.imm;
        completion.src_qp = deth.src_qp;
        completion.header = Some(match packet.frame.ip.dst().is_ipv4() {
            true => NetworkHeader::Ipv4,
            false => NetworkHeader::Ipv6,
        });
        let solicited = packet.frame.bth.solicited;
        ctx.resources
            .complete(target.cq, completion, solicited, ctx.now);
    }
}

/// The 40 bytes before a datagram: the IPv6 header, or 20 zero bytes and the IPv4 header.
fn header(packet: &Packet<'_>) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let mut headers = Vec::new();
    // The header contains the frame's length and checksum.
    let encoded = packet
        .frame
        .encode_headers(packet.payload.len(), &mut headers);
    if encoded.is_ok() {
        let len = packet.frame.ip.encoded_len();
        if let (Some(to), Some(from)) = (grh.get_mut(GRH_LEN - len..), headers.get(..len)) {
            to.copy_from_slice(from);
        }
    }
    grh
}
