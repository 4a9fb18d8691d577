//! One socket: what waits to be received, and how much waits to be acknowledged.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use super::ConnectionId;
use crate::proto::{
    connection::{Bodies, Notification, Status},
    wire::{CongestionMap, Cookie},
};

/// The bytes a socket may have waiting, each way, unless it is told otherwise.
pub const DEFAULT_LIMIT: u32 = 106_496;

/// Maximum number of messages that wait in a socket, whatever their lengths.
const MAX_MESSAGES: usize = 16_384;

/// Maximum number of them that come by one connection, where there are too many in all.
const MAX_MESSAGES_OF_ONE: usize = 1024;

/// The bytes that a message takes in all beside its own.
const OVERHEAD: u64 = 256;

/// A message for a socket.
#[derive(Debug)]
pub struct Delivery<B> {
    /// The connection that it has come by; `None` if it has not left the host.
    pub connection: Option<ConnectionId>,
    /// Its number; 0 if it has not left the host.
    pub sequence: u64,
    /// Who has sent it.
    pub from: SocketAddr,
    /// When its first frame arrived, and when it was whole, if that took time.
    pub times: Option<(Duration, Duration)>,
    /// The number of bytes.
    pub len: u32,
    /// The bytes.
    pub bodies: Bodies<B>,
    /// Memory of the sender's that the receiver may use.
    pub cookie: Option<Cookie>,
}

impl<B> Delivery<B> {
    /// The bytes that a message of `len` bytes takes while it waits.
    pub(super) fn cost(len: u32) -> u64 {
        u64::from(len) + OVERHEAD
    }
}

/// What a socket receives; the first kinds come first.
#[derive(Debug)]
pub enum Event<B> {
    /// An operation has ended.
    Operation(Notification),
    /// Ports that were congested are no more: bit `port % 64` for each that the socket watches.
    Congestion(u64),
    /// A message.
    Message(Delivery<B>),
}

/// What there is to be received from a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pending {
    /// A message.
    pub message: bool,
    /// Something else, which comes before it.
    pub event: bool,
    /// Some peer has told anew which ports are congested.
    pub map_changed: bool,
}

/// What a socket can do now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness {
    /// There is something to receive.
    pub readable: bool,
    /// Less is waiting to be acknowledged than may be. The destination may be congested.
    pub writable: bool,
    /// Some peer has told anew which ports are congested, since this was last asked for. A socket
    /// that watches congestion hears of what it watches only, by an event.
    pub map_changed: bool,
}

/// Which way a message has gone: the next one to the same address goes there, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedRoute {
    pub(super) to: SocketAddr,
    /// What was to be sent to, in its plain form.
    pub(super) plain: SocketAddr,
    pub(super) connection: ConnectionId,
    /// What [`Ports::changes`](super::ports::Ports::changes) said.
    pub(super) changes: u64,
}

#[derive(Debug)]
pub(super) struct Socket<B> {
    pub(super) bound: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) tos: u8,
    pub(super) cached_route: Option<CachedRoute>,
    /// It has sent something.
    pub(super) has_sent: bool,
    pub(super) send_limit: u32,
    pub(super) recv_limit: u32,
    /// Operations that fail are told even where nobody asked for it.
    pub(super) wants_failures: bool,
    watches: bool,
    /// Ports that a message could not be sent to, and those of them that are free again.
    watched: u64,
    freed: u64,
    map_changed: bool,
    send_bytes: u64,
    /// How many bytes have been sent since a message has asked for an acknowledgement for their sake.
    bytes_since_ack_request: u64,
    recv_bytes: u64,
    congested: bool,
    messages: VecDeque<Delivery<B>>,
    notifications: VecDeque<Notification>,
}

impl<B> Socket<B> {
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
            watched: 0,
            freed: 0,
            map_changed: false,
            send_bytes: 0,
            bytes_since_ack_request: 0,
            recv_bytes: 0,
            congested: false,
            messages: VecDeque::new(),
            notifications: VecDeque::new(),
        }
    }

    /// Whether another message may wait: the last may be too much.
    pub(super) fn may_send(&self) -> bool {
        self.send_bytes < self.send_limit.into()
    }

    /// Whether half of what may wait does, with so many bytes more.
    pub(super) fn is_half_full(&self, more: u32) -> bool {
        self.send_bytes + u64::from(more) >= u64::from(self.send_limit) / 2
    }

    /// A message waits to be acknowledged; whether it asks for that: while half of what may wait does, as many
    /// do as there are eighths.
    pub(super) fn queued(&mut self, len: u32) -> bool {
        self.has_sent = true;
        let (len, limit) = (u64::from(len), u64::from(self.send_limit));
        self.send_bytes += len;
        self.bytes_since_ack_request = self.bytes_since_ack_request.saturating_add(len);
        let asks = self.is_half_full(0) && self.bytes_since_ack_request >= limit / 8;
        if asks {
            self.bytes_since_ack_request = 0;
        }
        asks
    }

    pub(super) fn released(&mut self, len: u32) {
        self.send_bytes = self.send_bytes.saturating_sub(len.into());
    }

    /// Whether there is room for a message, however small: far more than the limit is too much.
    pub(super) fn has_room(&self) -> bool {
        self.recv_bytes < 4 * u64::from(self.recv_limit.max(1))
            && self.messages.len() < MAX_MESSAGES
    }

    /// Whether a connection has so much waiting here that it is what leaves no room: more than the limit by itself,
    /// at which it was told to stop.
    pub(super) fn is_filled_by(&self, connection: ConnectionId) -> bool {
        let mut own = (0, 0);
        for delivery in &self.messages {
            if delivery.connection == Some(connection) {
                own = (own.0 + u64::from(delivery.len), own.1 + 1);
            }
        }
        own.0 >= u64::from(self.recv_limit.max(1)) || own.1 >= MAX_MESSAGES_OF_ONE
    }

    pub(super) fn deliver(&mut self, delivery: Delivery<B>) {
        self.recv_bytes += u64::from(delivery.len);
        self.messages.push_back(delivery);
    }

    /// Whether the port is congested from now on, or no more; `None` if nothing changes.
    pub(super) fn congestion(&mut self) -> Option<bool> {
        let limit = u64::from(self.recv_limit);
        let congested = if self.congested {
            // An empty queue has room even where nothing is less than half the limit.
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

    /// A message could not be sent to this port.
    pub(super) fn blocked(&mut self, port: u16) {
        self.watched |= CongestionMap::fold(port);
    }

    /// Records that a peer's map has come, and these ports are free again. Returns whether one of them was refused to
    /// this socket.
    pub(super) fn map_came(&mut self, released: u64) -> bool {
        let freed = self.watched & released;
        self.watched &= !released;
        if self.watches {
            self.freed |= freed;
        } else {
            self.map_changed = true;
        }
        freed != 0
    }

    pub(super) fn notify(&mut self, notification: Notification) {
        let failed = notification.status != Status::Success;
        if notification.requested || failed && self.wants_failures {
            self.notifications.push_back(notification);
        }
    }

    /// What waits to be received.
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

    /// The next message, whatever else there is.
    #[inline]
    pub(super) fn receive_message(&mut self) -> Option<Delivery<B>> {
        self.leave_message();
        self.take_message()
    }

    /// Takes the next message out of the count; it is [taken](Self::take_message) next. Returns the connection that it
    /// has come by, and its bytes.
    #[inline]
    pub(super) fn leave_message(&mut self) -> Option<(Option<ConnectionId>, u32)> {
        let next = self.messages.front()?;
        self.recv_bytes -= u64::from(next.len);
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

    /// The bytes that wait to be acknowledged, and to be received.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.send_bytes, self.recv_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U-P03
    #[test]
    fn messages_ask_while_half_of_what_may_wait_does() {
        let mut socket: Socket<Vec<u8>> = Socket::new();
        socket.send_limit = 8000;
        let asking = |socket: &mut Socket<Vec<u8>>, messages| -> Vec<u32> {
            (1..=messages).filter(|_| socket.queued(500)).collect()
        };
        assert_eq!(asking(&mut socket, 16), [8, 10, 12, 14, 16]);
        socket.released(4500);
        assert_eq!(asking(&mut socket, 3), [2], "the first is below half");
        socket.released(5000);
        assert!(!socket.queued(100));
        assert!(socket.queued(4000));
        // Where each is an eighth, each asks.
        assert!(socket.queued(1000) && socket.queued(1000));
    }
}
