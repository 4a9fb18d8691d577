//! The dynamically connected transport: an initiator (DCI) sends to any target (DCT), to one at a time.
//!
//! The wire format of cards is not public. These are softnic's own frames, with opcodes that InfiniBand leaves to
//! manufacturers: the packets of a reliable connection, whose requests carry the initiator's number, the target's key, and the
//! number and the first packet of the connection. An initiator connects with the packets of a request, once all earlier
//! requests are complete. A target has a responder for each initiator.
//!
//! A refused request ends its connection, and the initiator; the target serves the others. A target checks the key before
//! it keeps anything of a packet.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::Duration,
};

use super::{Head, QpKind, QueuePair, delivered::Sender, requester::Wqe, responder::Responder};
use crate::{
    engine::{
        packet::{Outgoing, Packet},
        path::Path,
        psn::Psn,
        request::{Destination, RecvRequest, SendOp, SendRequest},
        resources::Context,
    },
    wire::{Aeth, Dceth, Extensions, Nak, Operation, Syndrome},
};

/// Maximum number of connections of a target. Packets of others are dropped, until a connection is quiet.
const MAX_CONNECTIONS: usize = 4096;

/// Time without a packet after which a connection gives way to another initiator's.
const QUIET: Duration = Duration::from_secs(60);

/// Maximum number of refusals of a wrong key to be sent. Packets beyond are dropped without one.
const MAX_REFUSALS: usize = 64;

/// The connection of an initiator.
#[derive(Debug, Default)]
pub(super) struct InitiatorConnection {
    target: Option<Destination>,
    session: u32,
    first: Psn,
}

/// The connections of a target.
#[derive(Debug, Default)]
pub(super) struct TargetConnections {
    by_initiator: BTreeMap<Sender, TargetConnection>,
    /// The initiators with a reply to be sent, each once.
    replying: VecDeque<Sender>,
    /// Replies to packets with a wrong key: path, initiator, and number of the packet.
    refusals: VecDeque<(Path, u32, Psn)>,
    /// Time of the next reply, delayed by an adversary; may be earlier than any.
    pub(super) reply_after: Option<Duration>,
}

/// A connection of a target to one initiator.
#[derive(Debug)]
struct TargetConnection {
    session: u32,
    path: Path,
    responder: Responder,
    /// Whether the initiator is in the list of those with a reply.
    is_replying: bool,
    /// Time of the latest packet.
    latest: Duration,
}

impl TargetConnections {
    /// Whether a reply may be ready to be sent.
    pub(super) fn has_replies(&self) -> bool {
        !self.replying.is_empty() || !self.refusals.is_empty()
    }

    /// Finds or makes the connection of a request. Returns false for a packet to be dropped: of an earlier connection of the
    /// initiator, or of an initiator too many.
    fn admit(&mut self, from: Sender, dc: &Dceth, path: Path, now: Duration) -> bool {
        let connection = self.by_initiator.get_mut(&from);
        let current_receive = match connection {
            Some(connection) if connection.session == dc.session => {
                connection.latest = now;
                return true;
            }
            Some(connection) => {
                let is_later = dc.session.wrapping_sub(connection.session) <= u32::MAX / 2;
                if !is_later {
                    return false;
                }
                connection.responder.take_receive()
            }
            None => {
                let is_quiet = |c: &TargetConnection| now.saturating_sub(c.latest) > QUIET;
                if self.by_initiator.len() >= MAX_CONNECTIONS {
                    self.by_initiator.retain(|_, connection| {
                        !is_quiet(connection) || connection.responder.has_receive()
                    });
                }
                if self.by_initiator.len() >= MAX_CONNECTIONS {
                    return false;
                }
                None
            }
        };
        let connection = TargetConnection {
            session: dc.session,
            path,
            responder: Responder::of_connection(Psn::new(dc.first), current_receive),
            is_replying: false,
            latest: now,
        };
        self.replying.retain(|initiator| *initiator != from);
        self.by_initiator.insert(from, connection);
        true
    }

    /// Lists an initiator whose connection has a reply, and notes the time of a delayed one.
    fn schedule(&mut self, from: Sender) {
        let Some(connection) = self.by_initiator.get_mut(&from) else {
            return;
        };
        if connection.responder.has_replies() && !connection.is_replying {
            connection.is_replying = true;
            self.replying.push_back(from);
        }
        let delayed = connection.responder.reply_after;
        self.reply_after = self.reply_after.into_iter().chain(delayed).min();
    }

    /// Ends the delays of replies.
    pub(super) fn release_replies(&mut self, now: Duration) {
        if self.reply_after.is_none_or(|at| at > now) {
            return;
        }
        self.reply_after = None;
        let all: Vec<_> = self.by_initiator.keys().copied().collect();
        for from in all {
            if let Some(connection) = self.by_initiator.get_mut(&from) {
                connection.responder.release_replies(now);
            }
            self.schedule(from);
        }
    }

    /// Takes the receives of messages that have not arrived as a whole.
    pub(super) fn take_receives(&mut self) -> impl Iterator<Item = RecvRequest> {
        let connections = self.by_initiator.values_mut();
        connections.filter_map(|connection| connection.responder.take_receive())
    }
}

impl QueuePair {
    /// Whether a request of an initiator waits for the end of the connection to another target.
    pub(super) fn awaits_connection(&self, wqe: &Wqe) -> bool {
        self.init.kind == QpKind::Dci
            && self.requester.current > 0
            && !wqe.request.op.is_local()
            && self.initiator.target != wqe.request.destination
    }

    /// Connects an initiator without requests in flight to the target of its next packet: again, if to the same target, which may
    /// have forgotten an idle connection.
    pub(super) fn connect(&mut self, to: Option<Destination>, ctx: &mut Context<'_>) {
        let (QpKind::Dci, 0, Some(to)) = (self.init.kind, self.requester.current, to) else {
            return;
        };
        self.attributes.path = Some(to.path);
        self.attributes.dest_qp = to.qp;
        self.initiator = InitiatorConnection {
            target: Some(to),
            session: ctx.resources.next_session(),
            first: self.requester.next,
        };
    }

    /// The header of an initiator's requests; `None` for other queue pairs.
    pub(super) fn connection_header(&self) -> Option<Dceth> {
        let connection = &self.initiator;
        Some(Dceth {
            key: connection.target?.key,
            session: connection.session,
            first: connection.first.get(),
            src_qp: self.num,
        })
    }

    /// Processes a request to a target.
    pub(super) fn receive_connected(
        &mut self,
        packet: &Packet<'_>,
        operation: Operation,
        ctx: &mut Context<'_>,
    ) {
        let (Some(dc), Some(path)) = (packet.frame.extensions.dc, self.attributes.path) else {
            return;
        };
        if !self.receives() {
            return;
        }
        let ip = &packet.frame.ip;
        let path = Path {
            src: ip.dst(),
            dst: ip.src(),
            ..path
        };
        let from = (ip.src(), dc.src_qp);
        if dc.key != self.init.dct_key {
            let refusals = &mut self.targets.refusals;
            if refusals.len() < MAX_REFUSALS {
                refusals.push_back((path, dc.src_qp, Psn::new(packet.frame.bth.psn)));
            }
        } else if self.targets.admit(from, &dc, path, ctx.now) {
            self.with_connection(from, |qp| qp.receive_request(packet, operation, ctx));
        }
    }

    /// Makes the next reply of a target. Returns false if none is to be sent now.
    pub(super) fn transmit_of_target(&mut self, ctx: &mut Context<'_>, out: &mut Outgoing) -> bool {
        if let Some((path, dest_qp, psn)) = self.targets.refusals.pop_front() {
            out.clear();
            let syndrome = Syndrome::Nak(Nak::RemoteAccess);
            let head = Head {
                path,
                dest_qp,
                operation: Operation::Acknowledge,
                psn,
                solicited: false,
                ack_request: false,
                extensions: Extensions {
                    aeth: Some(Aeth { syndrome, msn: 0 }),
                    ..Extensions::default()
                },
            };
            return self.emit(&head, out);
        }
        while let Some(from) = self.targets.replying.pop_front() {
            if let Some(connection) = self.targets.by_initiator.get_mut(&from) {
                connection.is_replying = false;
            }
            let sent = self.with_connection(from, |qp| qp.transmit_reply(ctx, out));
            if sent == Some(true) {
                return true;
            }
        }
        false
    }

    /// Calls `act` with the responder and the peer of a connection in place of the queue pair's.
    fn with_connection<T>(&mut self, from: Sender, act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let mut connection = self.targets.by_initiator.remove(&from)?;
        let (path, dest_qp) = (self.attributes.path, self.attributes.dest_qp);
        (self.attributes.path, self.attributes.dest_qp) = (Some(connection.path), from.1);
        mem::swap(&mut self.responder, &mut connection.responder);
        let result = act(self);
        mem::swap(&mut self.responder, &mut connection.responder);
        (self.attributes.path, self.attributes.dest_qp) = (path, dest_qp);
        self.targets.by_initiator.insert(from, connection);
        self.targets.schedule(from);
        Some(result)
    }
}

/// Whether an initiator has the operation, and the request a target.
pub(super) fn fits(request: &SendRequest) -> bool {
    match request.op {
        SendOp::Flush { .. } | SendOp::AtomicWrite { .. } => false,
        op => op.is_local() || request.destination.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(9);

    fn dc(session: u32) -> Dceth {
        Dceth {
            key: 0,
            session,
            first: 7,
            src_qp: 17,
        }
    }

    fn admit(
        connections: &mut TargetConnections,
        number: u32,
        session: u32,
        now: Duration,
    ) -> bool {
        let addr = [10, 0, 0, 1].into();
        connections.admit((addr, number), &dc(session), Path::new(addr, addr), now)
    }

    #[test]
    fn earlier_connection_of_an_initiator_is_over() {
        let mut connections = TargetConnections::default();
        assert!(admit(&mut connections, 17, u32::MAX, NOW));
        assert!(admit(&mut connections, 17, u32::MAX, NOW));
        assert!(
            admit(&mut connections, 17, 3, NOW),
            "later, across the wrap"
        );
        assert!(!admit(&mut connections, 17, u32::MAX, NOW));
        assert!(
            admit(&mut connections, 18, u32::MAX, NOW),
            "another initiator"
        );
    }

    #[test]
    fn quiet_connections_give_way() {
        let mut connections = TargetConnections::default();
        for number in (0..).take(MAX_CONNECTIONS) {
            assert!(admit(&mut connections, number, 1, NOW));
        }
        assert!(!admit(&mut connections, 0xff_ffff, 1, NOW));
        assert!(
            admit(&mut connections, 5, 2, NOW),
            "in place of its earlier one"
        );
        let later = NOW + 2 * QUIET;
        assert!(admit(&mut connections, 0xff_ffff, 1, later));
    }
}
