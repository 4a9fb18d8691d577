//! Sending data: credits, targets and the send buffer.

use super::{
    Stream, Table,
    growth::Growth,
    outgoing::{Outgoing, Payload, Place, Tag},
    settings::{CONTROL_SLOTS, Framing, SEND_LOWAT, Settings},
    targets::Targets,
};
use crate::proto::{ByteOrder, ConnectData, Mapping, Message, Target};

/// The size of the first message of a call, and the most that later ones grow to. The original
/// begins with 2 KiB; the more there are, the more often the kernel is entered, and the peer's is.
const FIRST_CHUNK: u32 = 8 << 10;
const MAX_CHUNK: u32 = 64 << 10;

/// The messages of one call that sends data: small at first, so that the device begins early.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    chunk: u32,
}

impl Default for Burst {
    fn default() -> Self {
        Self { chunk: FIRST_CHUNK }
    }
}

impl Burst {
    /// How much of `left` bytes goes next, if there is room for `room`.
    pub(super) fn next(&mut self, left: usize, room: u32) -> u32 {
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let chunk = if self.chunk < left {
            let chunk = self.chunk;
            self.chunk = (chunk * 2).min(MAX_CHUNK);
            chunk
        } else {
            left
        };
        chunk.min(room)
    }
}

#[derive(Debug)]
pub(super) struct Sending {
    /// Messages that have used up a credit, and how many may have.
    sent: u16,
    limit: u16,
    /// Free entries of the send queue, and how many of them a message with a payload takes.
    free: u16,
    data_depth: u16,
    entries: u16,
    control_free: u16,
    /// Counts control requests, to know which of their places in memory is next.
    control_count: u16,
    inline: u32,
    buffer_size: u32,
    buffer_free: u32,
    /// Where in the buffer the next bytes go.
    buffer_at: u32,
    /// Bytes that are in flight from the buffer before.
    leaving: u32,
    growth: Growth,
    /// Nothing has completed since the buffer held somebody up.
    waits: bool,
    targets: Targets,
}

impl Sending {
    pub(super) fn new(settings: &Settings, peer: &ConnectData) -> Self {
        let data_depth = settings.send_depth - CONTROL_SLOTS;
        Self {
            sent: 0,
            limit: peer.credits,
            free: data_depth,
            data_depth,
            entries: match settings.framing {
                Framing::Immediate => 1,
                Framing::Separate => 2,
            },
            control_free: CONTROL_SLOTS,
            control_count: 0,
            inline: settings.inline,
            buffer_size: settings.send_buffer,
            buffer_free: settings.send_buffer,
            buffer_at: 0,
            leaving: 0,
            growth: Growth::new(settings.send_buffer, settings.send_buffer_max),
            waits: false,
            targets: Targets::new(peer.first),
        }
    }

    fn can_send(&self) -> bool {
        self.has_room() && self.sent != self.limit && self.targets.room() > 0
    }

    /// Whether there is room on this side. What has been sent gives it back.
    pub(super) fn has_room(&self) -> bool {
        self.free >= self.entries && self.buffer_free >= SEND_LOWAT
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    fn in_flight(&self) -> u16 {
        self.data_depth - self.free + CONTROL_SLOTS - self.control_free
    }

    pub(super) fn completed(&mut self, tag: Tag) {
        if tag.is_control() {
            self.control_free += 1;
        } else {
            self.free += 1;
        }
        self.waits = false;
        let len = match tag {
            Tag::Data(len) | Tag::Direct(len) => len,
            Tag::Mapping => Mapping::BYTES,
            Tag::Credit | Tag::Control(_) | Tag::KeepAlive | Tag::Trailer { .. } => 0,
        };
        let left = len.min(self.leaving);
        self.leaving -= left;
        self.buffer_free += len - left;
        debug_assert!(self.control_free <= CONTROL_SLOTS && self.free <= self.data_depth);
        debug_assert!(self.buffer_free <= self.buffer_size);
    }

    /// Takes control slots, if there are as many; returns the place that goes with the first.
    pub(super) fn take_control_slots(&mut self, slots: u16) -> Option<u16> {
        self.control_free = self.control_free.checked_sub(slots)?;
        let place = self.control_count % CONTROL_SLOTS;
        // Requests in flight have a slot each at least, so no two of them have one place.
        self.control_count = self.control_count.wrapping_add(1);
        Some(place)
    }

    /// The peer grants credits, and may have written targets.
    pub(super) fn granted(&mut self, limit: u16, table: &mut impl Table, order: ByteOrder) {
        self.limit = limit;
        self.targets.take(table, order);
    }

    /// Who has something to send waits. If that is for room in the buffer alone, it is too small.
    fn count_wait(&mut self) {
        let has_others = self.sent != self.limit && self.free >= self.entries;
        let waits = has_others && self.targets.room() > 0 && self.buffer_free < SEND_LOWAT;
        if waits && !self.waits {
            self.waits = true;
            self.growth.held_up();
        }
    }

    /// Another buffer takes the place of that one, from which what is in flight is still sent.
    fn replace(&mut self, size: u32) {
        self.leaving += self.buffer_size - self.buffer_free;
        (self.buffer_size, self.buffer_free) = (size, size);
        self.buffer_at = 0;
        self.growth.end();
    }

    /// Takes room in the send buffer for `len` bytes, and says where they go.
    fn place(&mut self, len: u32) -> Place {
        self.buffer_free -= len;
        if len <= self.inline {
            return Place::Inline;
        }
        let first = len.min(self.buffer_size - self.buffer_at);
        let place = Place::Buffer(self.buffer_at..self.buffer_at + first, 0..len - first);
        self.buffer_at = (self.buffer_at + len) % self.buffer_size;
        place
    }

    /// Takes a credit, queue entries, and the next `len` bytes of the target.
    fn data(&mut self, len: u32) -> Outgoing {
        let Target { addr, rkey, .. } = self.targets.use_up(len);
        self.sent = self.sent.wrapping_add(1);
        self.free -= self.entries;
        Outgoing {
            tag: Tag::Data(len),
            message: Some(Message::Data(len)),
            payload: Payload::Data(len, self.place(len)),
            addr,
            rkey,
        }
    }
}

impl Stream {
    /// How many entries of the send queue are in use.
    pub fn in_flight(&self) -> u16 {
        self.sending.in_flight()
    }

    /// Whether data can be sent now.
    pub fn can_send(&self) -> bool {
        self.is_connected() && self.is_writable() && self.sending.can_send()
    }

    /// The request that sends the next of `left` bytes; `None` if it has to wait, or is over.
    /// Mappings have to be [announced](Self::announce) before.
    pub fn send(&mut self, burst: &mut Burst, left: usize) -> Option<Outgoing> {
        if left == 0 {
            return None;
        }
        if !self.can_send() {
            self.sending.count_wait();
            return None;
        }
        let sending = &self.sending;
        let room = sending.buffer_free.min(sending.targets.room());
        let len = burst.next(left, room);
        Some(self.sending.data(len))
    }

    /// The size of the send buffer that is to take the place of the one there is, if another is to.
    pub fn wants_to_send(&self) -> Option<u32> {
        self.sending.growth.wanted()
    }

    /// From now on the send buffer is one of the size that was wanted. What was posted is sent from the one
    /// before.
    pub fn send_from_new(&mut self) {
        if let Some(size) = self.sending.growth.wanted() {
            self.sending.replace(size);
        }
    }

    /// The send buffer stays what it is.
    pub fn keep_sending(&mut self) {
        self.sending.growth.end();
    }

    /// The request that writes the next of `left` bytes to where a mapping of the peer is.
    pub(super) fn send_direct(&mut self, burst: &mut Burst, left: usize, to: Target) -> Outgoing {
        let sending = &mut self.sending;
        let len = burst.next(left, sending.buffer_free.min(to.len));
        sending.free -= 1;
        Outgoing {
            tag: Tag::Direct(len),
            message: None,
            payload: Payload::Data(len, sending.place(len)),
            addr: to.addr,
            rkey: to.rkey,
        }
    }

    /// The request that writes a mapping into the peer's table. It can be sent.
    pub(super) fn send_mapping(
        &mut self,
        index: u16,
        entry: [u8; Mapping::SIZE],
        to: Target,
    ) -> Outgoing {
        let sending = &mut self.sending;
        sending.sent = sending.sent.wrapping_add(1);
        sending.free -= sending.entries;
        Outgoing {
            tag: Tag::Mapping,
            message: Some(Message::Iomap(index)),
            payload: Payload::Mapping(entry, sending.place(Mapping::BYTES)),
            addr: to.addr,
            rkey: to.rkey,
        }
    }
}
