//! A stream with arbitrary events from its peer, its device and its user.

use fastrand::Rng;
use rsocket_proto::{
    ByteOrder, ConnectData, Mapping, Message, Target,
    stream::{
        Burst, Direction, Framing, Local, MapError, Outgoing, Payload, PayloadSource, Placement,
        Settings, Stream, TARGETS, Table, Tag,
    },
};

/// Maximum number of mappings advertised by the peer.
const MAPPINGS: u16 = 3;
/// Initial and maximum sizes of the buffers in bytes.
const FIRST: u32 = 4096;
const IN_USE: u32 = 8192;
const LARGER: u32 = 16384;

/// Memory written arbitrarily by the peer.
struct Exposed([u8; TARGETS as usize * Target::SIZE + MAPPINGS as usize * Mapping::SIZE]);

impl Table for Exposed {
    fn target(&mut self, index: u32) -> [u8; Target::SIZE] {
        let at = index as usize * Target::SIZE;
        self.0[at..][..Target::SIZE].try_into().unwrap()
    }

    fn clear_target(&mut self, index: u32) {
        let at = index as usize * Target::SIZE;
        self.0[at + 12..][..4].fill(0);
    }

    fn mapping(&mut self, index: u16) -> [u8; Mapping::SIZE] {
        let at = TARGETS as usize * Target::SIZE + usize::from(index) * Mapping::SIZE;
        self.0[at..][..Mapping::SIZE].try_into().unwrap()
    }
}

struct Host {
    stream: Stream,
    exposed: Exposed,
    /// Posted requests without a completion.
    posted: Vec<Tag>,
    burst: Burst,
    /// Present sizes of the buffers in bytes.
    send_buffer: u32,
    recv_buffer: u32,
    old_recv_buffer: u32,
}

/// Steps by name, with the number of argument bytes.
const STEPS: [(u8, usize); 10] = [
    (b'w', 17),
    (b'm', 4),
    (b'c', 2),
    (b's', 3),
    (b'r', 3),
    (b'e', 1),
    (b'a', 3),
    (b'p', 10),
    (b'k', 0),
    (b'g', 1),
];

/// Creates a random, often plausible step.
pub(crate) fn step(rng: &mut Rng) -> Vec<u8> {
    let (name, len) = *rng.choice(&STEPS).unwrap();
    let mut step = vec![name];
    step.extend(std::iter::repeat_with(|| rng.u8(..)).take(len));
    if name == b'm' {
        let word = match rng.u8(0..6) {
            0 => Message::Data(rng.u32(0..5000)),
            1 => Message::Data(rng.u32(0..3)),
            2 => Message::Credit(rng.u16(..)),
            3 => Message::Credit(rng.u16(0..100)),
            4 => Message::Iomap(rng.u16(0..5)),
            _ => return step,
        };
        step[1..].copy_from_slice(&word.encode().to_be_bytes());
    }
    step
}

/// Decodes the connect data, then runs the steps in the rest of the input.
pub(crate) fn run(input: &[u8]) {
    let Ok(peer) = ConnectData::decode(input) else {
        return;
    };
    let mut settings = Settings {
        send_depth: 16,
        recv_depth: 16,
        send_buffer: IN_USE,
        recv_buffer: IN_USE,
        send_buffer_idle: FIRST,
        recv_buffer_idle: FIRST,
        send_buffer_max: LARGER,
        recv_buffer_max: LARGER,
        inline: 64,
        iomap_size: MAPPINGS,
        framing: Framing::Immediate,
    };
    if input[3] & 1 != 0 {
        settings.framing = Framing::Separate;
        settings.inline = 4;
    }
    let local = Local {
        table_addr: 0x1000_0000,
        table_rkey: 0x70,
        buffer_addr: 0x2000_0000,
        buffer_rkey: 0xb0,
        order: ByteOrder::Little,
    };
    let mut host = Host {
        stream: Stream::new(settings, &local, &peer),
        exposed: Exposed([0; size_of::<Exposed>()]),
        posted: vec![],
        burst: Burst::default(),
        send_buffer: FIRST,
        recv_buffer: FIRST,
        old_recv_buffer: 0,
    };
    let mut rest = &input[ConnectData::SIZE..];
    while let Some((name, after)) = rest.split_first() {
        rest = after;
        let Some((_, len)) = STEPS.iter().find(|(step, _)| step == name) else {
            continue;
        };
        let Some((bytes, after)) = rest.split_at_checked(*len) else {
            return;
        };
        rest = after;
        host.take(*name, bytes);
        host.check();
    }
}

fn pair(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))
}

impl Host {
    /// Handles a message of the peer.
    fn message(&mut self, word: u32) {
        let was = self.stream.failure();
        let handled = self
            .stream
            .received(Message::decode(word), &mut self.exposed);
        if handled.is_err() {
            // A violation after an orderly end does not change the outcome.
            assert!(!self.stream.is_connected());
        }
        if was.is_some() {
            assert_eq!(self.stream.failure(), was, "the first failure counts");
        }
    }

    /// Sends a part of `len_limit` bytes.
    fn send(&mut self, len_limit: usize) {
        if self.stream.is_writable()
            && !self.stream.has_unadvertised_mapping()
            && let Some(outgoing) = self.stream.send(&mut self.burst, len_limit.max(1))
        {
            let len = match outgoing.payload {
                Payload::Data(len, _) => len,
                _ => 0,
            };
            assert!(len > 0 && len as usize <= len_limit.max(1));
            self.post(outgoing);
        }
    }

    /// Reads `len_limit` bytes, or all if there are fewer.
    fn read(&mut self, requested: usize) {
        let mut len = 0;
        for piece in self.stream.next_bytes(requested) {
            let size = if piece.is_old {
                self.old_recv_buffer
            } else {
                self.recv_buffer
            };
            assert!(piece.range.end <= size);
            len += piece.range.len();
        }
        assert_eq!(len, requested.min(self.stream.unread() as usize));
        self.stream.consume(len);
    }

    fn take(&mut self, name: u8, bytes: &[u8]) {
        match name {
            b'w' => {
                let at = usize::from(bytes[0]) % self.exposed.0.len();
                let available = self.exposed.0.len() - at;
                let len = available.min(16);
                self.exposed.0[at..at + len].copy_from_slice(&bytes[1..=len]);
            }
            b'm' => self.message(u32::from_be_bytes(bytes.try_into().unwrap())),
            b'c' if !self.posted.is_empty() => {
                let at = usize::from(bytes[0]) % self.posted.len();
                let tag = self.posted.remove(at);
                self.stream.sent(tag, bytes[1] != 0);
            }
            b's' => self.send(pair(bytes)),
            b'r' => self.read(pair(bytes)),
            b'e' => self.stream.shut_down(match bytes[0] % 3 {
                0 => Direction::Read,
                1 => Direction::Write,
                _ => Direction::Both,
            }),
            b'a' => {
                let mapping = Mapping {
                    offset: u64::from(bytes[0]) << 32,
                    addr: 0x3000_0000,
                    rkey: 0x30,
                    len: u32::try_from(pair(&bytes[1..])).unwrap(),
                };
                // The table may be full.
                let _: Result<u16, MapError> = self.stream.map(mapping);
                if self.stream.is_writable()
                    && self.stream.has_unadvertised_mapping()
                    && let Some(outgoing) = self.stream.advertise_mapping()
                {
                    self.post(outgoing);
                }
            }
            b'p' => {
                let offset = u64::from_be_bytes(bytes[2..].try_into().unwrap());
                let len = pair(bytes).max(1);
                let placed = self.stream.send_to(&mut self.burst, len, offset);
                if let Placement::Post(outgoing) = placed {
                    self.post(outgoing);
                }
            }
            b'k' => self.stream.keep_alive(),
            b'g' => self.grow(bytes[0] & 1 == 0, bytes[0] & 2 == 0),
            _ => {}
        }
        while let Some(outgoing) = self.stream.control() {
            self.post(outgoing);
        }
    }

    fn grow(&mut self, sends: bool, receives: bool) {
        match self.stream.larger_send_buffer() {
            Some(size) if sends => {
                self.send_buffer = size;
                self.stream.send_from_new();
            }
            _ => self.stream.keep_sending(),
        }
        match self.stream.larger_receive_buffer() {
            Some(size) if receives => {
                self.old_recv_buffer = std::mem::replace(&mut self.recv_buffer, size);
                self.stream.receive_into(0x4000_0000, 0xb1);
            }
            _ => self.stream.keep_receiving(),
        }
    }

    fn post(&mut self, outgoing: Outgoing) {
        let source = match &outgoing.payload {
            Payload::Nothing => None,
            Payload::Data(_, source) | Payload::Target(_, source) | Payload::Mapping(_, source) => {
                Some(source)
            }
        };
        match source {
            Some(PayloadSource::Buffer(first, second)) => {
                assert!(first.end <= self.send_buffer && second.end <= self.send_buffer);
            }
            Some(PayloadSource::Slot(slot)) => assert!(*slot < 4),
            Some(PayloadSource::Inline) | None => {}
        }
        let separate = self.stream.settings().framing == Framing::Separate;
        if separate && source.is_some() && outgoing.message.is_some() {
            self.posted.push(outgoing.trailer());
        }
        self.posted.push(outgoing.tag);
    }

    fn check(&self) {
        assert!(self.posted.len() <= 16, "more than the send queue holds");
        let old = if self.stream.uses_old_buffer() {
            self.old_recv_buffer
        } else {
            0
        };
        assert!(self.stream.unread() <= self.recv_buffer + old);
        let readiness = self.stream.readiness();
        assert_eq!(readiness.failed, self.stream.failure().is_some());
    }
}
