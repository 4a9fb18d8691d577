//! Sending data: credits, targets and the send buffer.

use super::{
    Stream, Table,
    growth::Growth,
    outgoing::{Outgoing, Payload, PayloadSource, Tag},
    settings::{CONTROL_SLOTS, Framing, SEND_LOWAT, Settings},
    stats::Lack,
    targets::Targets,
};
use crate::{ByteOrder, ConnectData, Mapping, Message, Target};

/// Size in bytes of the first message of a call, and maximum for later ones. librdmacm starts with 2 KiB;
/// more messages mean more system calls on both sides.
const INITIAL_CHUNK: u32 = 8 << 10;
const MAX_CHUNK: u32 = 64 << 10;

/// Message sizes of one send call: small at first, so that the device starts early.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    chunk: u32,
}

impl Default for Burst {
    fn default() -> Self {
        Self {
            chunk: INITIAL_CHUNK,
        }
    }
}

impl Burst {
    /// Returns the size of the next message for `remaining` bytes and a `window`.
    pub(super) fn next(&mut self, remaining: usize, window: u32) -> u32 {
        let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
        let chunk = if self.chunk < remaining {
            let chunk = self.chunk;
            self.chunk = (chunk * 2).min(MAX_CHUNK);
            chunk
        } else {
            remaining
        };
        chunk.min(window)
    }
}

#[derive(Debug)]
pub(super) struct Sending {
    /// Number of messages with a credit used, and their limit.
    sent: u16,
    limit: u16,
    /// Free entries of the send queue, and the number of entries per data message.
    free: u16,
    data_depth: u16,
    entries: u16,
    control_free: u16,
    /// Number of control requests so far, for choosing their slots.
    control_count: u16,
    inline: u32,
    buffer_size: u32,
    buffer_free: u32,
    /// Position of the next bytes in the buffer.
    buffer_at: u32,
    /// Bytes in flight from the previous buffer.
    old_in_flight: u32,
    growth: Growth,
    /// A stall has been counted, without a completion since.
    stalled: bool,
    /// Data has been refused for lack of the peer's room or credits, without a grant since.
    waits_for_peer: bool,
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
            buffer_size: settings.send_buffer_idle,
            buffer_free: settings.send_buffer_idle,
            buffer_at: 0,
            old_in_flight: 0,
            growth: Growth::new(
                settings.send_buffer_idle,
                settings.send_buffer,
                settings.send_buffer_max,
            ),
            stalled: false,
            waits_for_peer: false,
            targets: Targets::new(peer.first),
        }
    }

    fn can_send(&self) -> bool {
        self.has_space() && self.sent != self.limit && self.targets.window() > 0
    }

    /// Whether this side has room; send completions free room.
    pub(super) fn has_space(&self) -> bool {
        self.free >= self.entries && self.buffer_free >= SEND_LOWAT
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// Number of bytes in flight. Of a request without a place in the buffer, only one is counted.
    pub(super) fn unacked(&self) -> u32 {
        let buffered = self.buffer_size - self.buffer_free + self.old_in_flight;
        buffered.max(u32::from(self.data_depth - self.free))
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
        self.stalled = false;
        let len = match tag {
            Tag::Data(len) | Tag::Direct(len) => len,
            Tag::Mapping => Mapping::BYTES,
            Tag::Credit | Tag::Control(_) | Tag::KeepAlive | Tag::Trailer { .. } => 0,
        };
        let in_old = len.min(self.old_in_flight);
        self.old_in_flight -= in_old;
        self.buffer_free += len - in_old;
        debug_assert!(self.control_free <= CONTROL_SLOTS && self.free <= self.data_depth);
        debug_assert!(self.buffer_free <= self.buffer_size);
    }

    /// Takes control slots if available. Returns the index of the memory slot.
    pub(super) fn take_control_slots(&mut self, slots: u16) -> Option<u16> {
        self.control_free = self.control_free.checked_sub(slots)?;
        let slot = self.control_count % CONTROL_SLOTS;
        // Each request in flight holds at least one control slot, so memory slots are never shared.
        self.control_count = self.control_count.wrapping_add(1);
        Some(slot)
    }

    /// Handles granted credits, and targets possibly written by the peer. Returns whether data has waited for them.
    pub(super) fn granted(&mut self, limit: u16, table: &mut impl Table, order: ByteOrder) -> bool {
        self.limit = limit;
        self.targets.take(table, order);
        let has_peer_window = self.sent != self.limit && self.targets.window() > 0;
        has_peer_window && std::mem::take(&mut self.waits_for_peer)
    }

    /// Whether data waits for room or credits of the peer.
    pub(super) fn waits_for_peer(&self) -> bool {
        self.waits_for_peer
    }

    /// The missing resource of a message that cannot be sent, the peer's before those of this side.
    fn lack(&self) -> Lack {
        if self.sent == self.limit {
            Lack::Credit
        } else if self.targets.window() == 0 {
            Lack::PeerBuffer
        } else {
            Lack::SendBuffer
        }
    }

    /// Counts a stall, if caused by a full send buffer alone.
    pub(super) fn count_wait_for_buffer(&mut self) {
        let has_others = self.sent != self.limit && self.free >= self.entries;
        let waits = has_others && self.targets.window() > 0 && self.buffer_free < SEND_LOWAT;
        if waits && !self.stalled {
            self.stalled = true;
            self.growth.count_stall();
        }
    }

    /// Replaces the buffer; requests in flight still use the previous one.
    fn replace(&mut self, size: u32) {
        self.old_in_flight += self.buffer_size - self.buffer_free;
        (self.buffer_size, self.buffer_free) = (size, size);
        self.buffer_at = 0;
        self.growth.grown(size);
    }

    /// Allocates `len` bytes of the send buffer.
    fn allocate(&mut self, len: u32) -> PayloadSource {
        self.buffer_free -= len;
        if len <= self.inline {
            return PayloadSource::Inline;
        }
        let first = len.min(self.buffer_size - self.buffer_at);
        let source = PayloadSource::Buffer(self.buffer_at..self.buffer_at + first, 0..len - first);
        self.buffer_at = (self.buffer_at + len) % self.buffer_size;
        source
    }

    /// Takes a credit, queue entries, and the next `len` bytes of the target.
    fn data(&mut self, len: u32) -> Outgoing {
        let Target { addr, rkey, .. } = self.targets.use_up(len);
        self.sent = self.sent.wrapping_add(1);
        self.free -= self.entries;
        Outgoing {
            tag: Tag::Data(len),
            message: Some(Message::Data(len)),
            payload: Payload::Data(len, self.allocate(len)),
            addr,
            rkey,
        }
    }
}

impl Stream {
    /// Number of send queue entries in use.
    pub fn in_flight(&self) -> u16 {
        self.sending.in_flight()
    }

    /// Whether new data can be sent now.
    pub fn can_send(&self) -> bool {
        let accepts_data = self.is_connected() && self.is_writable() && self.unsent == 0;
        accepts_data && self.sending.can_send()
    }

    /// Whether data is waiting for room or credits of the peer.
    pub fn waits_for_peer(&self) -> bool {
        self.sending.waits_for_peer()
    }

    /// Returns the request sending the next of `remaining` bytes; `None` without room or after the end. New
    /// mappings must be [advertised](Self::advertise_mapping) first.
    pub fn send(&mut self, burst: &mut Burst, remaining: usize) -> Option<Outgoing> {
        if remaining == 0 {
            return None;
        }
        let is_open = self.is_connected() && (self.is_writable() || self.unsent > 0);
        if !(is_open && self.sending.can_send()) {
            self.sending.count_wait_for_buffer();
            if is_open {
                let lack = self.sending.lack();
                self.sending.waits_for_peer = lack != Lack::SendBuffer;
                self.counters.lacked(lack);
            }
            return None;
        }
        let sending = &self.sending;
        let window = sending.buffer_free.min(sending.targets.window());
        let len = burst.next(remaining, window);
        self.counters.sent(len);
        Some(self.sending.data(len))
    }

    /// Returns the size of a larger send buffer, if wanted.
    pub fn larger_send_buffer(&self) -> Option<u32> {
        self.sending.growth.requested_size()
    }

    /// Switches to a new send buffer of the wanted size. Requests in flight still use the previous one.
    pub fn send_from_new(&mut self) {
        if let Some(size) = self.sending.growth.requested_size() {
            self.sending.replace(size);
        }
    }

    /// Keeps the present send buffer, until further stalls.
    pub fn keep_sending(&mut self) {
        self.sending.growth.refused();
    }

    /// Returns the request writing the next of `remaining` bytes into a mapping of the peer.
    pub(super) fn send_direct(
        &mut self,
        burst: &mut Burst,
        remaining: usize,
        to: Target,
    ) -> Outgoing {
        let sending = &mut self.sending;
        let len = burst.next(remaining, sending.buffer_free.min(to.len));
        self.counters.sent_direct(len);
        sending.free -= 1;
        Outgoing {
            tag: Tag::Direct(len),
            message: None,
            payload: Payload::Data(len, sending.allocate(len)),
            addr: to.addr,
            rkey: to.rkey,
        }
    }

    /// Returns the request writing an entry to the peer's table of mappings. The caller has checked for room.
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
            payload: Payload::Mapping(entry, sending.allocate(Mapping::BYTES)),
            addr: to.addr,
            rkey: to.rkey,
        }
    }
}
