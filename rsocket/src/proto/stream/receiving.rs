//! Receiving data: the ring that the peer writes to, and what it is told of the room there.

use std::{collections::VecDeque, ops::Range};

use super::{
    Local, Stream, TARGETS,
    failure::Violation,
    growth::Growth,
    outgoing::{Outgoing, Payload, Place, Tag},
    ring::Ring,
    settings::Settings,
};
use crate::proto::{ByteOrder, ConnectData, Message, Target};

#[derive(Debug)]
pub(super) struct Receiving {
    /// The lengths of the messages that have not been read to their ends; of the first, what is
    /// left.
    waiting: VecDeque<u32>,
    /// The buffer that the peer is told of.
    ring: Ring,
    /// The one before, while the peer may still write to it, or something there has not been read: all of that
    /// comes before anything in the other. The peer is told of nothing more there.
    old: Option<Ring>,
    /// Half of what the buffer had first, which is the most that a target covers.
    half: u32,
    /// Messages that have been read, of which the peer has been told, that have arrived.
    done: u16,
    limit: u16,
    arrived: u16,
    /// The peer is told when so many have been done.
    tell_at: u16,
    depth: u16,
    growth: Growth,
    /// The peer has run out of room, and not everything has been read since.
    ran_out: bool,
    /// The peer's table, and which of its entries is written next.
    peer_table: Target,
    peer_entry: u32,
    peer_order: ByteOrder,
}

/// A piece of what has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// It is in the buffer before the one there is, which has [taken its place](Stream::receive_into).
    pub is_old: bool,
    /// Where in the buffer it is.
    pub range: Range<u32>,
}

/// What the peer is to be told.
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
        let (size, half) = (2 * settings.half(), settings.half());
        let entries = peer.targets.len.min(TARGETS);
        // Whole halves, of which each has an entry.
        let most = (settings.recv_buffer_max / half).min(entries) * half;
        let place = (local.buffer_addr, local.buffer_rkey);
        let mut ring = Ring::new(place, size, half, entries);
        // The peer knows of the first half from connecting, and of the second not yet.
        ring.tell(half);
        Self {
            waiting: VecDeque::with_capacity(settings.recv_depth.into()),
            ring,
            old: None,
            half,
            done: 0,
            limit: settings.recv_depth,
            arrived: 0,
            tell_at: settings.recv_depth / 2,
            depth: settings.recv_depth,
            growth: Growth::new(size, most),
            ran_out: false,
            peer_table: peer.targets,
            peer_entry: 1,
            peer_order: peer.order,
        }
    }

    fn unread(&self) -> u32 {
        self.old.as_ref().map_or(0, |old| old.unread) + self.ring.unread
    }

    /// What the peer may still write.
    fn room(&self) -> u32 {
        self.old.as_ref().map_or(0, |old| old.room) + self.ring.room
    }

    /// How many entries there are in the peer's table, as far as they are used.
    fn entries(&self) -> u32 {
        self.peer_table.len.min(TARGETS)
    }

    /// A message has arrived that takes a credit.
    pub(super) fn count_message(&mut self) -> Result<(), Violation> {
        if self.arrived == self.limit {
            return Err(Violation::Credits);
        }
        self.arrived = self.arrived.wrapping_add(1);
        Ok(())
    }

    /// The peer gets the credit back.
    pub(super) fn message_done(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// So many bytes have been written after those before.
    pub(super) fn arrived(&mut self, len: u32, unwanted: bool) -> Result<(), Violation> {
        self.count_message()?;
        let ring = match &mut self.old {
            Some(old) if old.room > 0 => old,
            _ => &mut self.ring,
        };
        ring.write(len).ok_or(Violation::Overflow(len))?;
        self.ran_out |= self.room() == 0;
        self.waiting.push_back(len);
        if unwanted {
            self.consume(u32::MAX);
        } else {
            self.pass_empty();
        }
        Ok(())
    }

    /// Messages without bytes are done when it is their turn.
    fn pass_empty(&mut self) {
        while self.waiting.front() == Some(&0) {
            self.waiting.pop_front();
            self.message_done();
        }
    }

    /// The next `len` bytes have been read, or as many as there are.
    fn consume(&mut self, len: u32) {
        let from_old = self.old.as_mut().map_or(0, |old| old.consume(len));
        let len = from_old + self.ring.consume(len - from_old);
        self.forget_old();
        let mut left = len;
        while let Some(message) = self.waiting.front_mut() {
            let taken = left.min(*message);
            *message -= taken;
            left -= taken;
            if *message > 0 {
                break;
            }
            self.waiting.pop_front();
            self.done = self.done.wrapping_add(1);
        }
        if self.unread() == 0 && self.ran_out {
            self.ran_out = false;
            self.growth.held_up();
        }
    }

    fn forget_old(&mut self) {
        if self.old.as_ref().is_some_and(Ring::is_over) {
            self.old = None;
        }
    }

    /// Another buffer takes the place of that one, which is used to its end.
    fn replace(&mut self, size: u32, place: (u64, u32)) {
        let ring = Ring::new(place, size, self.half, self.entries());
        self.old = Some(std::mem::replace(&mut self.ring, ring));
        self.forget_old();
        self.growth.end();
    }

    /// What the peer is to be told now, if anything.
    pub(super) fn update_due(&self) -> Option<Update> {
        let least = if self.room() < self.half {
            self.ring.part
        } else {
            self.half
        };
        // One buffer's targets are never more than there are entries, but those of two can be.
        let has_entry = self
            .old
            .as_ref()
            .is_none_or(|old| old.entries() + self.ring.entries() < self.entries());
        if self.ring.free >= least && has_entry {
            return Some(Update::CreditsAndTarget);
        }
        let beyond = self.done.wrapping_sub(self.tell_at);
        (beyond < 1 << 15).then_some(Update::Credits)
    }

    /// Makes the message of an update that is due.
    pub(super) fn update(&mut self, update: Update, slot: u16, settings: &Settings) -> Outgoing {
        self.tell_at = self.done.wrapping_add(self.depth / 2);
        self.limit = self.done.wrapping_add(self.depth);
        let mut outgoing = Outgoing::bare(Tag::Credit, Some(Message::Credit(self.limit)));
        if update == Update::CreditsAndTarget {
            let target = self.ring.tell(self.half);
            let place = if settings.inlines_targets() {
                Place::Inline
            } else {
                Place::Slot(slot)
            };
            outgoing.payload = Payload::Target(target.encode(self.peer_order), place);
            let entry = u64::from(self.peer_entry) * Target::SIZE as u64;
            outgoing.addr = self.peer_table.addr.wrapping_add(entry);
            outgoing.rkey = self.peer_table.rkey;
            self.peer_entry = (self.peer_entry + 1) % self.peer_table.len;
        }
        outgoing
    }
}

impl Stream {
    /// The number of bytes that have arrived and have not been read.
    pub fn unread(&self) -> u32 {
        self.receiving.unread()
    }

    /// Where the next `len` bytes are, or as many as there are: one piece after the other.
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

    /// The next `len` bytes have been read, or as many as there are: their room is the peer's again
    /// when [`control`](Self::control) has told it.
    pub fn consume(&mut self, len: usize) {
        let len = self.unread().min(u32::try_from(len).unwrap_or(u32::MAX));
        if len > 0 {
            self.receiving.consume(len);
        }
    }

    /// The size of the receive buffer that is to take the place of the one there is, if another is to.
    /// To be asked before [`control`](Self::control), and answered by [`receive_into`](Self::receive_into) or
    /// [`keep_receiving`](Self::keep_receiving). Until then everything goes on with the one there is.
    pub fn wants_to_receive(&self) -> Option<u32> {
        // Where nothing more is to come, there is no use for it.
        let wanted = self.receiving.growth.wanted();
        wanted.filter(|_| self.is_readable())
    }

    /// From now on the receive buffer is one of the size that was wanted, at that address, with that key.
    /// The one before stays as long as it [is used](Self::uses_old_buffer).
    pub fn receive_into(&mut self, addr: u64, rkey: u32) {
        if let Some(size) = self.receiving.growth.wanted() {
            self.receiving.replace(size, (addr, rkey));
        }
    }

    /// Whether the receive buffer before the one there is has bytes that have not been read, or the peer may still
    /// write to it. When that is over, it is for ever.
    pub fn uses_old_buffer(&self) -> bool {
        self.receiving.old.is_some()
    }

    /// The receive buffer stays what it is.
    pub fn keep_receiving(&mut self) {
        self.receiving.growth.end();
    }
}
