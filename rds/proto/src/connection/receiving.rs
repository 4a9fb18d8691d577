//! Reassembly of messages, and removal of duplicates.

use std::{mem, time::Duration};

use super::{acks::Acks, failure::Violation};
use crate::wire::{
    CongestionMap, Cookie, Extension, FRAGMENT, Flags, Header, MAX_MESSAGE, PING_PORT,
    RESERVED_PORT,
};

/// Time within which all frames of a message have to arrive. Until then, the frames take memory.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Bodies of the frames of a message.
#[derive(Debug)]
pub enum Bodies<B> {
    /// A single frame, the common case.
    One(B),
    /// Several frames.
    Many(Vec<B>),
}

impl<B> Bodies<B> {
    /// The bodies in order.
    pub fn as_slice(&self) -> &[B] {
        match self {
            Self::One(body) => std::slice::from_ref(body),
            Self::Many(bodies) => bodies,
        }
    }

    /// The bodies in order, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [B] {
        match self {
            Self::One(body) => std::slice::from_mut(body),
            Self::Many(bodies) => bodies,
        }
    }

    fn push(&mut self, body: B) {
        if let Self::One(_) = self {
            let first = mem::replace(self, Self::Many(Vec::with_capacity(4)));
            if let (Self::Many(bodies), Self::One(first)) = (&mut *self, first) {
                bodies.push(first);
            }
        }
        if let Self::Many(bodies) = self {
            bodies.push(body);
        }
    }
}

/// A received message.
#[derive(Debug)]
pub struct Incoming<B> {
    /// Sequence number.
    pub sequence: u64,
    /// Source port.
    pub from: u16,
    /// Destination port.
    pub to: u16,
    /// Arrival time of the first frame.
    pub began: Duration,
    /// Length in bytes.
    pub len: u32,
    /// The content.
    pub bodies: Bodies<B>,
    /// Memory exported by the sender.
    pub cookie: Option<Cookie>,
    /// Key of local memory used by the sender, to end use-once exports.
    pub used: Option<u32>,
    pub(super) ack_required: bool,
}

/// A received message, ping or map.
#[derive(Debug)]
pub enum Received<B> {
    /// A message. Call [`Connection::take`](super::Connection::take) before the next frame.
    Message(Incoming<B>),
    /// A ping from this port.
    Ping(u16),
    /// The congestion map of the peer.
    Map(CongestionMap),
}

#[derive(Debug)]
struct Assembly<B> {
    header: Header,
    bodies: Bodies<B>,
    received: u32,
    began: Duration,
}

/// A completely received message.
#[derive(Debug)]
pub(super) struct Reassembled<B> {
    pub(super) header: Header,
    pub(super) bodies: Bodies<B>,
    pub(super) began: Duration,
}

/// Statistics of a connection between two hosts, across losses of the RDMA connection. Anomalies of the protocol are counted
/// here, too; none of them ends the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// RDMA connections established; each after the first is a reconnect.
    pub established: u64,
    /// Messages sent again on a new RDMA connection.
    pub retransmitted: u64,
    /// Duplicates: `recv_drop_old_seq`.
    pub duplicates: u64,
    /// Connections whose first message had a number too low, without the retransmission flag.
    pub rewinds: u64,
    /// Detected restarts of the peer.
    pub restarts: u64,
    /// Acknowledgements of unsent messages.
    pub false_acks: u64,
    /// Malformed congestion maps.
    pub bad_maps: u64,
    /// Messages to port 1.
    pub reserved: u64,
    /// Pings without an answer, because too many pongs were queued.
    pub unanswered: u64,
}

#[derive(Debug)]
pub(super) struct Receiving<B> {
    next: u64,
    /// No message was received on this RDMA connection.
    is_first: bool,
    assembly: Option<Assembly<B>>,
    /// Highest sequence number of an acknowledgement received by the peer's device, on this RDMA
    /// connection and on earlier ones.
    confirmed: u64,
    confirmed_before: u64,
    unchecked: bool,
    detect_restarts: bool,
    max_message: u32,
    /// The capabilities in the peer's map include delayed acknowledgements.
    pub(super) peer_delays_acks: bool,
    pub(super) stats: ConnectionStats,
}

impl<B: AsRef<[u8]>> Receiving<B> {
    pub(super) fn new(settings: &super::Settings) -> Self {
        Self {
            next: 0,
            is_first: true,
            assembly: None,
            confirmed: 0,
            confirmed_before: 0,
            unchecked: settings.accept_unchecked,
            detect_restarts: settings.detect_restarts,
            max_message: settings.max_message.min(MAX_MESSAGE),
            peer_delays_acks: false,
            stats: ConnectionStats::default(),
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn reset(&mut self) {
        self.is_first = true;
        self.assembly = None;
        self.peer_delays_acks = false;
        self.confirmed_before = self.confirmed_before.max(self.confirmed);
    }

    /// Handles the send completion of a frame with this acknowledgement.
    pub(super) fn confirmed(&mut self, ack: u64) {
        // Ignore acknowledgements sent before a restart of the peer.
        if ack < self.next {
            self.confirmed = self.confirmed.max(ack);
        }
    }

    pub(super) fn header(&self, wire: &[u8]) -> Result<Header, Violation> {
        Ok(Header::decode(wire, self.unchecked)?)
    }

    /// Whether a frame of `len` body bytes is a whole in-order message without extensions, the
    /// common case.
    pub(super) fn is_plain(&self, header: &Header, len: usize) -> bool {
        let is_whole = header.len as usize == len && header.len <= FRAGMENT.min(self.max_message);
        let next = header.sequence >= self.next && header.sequence != 0;
        let bytes = !header.flags.contains(Flags::CONG_BITMAP) && header.extensions.is_empty();
        let port = ![PING_PORT, RESERVED_PORT].contains(&header.to);
        is_whole && next && bytes && port && self.assembly.is_none()
    }

    /// Accepts a plain message.
    pub(super) fn take_plain(&mut self, now: Duration, acks: &mut Acks, header: &Header) {
        self.accepted(now, acks, header.sequence, header.requires_ack());
    }

    /// Time at which the incomplete message, if any, takes too long.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let assembly = self.assembly.as_ref()?;
        Some(assembly.began.saturating_add(MESSAGE_TIMEOUT))
    }

    /// Adds a frame; returns the message if complete.
    pub(super) fn frame(
        &mut self,
        now: Duration,
        header: Header,
        body: B,
    ) -> Result<Option<Reassembled<B>>, Violation> {
        if header.len > self.max_message {
            return Err(Violation::MessageLen(header.len));
        }
        let received = match &self.assembly {
            None => 0,
            Some(Assembly {
                header: first,
                received,
                ..
            }) => {
                let key = |header: &Header| (header.sequence, header.len, header.from, header.to);
                if key(first) != key(&header) {
                    return Err(Violation::Interleaved);
                }
                *received
            }
        };
        let expected = FRAGMENT.min(header.len - received);
        let len = body.as_ref().len();
        if len != expected as usize {
            return Err(Violation::FrameLen { expected, len });
        }
        let assembly = match self.assembly.take() {
            None => Assembly {
                header,
                bodies: Bodies::One(body),
                received: expected,
                began: now,
            },
            Some(mut assembly) => {
                assembly.bodies.push(body);
                assembly.received += expected;
                assembly
            }
        };
        if assembly.received == header.len {
            return Ok(Some(Reassembled {
                header: assembly.header,
                bodies: assembly.bodies,
                began: assembly.began,
            }));
        }
        self.assembly = Some(assembly);
        Ok(None)
    }

    /// Decodes a congestion map, and notes the capabilities sent with it. `None` for a malformed
    /// map.
    fn map(&mut self, header: &Header, bodies: &Bodies<B>) -> Option<CongestionMap> {
        let is_map = header.flags == Flags::CONG_BITMAP;
        let map = is_map.then(|| CongestionMap::decode(bodies.as_slice()));
        let Some(map) = map.flatten() else {
            self.stats.bad_maps += 1;
            return None;
        };
        let capabilities = header
            .extensions
            .iter()
            .find_map(|extension| match extension {
                Extension::Capabilities(capabilities) => Some(capabilities),
                _ => None,
            });
        let capabilities = capabilities.unwrap_or_default();
        self.peer_delays_acks = capabilities & !Extension::RX_LOST == Extension::DELAYED_ACKS;
        let is_this_crate = self.peer_delays_acks || capabilities == Extension::RX_LOST;
        if is_this_crate && capabilities & Extension::RX_LOST != 0 {
            // Acknowledgements on the peer's device may have been lost.
            self.confirmed = 0;
            self.confirmed_before = 0;
        }
        Some(map)
    }

    /// Classifies a complete message; `None` if there is nothing to deliver.
    pub(super) fn message(
        &mut self,
        now: Duration,
        acks: &mut Acks,
        reassembled: Reassembled<B>,
    ) -> Option<Received<B>> {
        let Reassembled {
            header,
            bodies,
            began,
        } = reassembled;
        if header.flags.contains(Flags::CONG_BITMAP) {
            return self.map(&header, &bodies).map(Received::Map);
        }
        let sequence = header.sequence;
        let ack_required = header.requires_ack();
        let is_retransmitted = header.flags.contains(Flags::RETRANSMITTED);
        // Later, a low number is a duplicate of the device.
        let is_first = mem::replace(&mut self.is_first, false);
        if sequence < self.next {
            if !is_retransmitted && is_first {
                self.stats.rewinds += 1;
                self.forget();
            } else if is_retransmitted && self.detect_restarts && sequence <= self.confirmed_before
            {
                // A peer with intact state does not retransmit confirmed messages.
                self.stats.restarts += 1;
                self.forget();
            } else {
                self.stats.duplicates += 1;
                acks.handled(now, sequence, ack_required);
                return None;
            }
        }
        let mut incoming = Incoming {
            sequence,
            from: header.from,
            to: header.to,
            began,
            len: header.len,
            bodies,
            cookie: None,
            used: None,
            ack_required,
        };
        match header.to {
            PING_PORT => {
                self.take(now, acks, &incoming);
                (header.from != PING_PORT && header.from != RESERVED_PORT)
                    .then_some(Received::Ping(header.from))
            }
            RESERVED_PORT => {
                self.stats.reserved += 1;
                self.take(now, acks, &incoming);
                None
            }
            _ => {
                for extension in &header.extensions {
                    match extension {
                        Extension::Rdma(rkey) => incoming.used = Some(rkey),
                        Extension::Destination(cookie) => incoming.cookie = Some(cookie),
                        _ => {}
                    }
                }
                Some(Received::Message(incoming))
            }
        }
    }

    fn forget(&mut self) {
        self.next = 0;
        self.confirmed = 0;
        self.confirmed_before = 0;
    }

    pub(super) fn take(&mut self, now: Duration, acks: &mut Acks, incoming: &Incoming<B>) {
        self.accepted(now, acks, incoming.sequence, incoming.ack_required);
    }

    fn accepted(&mut self, now: Duration, acks: &mut Acks, sequence: u64, ack_required: bool) {
        self.is_first = false;
        self.next = sequence.wrapping_add(1);
        acks.handled(now, sequence, ack_required);
    }

    #[cfg(test)]
    pub(super) fn is_assembling(&self) -> bool {
        self.assembly.is_some()
    }
}
