//! What goes between two hosts: messages, each of which arrives once and in its order, however often
//! the connection below is lost.
//!
//! A [`Connection`] outlives the reliable connections that carry it. While there is one, frames that
//! arrive go to [`received`](Connection::received), completions to
//! [`completed`](Connection::completed), and what comes out of [`transmit`](Connection::transmit)
//! and [`acknowledge`](Connection::acknowledge) is posted. When it is lost, and the device has
//! completed everything, [`reset`](Connection::reset) makes the connection ready for the next.
//!
//! Nobody counts credits: those that a peer advertises are ignored, as kernels do since they
//! advertise none.

mod acks;
mod failure;
mod message;
mod probes;
mod queue;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use std::{num::NonZero, time::Duration};

use acks::Acks;
use probes::Probes;
use receiving::Receiving;
use sending::Sending;

pub use failure::Violation;
pub use message::{
    Atomic, AtomicOp, BadMessage, Direction, Draft, Finished, Message, MessageOutcome,
    Notification, Rdma, Refused, Report, Status,
};
pub use queue::Completion;
pub use receiving::{Bodies, ConnectionStats, Incoming, Received};
pub use sending::{Body, Request, Tag, Work};

use super::{
    SocketId,
    wire::{CongestionMap, Flags, Header, MAX_MESSAGE, RESERVED_PORT},
};

/// How a connection is to be. The names are those of the kernel's settings, where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// After so many messages that are not acknowledged, one asks for that.
    pub max_unacked_messages: u32,
    /// After so many bytes that are not acknowledged, a message asks for that.
    pub max_unacked_bytes: u32,
    /// At least one of so many requests is signalled.
    pub max_unsignalled: u32,
    /// What has arrived is acknowledged unasked after this time, if ever.
    pub ack_after: Option<Duration>,
    /// After such a time in which nothing arrives, a [probe](Connection::probe) shows whether the
    /// peer is still there, if ever.
    pub keepalive: Option<Duration>,
    /// Headers without a checksum pass.
    pub accept_unchecked: bool,
    /// A peer that sends again what it must know to have arrived has forgotten everything, and
    /// counts from the start.
    pub detect_restarts: bool,
    /// The most bytes of a message that is received.
    pub max_message: u32,
    /// So many pings may wait for their answers; further ones get none.
    pub max_pongs: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_unacked_messages: 8,
            max_unacked_bytes: 16 << 20,
            max_unsignalled: 16,
            ack_after: Some(Duration::from_millis(50)),
            keepalive: Some(Duration::from_secs(10)),
            accept_unchecked: true,
            detect_restarts: true,
            max_message: MAX_MESSAGE,
            max_pongs: 1024,
        }
    }
}

/// What goes between two hosts, for one type of service.
///
/// `P` is what the caller needs to find the bytes of a message that is sent, and `B` the body of a
/// frame that has arrived.
#[derive(Debug)]
pub struct Connection<P, B> {
    sending: Sending<P>,
    receiving: Receiving<B>,
    acks: Acks,
    is_up: bool,
    /// Why nothing is received any more on this connection.
    violation: Option<Violation>,
    max_pongs: usize,
    probes: Probes,
}

impl<P, B: AsRef<[u8]>> Connection<P, B> {
    /// A connection whose first message has the number `first`.
    ///
    /// It must be higher than all of an earlier process at the same address, or the peer may take
    /// messages for those it has had: the microseconds since 1970 are.
    pub fn new(settings: &Settings, first: NonZero<u64>) -> Self {
        Self {
            sending: Sending::new(settings, first),
            receiving: Receiving::new(settings),
            acks: Acks::new(settings.ack_after),
            is_up: false,
            violation: None,
            max_pongs: settings.max_pongs,
            probes: Probes::new(settings.keepalive),
        }
    }

    /// Messages can be posted now. `ack` is what the peer said when it connected.
    pub fn established(&mut self, now: Duration, ack: u64) {
        self.is_up = true;
        self.probes.frame_received(now);
        self.sending.map_changed();
        self.sending.queue.acknowledged(ack);
        // What is sent from now on is not meant, whatever the peer says.
        self.retire_acked();
    }

    /// Whether messages can be posted.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The connection below is lost, and everything that was posted has completed: all that the
    /// peer has not acknowledged will be sent again, except what has operations.
    pub fn reset(&mut self) {
        self.is_up = false;
        self.violation = None;
        self.sending.reset();
        self.receiving.reset();
        self.acks.reset();
        self.probes.reset();
    }

    /// Sends a message; returns its number. An acknowledgement is asked for if `ask`: the sender
    /// has used up half of what it may have unacknowledged.
    ///
    /// # Errors
    /// It cannot be sent, and its payload is given back.
    pub fn send(&mut self, message: Message<P>, ask: bool) -> Result<u64, Refused<P>> {
        let flags = if ask {
            Flags::ACK_REQUIRED
        } else {
            Flags::empty()
        };
        self.sending.push(message, flags)
    }

    /// Answers a ping from this port.
    pub fn pong(&mut self, to: u16) {
        if to == 0 || to == RESERVED_PORT {
            return;
        }
        self.retire_acked();
        if self.sending.queue.pongs() >= self.max_pongs {
            self.receiving.stats.unanswered += 1;
            return;
        }
        self.sending.push_pong(to);
    }

    /// The congestion map has changed, and the peer is to have it.
    pub fn map_changed(&mut self) {
        if self.is_up {
            self.sending.map_changed();
        }
    }

    /// What is to be posted next, where there is room for so many requests. `map` is that of the
    /// address that the connection belongs to.
    pub fn transmit<'m>(
        &mut self,
        room: u32,
        map: impl FnOnce() -> &'m CongestionMap,
    ) -> Option<Work<'_, P>> {
        if !self.is_up || self.violation.is_some() {
            return None;
        }
        self.sending.transmit(room, map, &mut self.acks)
    }

    /// Whether [`transmit`](Self::transmit) has something, given room.
    pub fn has_work(&self) -> bool {
        self.is_up && self.sending.has_work()
    }

    /// The header of a frame with nothing but an acknowledgement, if one is due: it is posted
    /// signalled and solicited, and has room kept for it. Ask after [`transmit`](Self::transmit) has
    /// nothing more, since what that sends acknowledges as well.
    pub fn acknowledge(&mut self, now: Duration) -> Option<(Tag, [u8; Header::SIZE])> {
        if !self.is_up || self.violation.is_some() {
            return None;
        }
        let ack = self.acks.alone(now)?;
        let header = Header {
            ack,
            ..Header::default()
        };
        Some((self.sending.ack_tag(ack), header.encode()))
    }

    /// Whether to post a probe: a signalled RDMA write of no bytes, of which the peer's software
    /// learns nothing, and which fails where the peer is gone. It has room kept for it.
    ///
    /// Without, a host that waits for an acknowledgement may do so for ever, if the peer has lost the
    /// connection and cannot say so. And it makes room where an operation needs more than there is, by the end
    /// of requests without a signal.
    pub fn probe(&mut self, now: Duration) -> Option<Tag> {
        let wanted = self.sending.needs_signal();
        let due = self.is_up && self.violation.is_none() && self.probes.post(now, wanted);
        due.then(|| self.sending.probe())
    }

    /// When to ask for an acknowledgement or a probe again, if nothing happens before.
    pub fn deadline(&self) -> Option<Duration> {
        let deadlines = [self.acks.deadline(), self.probes.deadline()];
        deadlines.into_iter().flatten().min().filter(|_| self.is_up)
    }

    /// Whether something goes on when the device has completed a request, and not before, after all
    /// has been asked for that may be posted.
    pub fn awaits_device(&self) -> bool {
        self.has_work()
            || self.sending.awaits_device()
            || self.acks.awaits_device()
            || self.probes.awaits_device()
    }

    /// Whether there is nothing to be posted, and nothing that goes on when the device has completed a request.
    pub fn is_idle(&self, now: Duration) -> bool {
        let nothing = self.is_up && !self.awaits_device() && !self.sending.needs_signal();
        nothing && !self.acks.is_due(now) && !self.probes.is_due(now)
    }

    /// A request has completed; those without a signal have when a later one has.
    pub fn completed(&mut self, tag: Tag, completion: Completion) {
        if tag.incarnation != self.sending.incarnation() {
            return;
        }
        if completion == Completion::Success {
            self.receiving.confirmed(tag.ack);
        }
        if tag == self.sending.probe_tag() {
            self.probes.completed();
        }
        self.sending.completed(tag, completion, &mut self.acks);
    }

    /// A frame has arrived; what that means, if anything. After a violation, only acknowledgements
    /// mean anything until the connection is made anew.
    ///
    /// # Errors
    /// The peer breaks the protocol: the connection has to be given up.
    pub fn received(
        &mut self,
        now: Duration,
        header: &[u8],
        body: B,
    ) -> Result<Option<Received<B>>, Violation> {
        if self.violation.is_some() {
            // What the peer's device knows to have arrived must count, or the peer would take what
            // is sent again for that of one that has forgotten everything.
            if let Ok(header) = self.receiving.header(header) {
                self.sending.acknowledged(header.ack);
            }
            return Ok(None);
        }
        let received = self.frame(now, header, body);
        self.violation = received.as_ref().err().copied();
        received
    }

    fn frame(
        &mut self,
        now: Duration,
        header: &[u8],
        body: B,
    ) -> Result<Option<Received<B>>, Violation> {
        let header = self.receiving.header(header)?;
        self.header_received(now, &header);
        if header.from == 0 && header.to == 0 && body.as_ref().is_empty() {
            return Ok(None);
        }
        let Some(whole) = self.receiving.frame(now, header, body)? else {
            return Ok(None);
        };
        let received = self.receiving.message(now, &mut self.acks, whole);
        self.sending.peer_delays_acks = self.receiving.peer_delays_acks;
        Ok(received)
    }

    /// A frame has arrived with a body of `len` bytes: its header, if it is a whole message, the next of its sender,
    /// with nothing but bytes in it. Who has room for it [takes it](Self::take_plain). Of any other, and of one that is
    /// not taken, [`received`](Self::received) says what it means; most frames are spared that.
    pub(in crate::proto) fn plain(
        &mut self,
        now: Duration,
        wire: &[u8],
        len: usize,
    ) -> Option<Header> {
        if self.violation.is_some() {
            return None;
        }
        let header = self.receiving.header(wire).ok()?;
        if !self.receiving.is_plain(&header, len) {
            return None;
        }
        self.header_received(now, &header);
        Some(header)
    }

    /// Takes a message of which there is no more than this.
    pub(in crate::proto) fn take_plain(&mut self, now: Duration, header: &Header) {
        self.receiving.take_plain(now, &mut self.acks, header);
    }

    /// What every frame says.
    fn header_received(&mut self, now: Duration, header: &Header) {
        self.probes.frame_received(now);
        if !self.sending.acknowledged(header.ack) {
            self.receiving.stats.false_acks += 1;
        }
    }

    /// The device has taken frames from the peer that nobody will see any more. The peer is told so when it
    /// is connected again, or it would take what is sent again for that of one that has forgotten
    /// everything.
    pub fn mark_rx_lost(&mut self) {
        self.sending.mark_rx_lost();
    }

    /// A message is taken, or dropped for good: it is acknowledged, and never comes again.
    pub fn take(&mut self, now: Duration, incoming: &Incoming<B>) {
        self.receiving.take(now, &mut self.acks, incoming);
    }

    /// A message is not taken, and the connection given up: it comes again on the next.
    pub fn refuse(&mut self, violation: Violation) {
        self.violation = Some(violation);
    }

    /// Takes back what a socket has sent to a port, or to all, and has not been acknowledged.
    pub fn cancel(&mut self, owner: SocketId, to: Option<u16>) {
        self.sending
            .take_back(MessageOutcome::Cancelled, |message| {
                message.owner == owner && to.is_none_or(|to| message.to == to)
            });
    }

    /// Gives up messages that cannot be sent any more, because of what the caller gave with them.
    pub fn give_up(&mut self, which: impl Fn(&P) -> bool) {
        self.sending.take_back(MessageOutcome::Dropped, |message| {
            which(&message.draft.payload)
        });
    }

    /// Calls `each` for what the caller gave with every message that is not over.
    pub fn payloads(&self, each: impl FnMut(&P)) {
        self.sending.queue.payloads(each);
    }

    /// Takes what the peer says to have handled off the list. It is kept for a while, since what depends on that
    /// can wait, and who has received a message wants it at once.
    fn retire_acked(&mut self) {
        self.sending.queue.retire_acked();
    }

    /// Whether the peer has asked for an acknowledgement.
    pub(in crate::proto) fn ack_requested(&self) -> bool {
        self.acks.is_requested()
    }

    /// Whether the peer may have handled something that is not known to be [over](Self::finished) yet.
    pub(in crate::proto) fn has_acked(&self) -> bool {
        self.sending.queue.has_acked()
    }

    /// How many messages it may have handled of which that is so.
    pub(in crate::proto) fn acked_len(&self) -> u64 {
        self.sending.queue.acked_len()
    }

    /// Whether that makes no difference, but to how much room there is to send.
    pub(in crate::proto) fn can_retire_later(&self) -> bool {
        self.sending.queue.can_retire_later()
    }

    /// A message that is over.
    pub fn finished(&mut self) -> Option<Finished<P>> {
        self.retire_acked();
        self.sending.queue.finished.pop_front()
    }

    /// An operation that has ended.
    pub fn notification(&mut self) -> Option<Notification> {
        self.retire_acked();
        self.sending.queue.notifications.pop_front()
    }

    /// Whether something has to be sent, or may have to be sent again.
    pub fn has_unacknowledged(&self) -> bool {
        self.sending.queue.has_unacknowledged()
    }

    /// Calls `each` for every message that is not over, in their order: whether it has been sent, its
    /// number, the ports it goes from and to, its bytes, and its flags.
    pub(crate) fn waiting(&self, each: impl FnMut(bool, u64, (u16, u16), u32, Flags)) {
        self.sending.queue.waiting(each);
    }

    /// Whether every message is over.
    pub fn all_finished(&self) -> bool {
        self.sending.queue.is_empty()
    }

    /// The numbers of the next message that is sent, and of the next that is expected.
    pub fn next_sequences(&self) -> (u64, u64) {
        (self.sending.next_sequence(), self.receiving.next())
    }

    /// What was noticed.
    pub fn stats(&self) -> ConnectionStats {
        self.receiving.stats
    }
}
