//! State of a socket: receive queue, events, and accounting of the buffers.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use super::{ConnectionId, SocketStats};
use crate::{
    connection::{Bodies, Notification, Status},
    wire::{CongestionMap, Cookie, FRAGMENT},
};

/// Default size of the send and of the receive buffer, in bytes.
pub const DEFAULT_LIMIT: u32 = 106_496;

/// Maximum number of messages in a receive queue, independent of their lengths.
const MAX_MESSAGES: usize = 16_384;

/// Maximum number of messages of one connection in a full receive queue.
const MAX_MESSAGES_OF_ONE: usize = 1024;

/// Accounted overhead per message, in bytes.
const OVERHEAD: u64 = 256;

/// Longest body of a frame that a host keeps as a copy of this length, in bytes. A longer body is accounted as a whole frame.
pub const MAX_COPIED_LEN: u32 = 1024;

/// A message in a receive queue.
#[derive(Debug)]
pub struct Delivery<B> {
    /// The connection; `None` for a local message.
    pub connection: Option<ConnectionId>,
    /// Sequence number; 0 for a local message.
    pub sequence: u64,
    /// Address of the sender.
    pub from: SocketAddr,
    /// Arrival of the first frame and of the whole message; `None` for a local pong.
    pub times: Option<(Duration, Duration)>,
    /// Length in bytes.
    pub len: u32,
    /// The content.
    pub bodies: Bodies<B>,
    /// Memory exported by the sender.
    pub cookie: Option<Cookie>,
}

impl<B> Delivery<B> {
    /// Accounted bytes of a message of `len` bytes.
    pub(super) fn cost(len: u32) -> u64 {
        let (frames, rest) = (len / FRAGMENT, len % FRAGMENT);
        let last = if rest > MAX_COPIED_LEN {
            FRAGMENT
        } else {
            rest
        };
        u64::from(frames) * u64::from(FRAGMENT) + u64::from(last) + OVERHEAD
    }
}

/// A received item, in order of priority.
#[derive(Debug)]
pub enum Event<B> {
    /// The end of an operation.
    Operation(Notification),
    /// Ports no longer congested, for a socket with congestion monitoring: bit `port % 64`.
    Congestion(u64),
    /// A message.
    Message(Delivery<B>),
}

/// Kinds of items in the receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pending {
    /// A message.
    pub message: bool,
    /// An item with priority over messages.
    pub event: bool,
    /// A port of a refused send is no longer congested.
    pub map_changed: bool,
}

/// Readiness of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness {
    /// An item can be received.
    pub readable: bool,
    /// The send buffer has room. The destination may still be congested.
    pub writable: bool,
    /// A port of a refused send is no longer congested, since the last query. A socket with
    /// congestion monitoring receives an event instead.
    pub map_changed: bool,
}

/// Route of the last message, reused for the next one to the same address.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRoute {
    pub(super) to: SocketAddr,
    /// The destination, with an IPv4-mapped address converted.
    pub(super) plain: SocketAddr,
    pub(super) connection: ConnectionId,
    /// [`Ports::changes`](super::ports::Ports::changes) at the time.
    pub(super) changes: u64,
}

#[derive(Debug)]
pub(super) struct SocketState<B> {
    pub(super) bound: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) tos: u8,
    pub(super) cached_route: Option<CachedRoute>,
    /// A message was sent.
    pub(super) has_sent: bool,
    pub(super) send_limit: u32,
    pub(super) recv_limit: u32,
    /// Notify failed operations even without a request.
    pub(super) wants_failures: bool,
    watches: bool,
    /// A send was refused because of congestion.
    pub(super) was_refused: bool,
    /// Ports with a blocked send, and those of them released since.
    watched: u64,
    freed: u64,
    map_changed: bool,
    /// Number of messages in the send buffer.
    unfinished: u64,
    send_bytes: u64,
    /// Bytes sent since the last acknowledgement request because of a half-full buffer.
    bytes_since_ack_request: u64,
    recv_bytes: u64,
    congested: bool,
    messages: VecDeque<Delivery<B>>,
    notifications: VecDeque<Notification>,
    pub(super) stats: SocketStats,
}

impl<B> SocketState<B> {
    pub(super) fn new() -> Self {
        Self {
            bound: None,
            peer: None,
            tos: 0,
            cached_route: None,
            has_sent: false,
            send_limit: DEFAULT_LIMIT,
            recv_limit: DEFAULT_LIMIT,
            wants_failures: false,
            watches: false,
            was_refused: false,
            watched: 0,
            freed: 0,
            map_changed: false,
            unfinished: 0,
            send_bytes: 0,
            bytes_since_ack_request: 0,
            recv_bytes: 0,
            congested: false,
            messages: VecDeque::new(),
            notifications: VecDeque::new(),
            stats: SocketStats::default(),
        }
    }

    /// Whether another message fits. The last one may exceed the limit.
    pub(super) fn may_send(&self) -> bool {
        self.send_bytes < self.send_limit.into()
    }

    /// Whether the buffer would be half full with `more` bytes.
    pub(super) fn is_half_full(&self, more: u32) -> bool {
        self.send_bytes + u64::from(more) >= u64::from(self.send_limit) / 2
    }

    /// Accounts for a queued message. Returns whether the message should request an
    /// acknowledgement: while the buffer is at least half full, once per eighth of the limit.
    pub(super) fn queued(&mut self, len: u32) -> bool {
        self.has_sent = true;
        self.stats.sent(len);
        let (len, limit) = (u64::from(len), u64::from(self.send_limit));
        self.unfinished += 1;
        self.send_bytes += len;
        self.bytes_since_ack_request = self.bytes_since_ack_request.saturating_add(len);
        let is_due = self.is_half_full(0) && self.bytes_since_ack_request >= limit / 8;
        if is_due {
            self.bytes_since_ack_request = 0;
        }
        is_due
    }

    /// Accounts for a finished message.
    pub(super) fn released(&mut self, len: u32) {
        self.unfinished = self.unfinished.saturating_sub(1);
        self.send_bytes = self.send_bytes.saturating_sub(len.into());
    }

    /// Whether the send buffer holds messages.
    pub(super) fn has_unfinished(&self) -> bool {
        self.unfinished > 0
    }

    /// Whether another message can be received. Only a multiple of the limit is too much, because
    /// senders react late to congestion.
    pub(super) fn has_space(&self) -> bool {
        self.recv_bytes < 4 * u64::from(self.recv_limit.max(1))
            && self.messages.len() < MAX_MESSAGES
    }

    /// Whether a connection alone fills the receive queue: its messages exceed the limit, at which
    /// it was asked to stop.
    pub(super) fn is_filled_by(&self, connection: ConnectionId) -> bool {
        let mut of_connection = (0, 0);
        for delivery in &self.messages {
            if delivery.connection == Some(connection) {
                of_connection = (
                    of_connection.0 + u64::from(delivery.len),
                    of_connection.1 + 1,
                );
            }
        }
        of_connection.0 >= u64::from(self.recv_limit.max(1))
            || of_connection.1 >= MAX_MESSAGES_OF_ONE
    }

    pub(super) fn deliver(&mut self, delivery: Delivery<B>) {
        self.recv_bytes += u64::from(delivery.len);
        self.messages.push_back(delivery);
    }

    /// The new congestion state of the port; `None` if unchanged.
    pub(super) fn congestion(&mut self) -> Option<bool> {
        let limit = u64::from(self.recv_limit);
        let congested = if self.congested {
            // With a limit of 0 or 1, an empty queue must count as released.
            self.recv_bytes >= limit / 2 && self.recv_bytes > 0
        } else {
            self.recv_bytes > limit
        };
        (congested != self.congested).then(|| {
            self.congested = congested;
            congested
        })
    }

    pub(super) fn is_congested(&self) -> bool {
        self.congested
    }

    pub(super) fn watch(&mut self, watches: bool) {
        self.watches = watches;
        self.map_changed &= !watches;
    }

    /// Records a blocked send to this port.
    pub(super) fn blocked(&mut self, port: u16) {
        self.was_refused = true;
        self.watched |= CongestionMap::fold(port);
    }

    /// Whether a send was refused by a port that is not released yet.
    pub(super) fn awaits_ports(&self) -> bool {
        self.watched != 0
    }

    /// Handles the release of ports. Returns whether a send to one of them was refused.
    pub(super) fn ports_released(&mut self, released: u64) -> bool {
        let freed = self.watched & released;
        self.watched &= !released;
        if self.watches {
            self.freed |= freed;
        } else {
            self.map_changed |= freed != 0;
        }
        freed != 0
    }

    pub(super) fn notify(&mut self, notification: Notification) {
        let failed = notification.status != Status::Success;
        if notification.requested || failed && self.wants_failures {
            self.notifications.push_back(notification);
        }
    }

    /// The received messages.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Delivery<B>> {
        self.messages.iter()
    }

    pub(super) fn bodies_mut(&mut self) -> impl Iterator<Item = &mut B> {
        let messages = self.messages.iter_mut();
        messages.flat_map(|delivery| delivery.bodies.as_mut_slice())
    }

    pub(super) fn peek(&self) -> Option<&Delivery<B>> {
        self.messages.front()
    }

    #[inline]
    pub(super) fn receive(&mut self) -> Option<Event<B>> {
        if let Some(notification) = self.notifications.pop_front() {
            return Some(Event::Operation(notification));
        }
        if self.freed != 0 {
            return Some(Event::Congestion(std::mem::take(&mut self.freed)));
        }
        self.receive_message().map(Event::Message)
    }

    /// Takes the next message, skipping other items.
    #[inline]
    pub(super) fn receive_message(&mut self) -> Option<Delivery<B>> {
        self.leave_message();
        self.take_message()
    }

    /// Subtracts the next message from the accounting, before [`take_message`](Self::take_message).
    /// Returns its connection and length.
    #[inline]
    pub(super) fn leave_message(&mut self) -> Option<(Option<ConnectionId>, u32)> {
        let next = self.messages.front()?;
        self.recv_bytes -= u64::from(next.len);
        self.stats.received(next.len);
        Some((next.connection, next.len))
    }

    #[inline]
    pub(super) fn take_message(&mut self) -> Option<Delivery<B>> {
        self.messages.pop_front()
    }

    #[inline]
    pub(super) fn pending(&self) -> Pending {
        Pending {
            message: !self.messages.is_empty(),
            event: self.has_event(),
            map_changed: self.map_changed,
        }
    }

    pub(super) fn has_event(&self) -> bool {
        !self.notifications.is_empty() || self.freed != 0
    }

    pub(super) fn readiness(&mut self) -> Readiness {
        Readiness {
            readable: self.has_event() || !self.messages.is_empty(),
            writable: self.may_send(),
            map_changed: std::mem::take(&mut self.map_changed),
        }
    }

    /// Bytes in the send and in the receive buffer.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.send_bytes, self.recv_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_is_requested_while_send_buffer_is_half_full() {
        let mut socket: SocketState<Vec<u8>> = SocketState::new();
        socket.send_limit = 8000;
        let asking = |socket: &mut SocketState<Vec<u8>>, messages| -> Vec<u32> {
            (1..=messages).filter(|_| socket.queued(500)).collect()
        };
        assert_eq!(asking(&mut socket, 16), [8, 10, 12, 14, 16]);
        socket.released(4500);
        assert_eq!(asking(&mut socket, 3), [2], "the first is below half");
        socket.released(5000);
        assert!(!socket.queued(100));
        assert!(socket.queued(4000));
        // Messages of an eighth of the limit ask each time.
        assert!(socket.queued(1000) && socket.queued(1000));
    }
}
