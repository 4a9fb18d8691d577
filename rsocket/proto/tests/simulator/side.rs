//! One simulated host: a stream, its memory and its queues.

use std::collections::VecDeque;

use rsocket_proto::{
    Mapping, Message, Target,
    stream::{
        Burst, Framing, Local, Outgoing, Payload, PayloadSource, Piece, SPARE_RECEIVES, Settings,
        Stream, TARGETS, Table, Tag,
    },
};

/// Base addresses of a host's memory, far apart, so that a wrong offset yields an invalid address.
pub(crate) const TABLE: u64 = 0x1000_0000;
pub(crate) const BUFFER: u64 = 0x2000_0000;
pub(crate) const MAPPED: u64 = 0x3000_0000;
pub(crate) const TABLE_KEY: u32 = 0x70;
pub(crate) const BUFFER_KEY: u32 = 0xb0;
pub(crate) const MAPPED_KEY: u32 = 0x30;
/// Distance to the next receive buffer after growth. Its key is the next number, too.
const NEXT_BUFFER: u64 = 0x100_0000;

/// A posted request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) tag: Tag,
    pub(crate) write: Option<Write>,
    pub(crate) message: Option<Message>,
}

#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) from: From,
}

/// Source of the bytes, read by the device at transmission.
#[derive(Debug)]
pub(crate) enum From {
    Itself(Vec<u8>),
    /// Index of a buffer, and two ranges.
    Buffer(usize, std::ops::Range<u32>, std::ops::Range<u32>),
    Slot(u16),
}

/// An entry of the completion queue.
#[derive(Debug)]
pub(crate) enum Completion {
    Sent(Tag, bool),
    Received(Message),
}

/// Memory written by the peer.
#[derive(Debug)]
pub(crate) struct Exposed {
    pub(crate) table: Vec<u8>,
    pub(crate) buffer: Vec<u8>,
    /// Previous buffer, while in use.
    old: Option<Vec<u8>>,
    /// Number of times the buffer has grown.
    grown: u32,
    pub(crate) mapped: Vec<u8>,
}

impl Exposed {
    /// Returns address and key of the receive buffer.
    fn buffer(&self) -> (u64, u32) {
        let addr = BUFFER + NEXT_BUFFER * u64::from(self.grown);
        (addr, BUFFER_KEY + self.grown)
    }
}

impl Table for Exposed {
    fn target(&mut self, index: u32) -> [u8; Target::SIZE] {
        let at = index as usize * Target::SIZE;
        let mut entry = [0; Target::SIZE];
        entry.copy_from_slice(&self.table[at..at + Target::SIZE]);
        entry
    }

    fn clear_target(&mut self, index: u32) {
        let at = index as usize * Target::SIZE;
        self.table[at + 12..at + 16].fill(0);
    }

    fn mapping(&mut self, index: u16) -> [u8; Mapping::SIZE] {
        let at = TARGETS as usize * Target::SIZE + usize::from(index) * Mapping::SIZE;
        let mut entry = [0; Mapping::SIZE];
        entry.copy_from_slice(&self.table[at..at + Mapping::SIZE]);
        entry
    }
}

#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) settings: Settings,
    pub(crate) stream: Stream,
    pub(crate) exposed: Exposed,
    /// The last buffer is in use; earlier ones may have data in flight.
    send_buffers: Vec<Vec<u8>>,
    slots: [[u8; Target::SIZE]; 4],
    /// Posted requests, not delivered yet.
    pub(crate) queue: VecDeque<Request>,
    /// Delivered requests, not completed yet.
    pub(crate) unacknowledged: VecDeque<Tag>,
    pub(crate) completions: VecDeque<Completion>,
    /// Number of posted receives.
    pub(crate) receives: u16,
    /// Whether the peer follows the protocol.
    pub(crate) trusts: bool,
    /// Whether there is memory for larger buffers.
    pub(crate) has_memory: bool,
}

/// Default sizes, of a stream in use from the start.
pub(crate) fn in_use() -> Settings {
    let mut settings = Settings::default();
    settings.send_buffer_idle = settings.send_buffer;
    settings.recv_buffer_idle = settings.recv_buffer;
    settings
}

/// Returns the memory advertised by a host.
pub(crate) fn local(order: rsocket_proto::ByteOrder) -> Local {
    Local {
        table_addr: TABLE,
        table_rkey: TABLE_KEY,
        buffer_addr: BUFFER,
        buffer_rkey: BUFFER_KEY,
        order,
    }
}

impl Side {
    pub(crate) fn new(settings: Settings, stream: Stream) -> Self {
        Self {
            settings,
            stream,
            exposed: Exposed {
                table: vec![0; settings.table_size()],
                buffer: vec![0; settings.recv_buffer_idle as usize],
                old: None,
                grown: 0,
                mapped: vec![0; 1 << 14],
            },
            send_buffers: vec![vec![0; settings.send_buffer_idle as usize]],
            slots: [[0; Target::SIZE]; 4],
            queue: VecDeque::new(),
            unacknowledged: VecDeque::new(),
            completions: VecDeque::new(),
            receives: settings.recv_depth + SPARE_RECEIVES,
            trusts: true,
            has_memory: true,
        }
    }

    /// Posts a request with the caller's bytes `user`. Returns the number of bytes taken.
    pub(crate) fn post(&mut self, outgoing: Outgoing, user: &[u8]) -> usize {
        let trailer = outgoing.trailer();
        let (bytes, source, consumed) = match outgoing.payload {
            Payload::Nothing => (vec![], None, 0),
            Payload::Data(len, source) => {
                let bytes = user[..len as usize].to_vec();
                (bytes, Some(source), len as usize)
            }
            Payload::Target(entry, source) => (entry.to_vec(), Some(source), 0),
            Payload::Mapping(entry, source) => (entry.to_vec(), Some(source), 0),
        };
        let write = source.map(|source| Write {
            addr: outgoing.addr,
            rkey: outgoing.rkey,
            from: self.buffer_payload(bytes, source),
        });
        match (self.settings.framing, write, outgoing.message) {
            (Framing::Separate, Some(write), Some(message)) => {
                self.push(outgoing.tag, Some(write), None);
                self.push(trailer, None, Some(message));
            }
            (_, write, message) => self.push(outgoing.tag, write, message),
        }
        let posted = self.queue.len() + self.unacknowledged.len() + self.sends_to_poll();
        assert!(
            posted <= self.settings.send_depth.into(),
            "{posted} requests in a send queue of {}",
            self.settings.send_depth
        );
        consumed
    }

    fn sends_to_poll(&self) -> usize {
        let sent = |completion: &&Completion| matches!(completion, Completion::Sent(..));
        self.completions.iter().filter(sent).count()
    }

    fn buffer_payload(&mut self, bytes: Vec<u8>, source: PayloadSource) -> From {
        match source {
            PayloadSource::Inline => {
                assert!(bytes.len() <= self.settings.inline as usize);
                From::Itself(bytes)
            }
            PayloadSource::Buffer(first, second) => {
                let (head, tail) = bytes.split_at(first.len());
                let last = self.send_buffers.len() - 1;
                let buffer = &mut self.send_buffers[last];
                buffer[first.start as usize..first.end as usize].copy_from_slice(head);
                buffer[second.start as usize..second.end as usize].copy_from_slice(tail);
                From::Buffer(last, first, second)
            }
            PayloadSource::Slot(slot) => {
                self.slots[usize::from(slot)].copy_from_slice(&bytes);
                From::Slot(slot)
            }
        }
    }

    fn push(&mut self, tag: Tag, write: Option<Write>, message: Option<Message>) {
        self.queue.push_back(Request {
            tag,
            write,
            message,
        });
    }

    /// Reads the source of a request at transmission, later than posted.
    pub(crate) fn fetch(&self, from: &From) -> Vec<u8> {
        let part = |buffer: usize, range: &std::ops::Range<u32>| {
            &self.send_buffers[buffer][range.start as usize..range.end as usize]
        };
        match from {
            From::Itself(bytes) => bytes.clone(),
            From::Buffer(buffer, first, second) => {
                [part(*buffer, first), part(*buffer, second)].concat()
            }
            From::Slot(slot) => self.slots[usize::from(*slot)].to_vec(),
        }
    }

    /// Processes up to `count` completions, then posts control requests.
    pub(crate) fn poll(&mut self, count: usize) {
        for _ in 0..count {
            match self.completions.pop_front() {
                None => break,
                Some(Completion::Sent(tag, ok)) => self.stream.sent(tag, ok),
                Some(Completion::Received(message)) => {
                    self.receives += 1;
                    let _: Result<(), _> = self.stream.received(message, &mut self.exposed);
                }
            }
        }
        self.pump();
    }

    /// Returns the numbers of grown receive and send buffers.
    pub(crate) fn grown(&self) -> [usize; 2] {
        [self.exposed.grown as usize, self.send_buffers.len() - 1]
    }

    /// Grows the receive buffer on the stream's request, given memory.
    fn grow_receive(&mut self) {
        if let Some(size) = self.stream.larger_receive_buffer() {
            if self.has_memory {
                self.exposed.grown += 1;
                let buffer = vec![0; size as usize];
                let old = std::mem::replace(&mut self.exposed.buffer, buffer);
                assert!(self.exposed.old.replace(old).is_none(), "two are old");
                let (addr, rkey) = self.exposed.buffer();
                self.stream.receive_into(addr, rkey);
            } else {
                self.stream.keep_receiving();
            }
        }
        if !self.stream.uses_old_buffer() {
            self.exposed.old = None;
        }
    }

    /// Returns the next request of a write, and grows the send buffer on the stream's request, given memory.
    pub(crate) fn send(&mut self, burst: &mut Burst, remaining: usize) -> Option<Outgoing> {
        if let Some(outgoing) = self.stream.send(burst, remaining) {
            return Some(outgoing);
        }
        let size = self.stream.larger_send_buffer()?;
        if !self.has_memory {
            self.stream.keep_sending();
            return None;
        }
        self.send_buffers.push(vec![0; size as usize]);
        self.stream.send_from_new();
        self.stream.send(burst, remaining)
    }

    pub(crate) fn pump(&mut self) {
        self.grow_receive();
        while let Some(outgoing) = self.stream.control() {
            self.post(outgoing, &[]);
        }
    }

    /// Performs a write of the peer's device. Returns false if the memory is not writable.
    pub(crate) fn write(&mut self, addr: u64, rkey: u32, bytes: &[u8]) -> bool {
        let (buffer, buffer_key) = self.exposed.buffer();
        let (base, memory) = match (rkey, &mut self.exposed.old) {
            (TABLE_KEY, _) => (TABLE, &mut self.exposed.table),
            (MAPPED_KEY, _) => (MAPPED, &mut self.exposed.mapped),
            _ if rkey == buffer_key => (buffer, &mut self.exposed.buffer),
            (_, Some(old)) if rkey + 1 == buffer_key => (buffer - NEXT_BUFFER, old),
            _ => return false,
        };
        let Some(at) = addr
            .checked_sub(base)
            .and_then(|at| usize::try_from(at).ok())
        else {
            return false;
        };
        let Some(target) = memory
            .get_mut(at..)
            .and_then(|rest| rest.get_mut(..bytes.len()))
        else {
            return false;
        };
        if self.trusts && rkey == TABLE_KEY && at < TARGETS as usize * Target::SIZE {
            assert_eq!(
                target[12..16],
                [0; 4],
                "a target is overwritten that is in use"
            );
        }
        target.copy_from_slice(bytes);
        true
    }

    /// Reads up to `len` received bytes.
    pub(crate) fn read(&mut self, len: usize) -> Vec<u8> {
        let Exposed { buffer, old, .. } = &self.exposed;
        let part = |piece: Piece| {
            let memory = if piece.is_old {
                old.as_ref().unwrap()
            } else {
                buffer
            };
            &memory[piece.range.start as usize..piece.range.end as usize]
        };
        let parts: Vec<_> = self.stream.next_bytes(len).map(part).collect();
        let bytes = parts.concat();
        self.stream.consume(bytes.len());
        self.pump();
        bytes
    }
}
