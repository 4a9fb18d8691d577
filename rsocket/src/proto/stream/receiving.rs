//! Receiving data: the ring that the peer writes to, and what it is told of the room there.

use std::{collections::VecDeque, ops::Range};

use super::{
    Local, Stream, TARGETS,
    failure::Violation,
    growth::Growth,
    outgoing::{Outgoing, Payload, Place, Tag},
    settings::Settings,
};
use crate::proto::{ByteOrder, ConnectData, Message, Target};

/// No target is less than this, of what could be more.
const LEAST_PART: u32 = 16 << 10;

#[derive(Debug)]
pub(super) struct Receiving {
    /// The lengths of the messages that have not been read to their ends; of the first, what is
    /// left.
    waiting: VecDeque<u32>,
    unread: u32,
    /// Where in the buffer the first unread byte is.
    at: u32,
    /// The bytes of the buffer; half of what it had first, which is the most that a target covers; and the least
    /// that the peer is told of at once.
    size: u32,
    half: u32,
    part: u32,
    /// What the peer may still write, and where in the buffer that begins.
    room: u32,
    room_at: u32,
    /// Messages that have been read, of which the peer has been told, that have arrived.
    done: u16,
    limit: u16,
    arrived: u16,
    /// The peer is told when so many have been done.
    tell_at: u16,
    depth: u16,
    /// Bytes that have been read and whose room the peer does not know of, and where that begins.
    free: u32,
    free_at: u32,
    buffer_addr: u64,
    buffer_rkey: u32,
    growth: Growth,
    /// The peer has run out of room, and not everything has been read since.
    ran_out: bool,
    /// The peer's table, and which of its entries is written next.
    peer_table: Target,
    peer_entry: u32,
    peer_order: ByteOrder,
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

/// The least that a peer with so many entries is told of at once: they last for the whole buffer.
fn part(size: u32, half: u32, entries: u32) -> u32 {
    let mut part = half;
    while part % 2 == 0 && part > LEAST_PART && size / (part / 2) <= entries {
        part /= 2;
    }
    part
}

impl Receiving {
    pub(super) fn new(settings: &Settings, local: &Local, peer: &ConnectData) -> Self {
        let (size, half) = (2 * settings.half(), settings.half());
        let entries = peer.targets.len.min(TARGETS);
        // Whole halves, of which each has an entry.
        let most = (settings.recv_buffer_max / half).min(entries) * half;
        Self {
            waiting: VecDeque::with_capacity(settings.recv_depth.into()),
            unread: 0,
            at: 0,
            size,
            half,
            part: part(size, half, entries),
            room: half,
            room_at: 0,
            done: 0,
            limit: settings.recv_depth,
            arrived: 0,
            tell_at: settings.recv_depth / 2,
            depth: settings.recv_depth,
            // The peer knows of the first half from connecting, and of the second not yet.
            free: half,
            free_at: half,
            buffer_addr: local.buffer_addr,
            buffer_rkey: local.buffer_rkey,
            growth: Growth::new(size, most),
            ran_out: false,
            peer_table: peer.targets,
            peer_entry: 1,
            peer_order: peer.order,
        }
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
        // A message does not go on at the buffer's beginning.
        if len > self.room.min(self.size - self.room_at) {
            return Err(Violation::Overflow(len));
        }
        self.room -= len;
        self.room_at = (self.room_at + len) % self.size;
        self.ran_out |= self.room == 0 && !unwanted;
        self.waiting.push_back(len);
        self.unread += len;
        if unwanted {
            self.consume(self.unread);
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

    fn consume(&mut self, len: u32) {
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
        self.unread -= len;
        self.at = (self.at + len) % self.size;
        self.free += len;
        if self.unread == 0 && self.ran_out {
            self.ran_out = false;
            self.growth.held_up();
        }
    }

    /// The size that the buffer is to have, when nothing is in it, nor on its way there.
    fn wanted(&self) -> Option<u32> {
        let is_empty = self.room == 0 && self.unread == 0;
        self.growth.wanted().filter(|_| is_empty)
    }

    /// Another buffer takes the place of that one.
    fn replace(&mut self, size: u32, addr: u64, rkey: u32) {
        self.part = part(size, self.half, self.peer_table.len.min(TARGETS));
        self.size = size;
        (self.buffer_addr, self.buffer_rkey) = (addr, rkey);
        self.free = size;
        (self.at, self.room_at, self.free_at) = (0, 0, 0);
        self.growth.end();
    }

    /// What the peer is to be told now, if anything.
    pub(super) fn update_due(&self) -> Option<Update> {
        let least = if self.room < self.half {
            self.part
        } else {
            self.half
        };
        // Before it grows, the peer fills the room it knows of, and is told of no more.
        if self.free >= least && self.growth.wanted().is_none() {
            return Some(Update::CreditsAndTarget);
        }
        let beyond = self.done.wrapping_sub(self.tell_at);
        (beyond < 1 << 15).then_some(Update::Credits)
    }

    /// How much of the free room is the next target: half of the buffer, or half of that, and so on.
    fn next_part(&self) -> u32 {
        let most = self.free.min(self.size - self.free_at);
        let mut len = self.half;
        while len > most {
            len /= 2;
        }
        len
    }

    /// Makes the message of an update that is due.
    pub(super) fn update(&mut self, update: Update, slot: u16, settings: &Settings) -> Outgoing {
        self.tell_at = self.done.wrapping_add(self.depth / 2);
        self.limit = self.done.wrapping_add(self.depth);
        let mut outgoing = Outgoing::bare(Tag::Credit, Some(Message::Credit(self.limit)));
        if update == Update::CreditsAndTarget {
            let len = self.next_part();
            let target = Target {
                addr: self.buffer_addr.wrapping_add(self.free_at.into()),
                rkey: self.buffer_rkey,
                len,
            };
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
            self.free -= len;
            self.free_at = (self.free_at + len) % self.size;
            self.room += len;
        }
        outgoing
    }
}

impl Stream {
    /// The number of bytes that have arrived and have not been read.
    pub fn unread(&self) -> u32 {
        self.receiving.unread
    }

    /// Where in the receive buffer the next `len` bytes are, or as many as there are: first here,
    /// and then there.
    pub fn next_bytes(&self, len: usize) -> (Range<u32>, Range<u32>) {
        let receiving = &self.receiving;
        let len = u32::try_from(len).map_or(receiving.unread, |len| len.min(receiving.unread));
        let first = len.min(receiving.size - receiving.at);
        (receiving.at..receiving.at + first, 0..len - first)
    }

    /// The next `len` bytes have been read, or as many as there are: their room is the peer's again
    /// when [`control`](Self::control) has told it.
    pub fn consume(&mut self, len: usize) {
        let unread = self.receiving.unread;
        let len = u32::try_from(len).map_or(unread, |len| len.min(unread));
        if len > 0 {
            self.receiving.consume(len);
        }
    }

    /// The size of the receive buffer that is to take the place of the one there is, if another is to.
    /// Until [`receive_into`](Self::receive_into) has named it, or [`keep_receiving`](Self::keep_receiving)
    /// has said that there is none, the peer is told of no room.
    pub fn wants_to_receive(&self) -> Option<u32> {
        self.receiving.wanted()
    }

    /// From now on the receive buffer is one of the size that was wanted, at that address, with that key.
    /// Nothing arrives in the one before any more.
    pub fn receive_into(&mut self, addr: u64, rkey: u32) {
        if let Some(size) = self.receiving.wanted() {
            self.receiving.replace(size, addr, rkey);
        }
    }

    /// The receive buffer stays what it is.
    pub fn keep_receiving(&mut self) {
        self.receiving.growth.end();
    }
}
