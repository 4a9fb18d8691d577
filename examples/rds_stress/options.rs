//! What both sides do, which the active one says to the passive one when it connects.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};

/// The bytes of the options on the wire, where there is no type of service.
const WIRE_LEN: usize = 59;

/// The bytes that come first. With a type of service, they are the version of the tool.
pub const START_LEN: usize = 16;

/// The version that has the same options.
const VERSION: &[u8; START_LEN] = b"2.0.7\0\0\0\0\0\0\0\0\0\0\0";

/// The bytes of the options with their version, the type of service, and whether to be told of messages.
const LONG_LEN: usize = START_LEN + WIRE_LEN + 2;

/// The bytes of a message's header, which is the shortest message.
pub const HEADER_LEN: u32 = 63;

/// The longest message, and the most memory of an operation.
const MAX_BYTES: u32 = 1 << 20;

/// The most messages that one side keeps on their way.
const MAX_SLOTS: u64 = 1 << 20;

/// Which operations requests ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By turns.
    ReadWrite,
    /// Reads.
    ReadOnly,
    /// Writes.
    WriteOnly,
}

/// What both sides do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "these are the tool's options"
)]
pub struct Options {
    /// Requests to each task that wait for an answer.
    pub depth: u32,
    /// The bytes of a request.
    pub request: u32,
    /// The bytes of an answer.
    pub ack: u32,
    /// The bytes of a piece of memory of an operation; 0 for none.
    pub rdma: u32,
    /// The other side.
    pub peer: Ipv4Addr,
    /// This side.
    pub own: Ipv4Addr,
    /// Where the passive side listens; the tasks have the ports after it.
    pub port: u16,
    /// How many tasks each side has.
    pub tasks: u16,
    /// How long it takes, in seconds; 0 for ever.
    pub seconds: u32,
    /// Print the end only.
    pub summary: bool,
    /// The thread that prints goes before others.
    pub rtprio: bool,
    /// Tell what happens.
    pub trace: bool,
    /// Compare what arrives with what was sent.
    pub verify: bool,
    /// Wait to be told that a port is not congested any more.
    pub monitor: bool,
    /// Memory is for one operation.
    pub use_once: bool,
    /// Memory is named before the request is sent.
    pub get_mr: bool,
    /// Answers wait for reads.
    pub fence: bool,
    /// Names are used again.
    pub cache: bool,
    /// Requests go one way only.
    pub simplex: bool,
    /// Which operations are asked for.
    pub mode: Mode,
    /// How many pieces of memory an operation has.
    pub vector: u32,
    /// Where in a page memory begins.
    pub alignment: u32,
    /// The type of service of the messages.
    pub tos: u8,
}

/// The bytes of options that begin so.
///
/// # Errors
/// They are of another version.
pub fn wire_len(start: &[u8; START_LEN]) -> Result<usize> {
    if start == VERSION {
        return Ok(LONG_LEN);
    }
    // Otherwise it is the number of requests at a time.
    ensure!(
        start[0] == 0,
        "the other side is of version {}, and not 2.0.7",
        String::from_utf8_lossy(start).trim_end_matches('\0')
    );
    Ok(WIRE_LEN)
}

impl Options {
    /// As the active side says it.
    pub fn to_wire(&self) -> Vec<u8> {
        let mut wire = Vec::with_capacity(LONG_LEN);
        if self.tos != 0 {
            wire.extend(VERSION);
        }
        for number in [
            self.depth,
            self.request,
            self.ack,
            self.rdma,
            self.peer.to_bits(),
            self.own.to_bits(),
        ] {
            wire.extend(number.to_be_bytes());
        }
        wire.extend(self.port.to_be_bytes());
        wire.extend(self.tasks.to_be_bytes());
        wire.extend(self.seconds.to_be_bytes());
        let mode = match self.mode {
            Mode::ReadWrite => 0,
            Mode::ReadOnly => 1,
            Mode::WriteOnly => 2,
        };
        wire.extend([
            u8::from(self.summary),
            u8::from(self.rtprio),
            u8::from(self.trace),
            u8::from(self.verify),
            // What is printed is every side's own.
            0,
            0,
            u8::from(self.monitor),
            u8::from(self.use_once),
            u8::from(self.get_mr),
            u8::from(self.fence),
            u8::from(self.cache),
            0,
            0,
            u8::from(self.simplex),
            mode,
        ]);
        for number in [self.vector, self.alignment, 0] {
            wire.extend(number.to_be_bytes());
        }
        if self.tos != 0 {
            // Nobody is told of messages.
            wire.extend([self.tos, 0]);
        }
        wire
    }

    /// Reads what the active side says; `own` is the address of this one.
    ///
    /// # Errors
    /// Something that cannot be done: it says what.
    pub fn from_wire(wire: &[u8], own: Ipv4Addr) -> Result<Self> {
        let (wire, [tos, told]) = match wire.strip_prefix(VERSION) {
            Some(rest) => rest.split_last_chunk(),
            None => Some((wire, &[0, 0])),
        }
        .filter(|(wire, _)| wire.len() == WIRE_LEN)
        .with_context(|| format!("{} bytes of options", wire.len()))?;
        ensure!(*told == 0, "to be told of messages is not here");
        let long =
            |at: usize| u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]]);
        let short = |at: usize| u16::from_be_bytes([wire[at], wire[at + 1]]);
        let flag = |at: usize| wire[32 + at] != 0;
        let options = Self {
            depth: long(0),
            request: long(4),
            ack: long(8),
            rdma: long(12),
            // It says where it sends from, which is the other side's.
            peer: Ipv4Addr::from_bits(long(20)),
            own,
            port: short(24),
            tasks: short(26),
            seconds: long(28),
            summary: flag(0),
            rtprio: flag(1),
            trace: flag(2),
            verify: flag(3),
            monitor: flag(6),
            use_once: flag(7),
            get_mr: flag(8),
            fence: flag(9),
            cache: flag(10),
            simplex: flag(13),
            mode: match wire[46] {
                0 => Mode::ReadWrite,
                1 => Mode::ReadOnly,
                _ => Mode::WriteOnly,
            },
            vector: long(47),
            alignment: long(51),
            tos: *tos,
        };
        options.check()?;
        Ok(options)
    }

    /// Whether that can be done.
    ///
    /// # Errors
    /// It cannot: it says why.
    pub fn check(&self) -> Result<()> {
        for (what, len) in [("request", self.request), ("ack", self.ack)] {
            ensure!(
                (HEADER_LEN..=MAX_BYTES).contains(&len),
                "{what} size {len} is not from {HEADER_LEN} to {MAX_BYTES}"
            );
        }
        let tasks = u64::from(self.tasks);
        ensure!(tasks > 0, "there have to be tasks");
        ensure!(
            self.port.checked_add(self.tasks).is_some() && self.port > 0,
            "{tasks} tasks have no ports after {}",
            self.port
        );
        ensure!(
            (1..=u32::from(u16::MAX)).contains(&self.depth),
            "depth {} is not from 1 to 65535",
            self.depth
        );
        let slots = tasks * tasks * u64::from(self.depth);
        ensure!(
            slots <= MAX_SLOTS,
            "{slots} requests at a time are more than {MAX_SLOTS}"
        );
        ensure!(
            (1..=512).contains(&self.vector),
            "{} pieces of memory are not from 1 to 512",
            self.vector
        );
        let memory = u64::from(self.rdma) * u64::from(self.vector);
        ensure!(
            memory <= MAX_BYTES.into(),
            "operations on {memory} bytes are longer than {MAX_BYTES}"
        );
        ensure!(
            self.alignment <= 4096,
            "{} is more than a page",
            self.alignment
        );
        ensure!(
            !self.cache || !self.use_once,
            "names that are used once cannot be used again"
        );
        Ok(())
    }

    /// The memory of one operation.
    pub fn memory(&self) -> usize {
        self.rdma as usize * self.vector as usize
    }

    /// The port of a task.
    pub fn task_port(&self, task: u16) -> u16 {
        // That was checked.
        self.port.wrapping_add(1).wrapping_add(task)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn options() -> Options {
        Options {
            depth: 2,
            request: 10_000,
            ack: 1024,
            rdma: 20_000,
            peer: [10, 9, 0, 2].into(),
            own: [10, 9, 0, 1].into(),
            port: 4000,
            tasks: 3,
            seconds: 10,
            summary: false,
            rtprio: false,
            trace: false,
            verify: true,
            monitor: true,
            use_once: false,
            get_mr: false,
            fence: true,
            cache: false,
            simplex: false,
            mode: Mode::WriteOnly,
            vector: 4,
            alignment: 16,
            tos: 0,
        }
    }

    #[test]
    fn both_sides_do_the_same() {
        let active = options();
        let wire = active.to_wire();
        assert_eq!(
            wire[..36],
            [
                0, 0, 0, 2, 0, 0, 0x27, 0x10, 0, 0, 4, 0, 0, 0, 0x4E, 0x20, 10, 9, 0, 2, 10, 9, 0,
                1, 0x0F, 0xA0, 0, 3, 0, 0, 0, 10, 0, 0, 0, 1
            ]
        );
        let passive = Options::from_wire(&wire, active.peer).unwrap();
        let swapped = Options {
            peer: active.own,
            own: active.peer,
            ..active
        };
        assert_eq!(passive, swapped);
        assert_eq!(wire_len(wire.first_chunk().unwrap()).unwrap(), wire.len());
    }

    #[test]
    fn a_type_of_service_comes_with_a_version() {
        let plain = options();
        let active = Options { tos: 5, ..plain };
        let wire = active.to_wire();
        assert_eq!(wire.len(), 77);
        assert_eq!(wire[..16], *b"2.0.7\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(wire[16..75], options().to_wire());
        assert_eq!(wire[75..], [5, 0]);
        assert_eq!(wire_len(wire.first_chunk().unwrap()).unwrap(), 77);
        let passive = Options::from_wire(&wire, active.peer).unwrap();
        assert_eq!(passive.tos, 5);
        let mut told = wire.clone();
        told[76] = 1;
        assert!(Options::from_wire(&told, active.peer).is_err());
        assert!(Options::from_wire(&wire[..76], active.peer).is_err());
        assert!(Options::from_wire(&wire[..3], active.peer).is_err());
        assert!(wire_len(b"2.3.9\0\0\0\0\0\0\0\0\0\0\0").is_err());
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let bad = |change: fn(&mut Options)| {
            let mut options = options();
            change(&mut options);
            let refused = Options::from_wire(&options.to_wire(), options.peer);
            assert!(refused.is_err(), "{options:?}");
        };
        bad(|options| options.request = 62);
        bad(|options| options.ack = (1 << 20) + 1);
        bad(|options| options.tasks = 0);
        bad(|options| options.port = 65_534);
        bad(|options| options.depth = 0);
        bad(|options| options.depth = 65_536);
        bad(|options| (options.tasks, options.depth) = (1024, 2));
        bad(|options| options.vector = 0);
        bad(|options| options.vector = 53);
        bad(|options| options.alignment = 4097);
        bad(|options| (options.cache, options.use_once) = (true, true));
    }
}
