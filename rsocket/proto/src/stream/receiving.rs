//! Receiving data: the ring written by the peer, and the room granted.

use std::{collections::VecDeque, ops::Range};

use super::{
    Local, Stream, TARGETS,
    failure::Violation,
    growth::Growth,
    outgoing::{Outgoing, Payload, PayloadSource, Tag},
    ring::Ring,
    settings::{Framing, Settings},
};
use crate::{ByteOrder, ConnectData, Message, Target};

#[derive(Debug)]
pub(super) struct Receiving {
    /// Lengths of unread messages; of the first, the unread rest.
    waiting: VecDeque<u32>,
    /// The current buffer.
    ring: Ring,
    /// The previous buffer, while writable by the peer or unread. Its data precedes all data of the current
    /// buffer. The peer gets no further targets there.
    old: Option<Ring>,
    /// Number of messages read; limit granted to the peer; number received.
    done: u16,
    limit: u16,
    arrived: u16,
    /// Value of `done` at the next credit update.
    update_at: u16,
    depth: u16,
    growth: Growth,
    /// The peer has run out of room, and data is still unread.
    ran_out: bool,
    /// The peer's table, and the next entry to write.
    peer_table: Target,
    peer_entry: u32,
    peer_order: ByteOrder,
}

/// A contiguous piece of received data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whether the piece is in the previous buffer, [replaced](Stream::receive_into) by the current one.
    pub is_old: bool,
    /// Range in the buffer.
    pub range: Range<u32>,
}

/// An update for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Update {
    Credits,
    CreditsAndTarget,
}

impl Update {
    pub(super) fn writes_target(self) -> bool {
        self == Self::CreditsAndTarget
    }
}

impl Receiving {
    pub(super) fn new(settings: &Settings, local: &Local, peer: &ConnectData) -> Self {
        let size = settings.recv_buffer_idle;
        // Doubled some times, so that the lengths of all targets have the same number of set bits.
        let doubled =
            |requested: u32| size << (requested / size).checked_ilog2().unwrap_or_default();
        let growth = Growth::new(
            size,
            doubled(settings.recv_buffer),
            doubled(settings.recv_buffer_max),
        );
        let buffer = (local.buffer_addr, local.buffer_rkey);
        let mut ring = Ring::new(buffer, size, peer.targets.len.min(TARGETS));
        // Advertised by the connect data.
        ring.grant(settings.first_target());
        Self {
            waiting: VecDeque::with_capacity(settings.recv_depth.into()),
            ring,
            old: None,
            done: 0,
            limit: settings.recv_depth,
            arrived: 0,
            // librdmacm's first message is an update as well. Without it, a stream that only receives would not
            // notice a failed queue pair.
            update_at: 0,
            depth: settings.recv_depth,
            growth,
            ran_out: false,
            peer_table: peer.targets,
            peer_entry: 1,
            peer_order: peer.order,
        }
    }

    fn unread(&self) -> u32 {
        self.old.as_ref().map_or(0, |old| old.unread) + self.ring.unread
    }

    /// Bytes the peer may still write.
    fn granted(&self) -> u32 {
        self.old.as_ref().map_or(0, |old| old.granted) + self.ring.granted
    }

    /// Number of usable entries in the peer's table.
    fn entries(&self) -> u32 {
        self.peer_table.len.min(TARGETS)
    }

    /// Counts a message against the peer's credits.
    pub(super) fn count_message(&mut self) -> Result<(), Violation> {
        if self.arrived == self.limit {
            return Err(Violation::Credits);
        }
        self.arrived = self.arrived.wrapping_add(1);
        Ok(())
    }

    /// Returns the credit of a message.
    pub(super) fn message_done(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// Handles `len` bytes written by the peer.
    pub(super) fn arrived(&mut self, len: u32, unwanted: bool) -> Result<(), Violation> {
        self.count_message()?;
        let ring = match &mut self.old {
            Some(old) if old.granted > 0 => old,
            _ => &mut self.ring,
        };
        ring.write(len).ok_or(Violation::Overflow(len))?;
        if self.granted() == 0 {
            self.ran_out = true;
            // Two programs that write before they read need the size in use, as they have with librdmacm.
            if self.growth.is_small() {
                self.growth.count_stall();
            }
        }
        self.waiting.push_back(len);
        if unwanted {
            self.consume(u32::MAX);
        } else {
            self.pass_empty();
        }
        Ok(())
    }

    /// Completes empty messages at the head of the queue.
    fn pass_empty(&mut self) {
        while self.waiting.front() == Some(&0) {
            self.waiting.pop_front();
            self.message_done();
        }
    }

    /// Consumes up to `len` unread bytes.
    fn consume(&mut self, len: u32) {
        let from_old = self.old.as_mut().map_or(0, |old| old.consume(len));
        let len = from_old + self.ring.consume(len - from_old);
        self.drop_unused_old();
        let mut remaining = len;
        while let Some(message) = self.waiting.front_mut() {
            let consumed = remaining.min(*message);
            *message -= consumed;
            remaining -= consumed;
            if *message > 0 {
                break;
            }
            self.waiting.pop_front();
            self.done = self.done.wrapping_add(1);
        }
        if self.unread() == 0 && self.ran_out {
            self.ran_out = false;
            self.growth.count_stall();
        }
    }

    fn drop_unused_old(&mut self) {
        if self.old.as_ref().is_some_and(Ring::is_unused) {
            self.old = None;
        }
    }

    /// Replaces the buffer; the previous one stays until used up.
    fn replace(&mut self, size: u32, buffer: (u64, u32)) {
        let ring = Ring::new(buffer, size, self.entries());
        self.old = Some(std::mem::replace(&mut self.ring, ring));
        self.drop_unused_old();
        self.growth.grown(size);
        self.ran_out = false;
    }

    /// Returns the update due now, if any.
    pub(super) fn update_due(&self) -> Option<Update> {
        let least = if self.granted() < self.ring.half {
            self.ring.part
        } else {
            self.ring.half
        };
        // The targets of one buffer always fit the table; those of two may not. The buffer of the handshake has one
        // target, so that a table of two entries has one for the next buffer.
        let has_entry = self
            .old
            .as_ref()
            .is_none_or(|old| old.entries().min(old.grants) + self.ring.entries() < self.entries());
        if self.ring.free >= least && has_entry {
            return Some(Update::CreditsAndTarget);
        }
        let beyond = self.done.wrapping_sub(self.update_at);
        (beyond < 1 << 15).then_some(Update::Credits)
    }

    /// Creates the request for an update.
    pub(super) fn update(&mut self, update: Update, slot: u16, settings: &Settings) -> Outgoing {
        self.update_at = self.done.wrapping_add(self.depth / 2);
        self.limit = self.done.wrapping_add(self.depth);
        let mut outgoing = Outgoing::bare(Tag::Credit, Some(Message::Credit(self.limit)));
        if update == Update::CreditsAndTarget {
            let target = self.ring.grant(self.ring.half);
            let source = if settings.inlines_targets() {
                PayloadSource::Inline
            } else {
                PayloadSource::Slot(slot)
            };
            outgoing.payload = Payload::Target(target.encode(self.peer_order), source);
            let entry = u64::from(self.peer_entry) * Target::SIZE as u64;
            outgoing.addr = self.peer_table.addr.wrapping_add(entry);
            outgoing.rkey = self.peer_table.rkey;
            self.peer_entry = (self.peer_entry + 1) % self.peer_table.len;
        }
        outgoing
    }
}

impl Stream {
    /// Number of received, unread bytes.
    pub fn unread(&self) -> u32 {
        self.receiving.unread()
    }

    /// Whether the peer has no room, or no credit, for more data until bytes are consumed.
    pub fn is_full(&self) -> bool {
        let receiving = &self.receiving;
        receiving.granted() == 0 || receiving.arrived == receiving.limit
    }

    /// Returns the pieces of the next `len` bytes, or of all unread bytes if fewer.
    pub fn next_bytes(&self, len: usize) -> impl Iterator<Item = Piece> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let Receiving { ring, old, .. } = &self.receiving;
        let from_old = old.as_ref().map_or(0, |old| old.unread.min(len));
        let old = old.as_ref().map(|old| (true, old.next(from_old)));
        let new = (false, ring.next(len - from_old));
        let pieces = old.into_iter().chain([new]);
        pieces
            .flat_map(|(is_old, ranges)| ranges.map(|range| Piece { is_old, range }))
            .filter(|piece| !piece.range.is_empty())
    }

    /// Consumes up to `len` unread bytes. Their room returns to the peer with the next
    /// [`control`](Self::control) requests.
    pub fn consume(&mut self, len: usize) {
        let len = self.unread().min(u32::try_from(len).unwrap_or(u32::MAX));
        if len > 0 {
            self.receiving.consume(len);
        }
    }

    /// Grows a receive buffer that is smaller than in use, without a stall: the peer has completed the handshake. Returns
    /// whether it grows. Over iWARP the first stall grows the buffer instead, and nothing is to be sent now: a message
    /// ends the connection of a peer that has not read the reply yet (RFC 5044, section 7.1.2).
    pub fn want_receive_buffer(&mut self) -> bool {
        let speaks_first = self.settings.framing == Framing::Immediate;
        let growth = &mut self.receiving.growth;
        let grows = speaks_first && growth.is_small();
        if grows {
            growth.count_stall();
        }
        grows
    }

    /// Returns the size of a larger receive buffer, if wanted. Query before [`control`](Self::control), and
    /// reply with [`receive_into`](Self::receive_into) or [`keep_receiving`](Self::keep_receiving). The
    /// present buffer stays in use until then.
    pub fn larger_receive_buffer(&self) -> Option<u32> {
        // A larger buffer is useless after the end.
        let requested = self.receiving.growth.requested_size();
        requested.filter(|_| self.is_readable() && !self.uses_old_buffer())
    }

    /// Switches to a new receive buffer of the wanted size. The previous one must stay while [in
    /// use](Self::uses_old_buffer).
    pub fn receive_into(&mut self, addr: u64, rkey: u32) {
        if let Some(size) = self.larger_receive_buffer() {
            self.receiving.replace(size, (addr, rkey));
        }
    }

    /// Whether the previous receive buffer has unread bytes or is still writable by the peer. Once false, false
    /// until the next growth.
    pub fn uses_old_buffer(&self) -> bool {
        self.receiving.old.is_some()
    }

    /// Keeps the present receive buffer, until further stalls.
    pub fn keep_receiving(&mut self) {
        self.receiving.growth.refused();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Local;

    #[test]
    fn passive_side_grows_before_the_first_message_only_with_immediate_data() {
        let grown = |framing| {
            let mut settings = Settings {
                framing,
                ..Settings::default()
            };
            settings.set_recv_buffer(128 << 10);
            let settings = settings.half_open();
            let local = Local {
                table_addr: 0x1000,
                table_rkey: 1,
                buffer_addr: 0x2000,
                buffer_rkey: 2,
                order: ByteOrder::HOST,
            };
            let peer = Stream::connect_data(&settings, &local);
            let mut stream = Stream::new(settings, &local, &peer);
            let grows = stream.want_receive_buffer();
            (grows, stream.larger_receive_buffer())
        };
        assert_eq!(grown(Framing::Immediate), (true, Some(128 << 10)));
        assert_eq!(grown(Framing::Separate), (false, None));
    }
}
