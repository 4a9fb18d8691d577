//! Reliable messages between two hosts: delivered once and in order, across losses of the
//! underlying RDMA connection.
//!
//! A [`Connection`] outlives the RDMA connections below. While one is up, pass received frames to
//! [`received`](Connection::received) and completions to [`completed`](Connection::completed), and
//! post the output of [`transmit`](Connection::transmit) and
//! [`acknowledge`](Connection::acknowledge). After a loss, once the device has completed every
//! request, call [`reset`](Connection::reset) to prepare for the next.
//!
//! Flow control by credits is not implemented: credits advertised by a peer are ignored, as by
//! kernels, and none are advertised.

mod acks;
mod failure;
mod message;
mod pongs;
mod probes;
mod queue;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use std::{num::NonZero, time::Duration};

use acks::Acks;
pub(crate) use pongs::AllPongs;
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
    wire::{CongestionMap, FRAGMENT, Flags, Header, MAX_MESSAGE, RESERVED_PORT},
};

/// Settings of a connection, named after the kernel's where one exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Number of unacknowledged messages after which one requests an acknowledgement.
    pub max_unacked_messages: u32,
    /// Number of unacknowledged bytes after which a message requests an acknowledgement.
    pub max_unacked_bytes: u32,
    /// Maximum number of requests per signaled completion.
    pub max_unsignaled: u32,
    /// Delayed acknowledgement: how long after a message to acknowledge without a request; `None`
    /// for never.
    pub ack_after: Option<Duration>,
    /// Keepalive: interval without a frame from the peer after which to send a
    /// [probe](Connection::probe); `None` for never.
    pub keepalive: Option<Duration>,
    /// Accept headers without a checksum.
    pub accept_unchecked: bool,
    /// Detect a restarted peer by its retransmission of confirmed messages, and accept its sequence
    /// numbers from the start.
    pub detect_restarts: bool,
    /// Maximum length of a received message in bytes.
    pub max_message: u32,
    /// Maximum number of queued pongs of a connection; further pings are not answered. All connections of a node have at most
    /// 16,384 in addition to 4 of each.
    pub max_pongs: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_unacked_messages: 8,
            max_unacked_bytes: 16 << 20,
            max_unsignaled: 16,
            ack_after: Some(Duration::from_millis(200)),
            keepalive: Some(Duration::from_secs(10)),
            accept_unchecked: true,
            detect_restarts: true,
            max_message: MAX_MESSAGE,
            max_pongs: 1024,
        }
    }
}

/// Reliable messages between two hosts, for one type of service.
///
/// `P` is the caller's handle to the payload of a sent message, and `B` the body of a received
/// frame.
#[derive(Debug)]
pub struct Connection<P, B> {
    sending: Sending<P>,
    receiving: Receiving<B>,
    acks: Acks,
    is_up: bool,
    /// The violation after which received messages are ignored until the next reset.
    violation: Option<Violation>,
    max_pongs: usize,
    probes: Probes,
}

impl<P, B: AsRef<[u8]>> Connection<P, B> {
    /// Creates a connection with `first` as the first sequence number.
    ///
    /// `first` must exceed the sequence numbers of earlier processes at the same address, or the
    /// peer takes new messages for duplicates. Microseconds since 1970 do.
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

    /// Marks the connection as established. `ack` is the last sequence number acknowledged by the
    /// peer's private data.
    pub fn established(&mut self, now: Duration, ack: u64) {
        self.is_up = true;
        self.receiving.stats.established += 1;
        self.probes.frame_received(now);
        self.sending.map_changed();
        self.sending.queue.acknowledged(ack);
        // Messages sent from now on must not be covered by this acknowledgement.
        self.retire_acked();
    }

    /// Whether the connection is established.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Handles the loss of the RDMA connection, after every posted request has completed.
    /// Unacknowledged messages are queued for retransmission, except for those with operations.
    pub fn reset(&mut self) {
        self.is_up = false;
        self.violation = None;
        self.receiving.stats.retransmitted += self.sending.reset();
        self.receiving.reset();
        self.acks.reset();
        self.probes.reset();
    }

    /// Queues a message; returns its sequence number. With `ask`, the message requests an
    /// acknowledgement, because half of the sender's limit is unacknowledged.
    ///
    /// # Errors
    /// The message is invalid; its payload is returned.
    pub fn send(&mut self, message: Message<P>, ask: bool) -> Result<u64, Refused<P>> {
        let flags = if ask {
            Flags::ACK_REQUIRED
        } else {
            Flags::empty()
        };
        self.sending.push(message, flags)
    }

    /// Queues the answer to a ping from this port.
    pub fn pong(&mut self, to: u16) {
        if to == 0 || to == RESERVED_PORT {
            return;
        }
        self.retire_acked();
        if !self.sending.queue.pongs.may_add(self.max_pongs) {
            self.receiving.stats.unanswered += 1;
            return;
        }
        self.sending.push_pong(to);
    }

    /// Counts queued pongs together with those of other connections.
    pub(crate) fn count_pongs_in(&mut self, all: &AllPongs) {
        self.sending.queue.pongs.count_in(all);
    }

    /// Schedules sending the congestion map to the peer.
    pub fn map_changed(&mut self) {
        if self.is_up {
            self.sending.map_changed();
        }
    }

    /// The next request to post, given `free` entries of the send queue. `map` is the
    /// congestion map of the local address.
    pub fn transmit<'m>(
        &mut self,
        free: u32,
        map: impl FnOnce() -> &'m CongestionMap,
    ) -> Option<Work<'_, P>> {
        if !self.is_up || self.violation.is_some() {
            return None;
        }
        self.sending.transmit(free, map, &mut self.acks)
    }

    /// Whether [`transmit`](Self::transmit) would return a request, given room.
    pub fn has_work(&self) -> bool {
        self.is_up && self.sending.has_work()
    }

    /// The header of a pure acknowledgement, if one is due. Post it signaled and solicited, in a
    /// reserved entry of the send queue. Call after [`transmit`](Self::transmit) returns `None`,
    /// because data frames carry acknowledgements, too.
    pub fn acknowledge(&mut self, now: Duration) -> Option<(Tag, [u8; Header::SIZE])> {
        if !self.is_up || self.violation.is_some() {
            return None;
        }
        let ack = self.acks.standalone(now)?;
        let header = Header {
            ack,
            ..Header::default()
        };
        Some((self.sending.ack_tag(ack), header.encode()))
    }

    /// A keepalive probe, if one is due: a signaled RDMA write of zero bytes, in a reserved entry
    /// of the send queue. The write is invisible to the peer's software, and fails if the peer is
    /// gone.
    ///
    /// Without probes, a host may wait forever for an acknowledgement, if the peer has lost the
    /// connection and the notification of the loss. A probe also completes unsignaled requests,
    /// when an operation waits for room in the send queue.
    pub fn probe(&mut self, now: Duration) -> Option<Tag> {
        let needs_signal = self.sending.needs_signal();
        let is_due = self.is_up && self.violation.is_none() && self.probes.post(now, needs_signal);
        is_due.then(|| self.sending.probe())
    }

    /// Whether the peer has stalled the connection for 60 s: the rest of a message, or the completion
    /// of a probe, is missing. Close the RDMA connection.
    pub fn is_stalled(&self, now: Duration) -> bool {
        let timeouts = [self.receiving.deadline(), self.probes.timeout()];
        self.is_up && timeouts.into_iter().flatten().any(|at| at <= now)
    }

    /// Time of the next delayed acknowledgement, probe or [stall](Self::is_stalled).
    pub fn deadline(&self) -> Option<Duration> {
        let deadlines = [
            self.acks.deadline(),
            self.probes.deadline(),
            self.receiving.deadline(),
            self.probes.timeout(),
        ];
        deadlines.into_iter().flatten().min().filter(|_| self.is_up)
    }

    /// Whether progress depends on a send completion, after everything postable is posted.
    pub fn awaits_device(&self) -> bool {
        self.has_work()
            || self.sending.awaits_device()
            || self.acks.awaits_device()
            || self.probes.awaits_device()
    }

    /// Whether there is nothing to post, and no send completion to wait for.
    pub fn is_idle(&self, now: Duration) -> bool {
        let is_drained = self.is_up && !self.awaits_device() && !self.sending.needs_signal();
        let is_due = self.acks.is_due(now) || self.probes.is_due(now);
        is_drained && !is_due && !self.is_stalled(now)
    }

    /// Handles the completion of a signaled request. Earlier unsignaled requests have completed,
    /// too.
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

    /// Handles a received frame. After a violation, only the acknowledgements of frames are used,
    /// until the connection is reset.
    ///
    /// # Errors
    /// The peer has violated the protocol; close the RDMA connection.
    pub fn received(
        &mut self,
        now: Duration,
        header: &[u8],
        body: B,
    ) -> Result<Option<Received<B>>, Violation> {
        if self.violation.is_some() {
            // Messages acknowledged by the peer's device must be retired: retransmitting one would
            // look like a restart to the peer.
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
        let Some(message) = self.receiving.frame(now, header, body)? else {
            return Ok(None);
        };
        let received = self.receiving.message(now, &mut self.acks, message);
        self.sending.peer_delays_acks = self.receiving.peer_delays_acks;
        Ok(received)
    }

    /// The header of a received frame of `len` body bytes, if the frame is a whole in-order message
    /// without extensions. The caller delivers the message with [`take_plain`](Self::take_plain) if
    /// the socket has room. Other frames go to [`received`](Self::received); this short path covers
    /// most frames.
    pub(crate) fn plain(&mut self, now: Duration, wire: &[u8], len: usize) -> Option<Header> {
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

    /// Accepts a plain message.
    pub(crate) fn take_plain(&mut self, now: Duration, header: &Header) {
        self.receiving.take_plain(now, &mut self.acks, header);
    }

    /// Handles the parts common to every frame: keepalive and acknowledgement.
    fn header_received(&mut self, now: Duration, header: &Header) {
        self.probes.frame_received(now);
        if !self.sending.acknowledged(header.ack) {
            self.receiving.stats.false_acks += 1;
        }
    }

    /// Records the loss of frames acknowledged by the device but never polled. The peer is informed
    /// on the next connection; otherwise it would take the retransmission of these messages for a
    /// restart.
    pub fn mark_rx_lost(&mut self) {
        self.sending.mark_rx_lost();
    }

    /// Accepts or discards a message for good: acknowledges the message, and drops duplicates.
    pub fn take(&mut self, now: Duration, incoming: &Incoming<B>) {
        self.receiving.take(now, &mut self.acks, incoming);
    }

    /// Rejects a message and stops receiving. The peer retransmits the message on the next
    /// connection.
    pub fn refuse(&mut self, violation: Violation) {
        self.violation = Some(violation);
    }

    /// Cancels unacknowledged messages of a socket to a port, or to all ports.
    pub fn cancel(&mut self, owner: SocketId, to: Option<u16>) {
        self.sending.withdraw(MessageOutcome::Cancelled, |message| {
            message.owner == owner && to.is_none_or(|to| message.to == to)
        });
    }

    /// Handles the end of the RDMA connection. Messages of several frames are ignored from then on,
    /// since devices may report a frame again when a queue pair fails: Soft-RoCE does since Linux 6.4.
    /// The peer retransmits these messages.
    pub(crate) fn ended(&mut self, header: &[u8]) {
        let header = self.receiving.header(header);
        if self.violation.is_none() && header.is_ok_and(|header| header.len > FRAGMENT) {
            self.violation = Some(Violation::Ended);
        }
    }

    /// Gives up messages with unusable payloads.
    pub fn give_up(&mut self, which: impl Fn(&P) -> bool) {
        self.sending.withdraw(MessageOutcome::Dropped, |message| {
            which(&message.draft.payload)
        });
    }

    /// Calls `each` with the payload of every unfinished message.
    pub fn payloads(&self, each: impl FnMut(&P)) {
        self.sending.queue.payloads(each);
    }

    /// Retires acknowledged messages. Retiring is deferred for as long as only buffer space depends
    /// on it, so that receiving is fast.
    fn retire_acked(&mut self) {
        self.sending.queue.retire_acked();
    }

    /// Whether acknowledged messages are not retired yet.
    pub(crate) fn has_acked(&self) -> bool {
        self.sending.queue.has_acked()
    }

    /// Number of acknowledged messages not retired yet.
    pub(crate) fn acked_len(&self) -> u64 {
        self.sending.queue.acked_len()
    }

    /// Whether retiring can be deferred without delaying a notification.
    pub(crate) fn can_retire_later(&self) -> bool {
        self.sending.queue.can_retire_later()
    }

    /// The next finished message.
    pub fn finished(&mut self) -> Option<Finished<P>> {
        self.retire_acked();
        self.sending.queue.finished.pop_front()
    }

    /// The next finished operation.
    pub fn notification(&mut self) -> Option<Notification> {
        self.retire_acked();
        self.sending.queue.notifications.pop_front()
    }

    /// Whether messages are unsent or unacknowledged, not counting pongs.
    pub fn has_unacknowledged(&self) -> bool {
        self.sending.queue.has_unacknowledged()
    }

    /// Calls `each` for every unfinished message in order, with: sent or not, sequence number,
    /// ports (from, to), length, flags.
    pub(crate) fn waiting(&self, each: impl FnMut(bool, u64, (u16, u16), u32, Flags)) {
        self.sending.queue.waiting(each);
    }

    /// Whether all messages have finished, not counting pongs.
    pub fn all_finished(&self) -> bool {
        !self.sending.queue.has_messages()
    }

    /// Next sequence numbers to send and to expect.
    pub fn next_sequences(&self) -> (u64, u64) {
        (self.sending.next_sequence(), self.receiving.next())
    }

    /// Statistics of the connection.
    pub fn stats(&self) -> ConnectionStats {
        self.receiving.stats
    }
}
