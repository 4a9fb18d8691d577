//! Options of a run, sent by the active side when it connects.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};

/// Size of the encoded options without a type of service.
const WIRE_LEN: usize = 59;

/// Size of the first part. With a type of service, the first part is the version of the tool.
pub const START_LEN: usize = 16;

/// Version with the same options.
const VERSION: &[u8; START_LEN] = b"2.0.7\0\0\0\0\0\0\0\0\0\0\0";

/// Size of the options with version, type of service and the flag of `--async`.
const LONG_LEN: usize = START_LEN + WIRE_LEN + 2;

/// Size of a message header, the minimum size of a message.
pub const HEADER_LEN: u32 = 63;

/// Maximum size of a message, and of the memory of an operation.
const MAX_BYTES: u32 = 1 << 20;

/// Maximum number of messages of one side in flight.
const MAX_SLOTS: u64 = 1 << 20;

/// Operations requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Alternating reads and writes.
    ReadWrite,
    /// Reads only.
    ReadOnly,
    /// Writes only.
    WriteOnly,
}

/// Options of a run, for both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "these are the tool's options"
)]
pub struct Options {
    /// Maximum number of requests in flight to each task.
    pub depth: u32,
    /// Size of a request in bytes.
    pub request: u32,
    /// Size of an answer in bytes.
    pub ack: u32,
    /// Size of a piece of memory of an operation; 0 for no operations.
    pub rdma: u32,
    /// Address of the other side.
    pub peer: Ipv4Addr,
    /// Address of this side.
    pub local: Ipv4Addr,
    /// Port of the passive side; tasks have the following ports.
    pub port: u16,
    /// Number of tasks per side.
    pub tasks: u16,
    /// Run time in seconds; 0 for no limit.
    pub seconds: u32,
    /// Print the summary only.
    pub summary: bool,
    /// Run the printing thread with real-time priority.
    pub rtprio: bool,
    /// Trace operations.
    pub trace: bool,
    /// Compare received data with the expected data.
    pub verify: bool,
    /// Wait for congestion updates.
    pub monitor: bool,
    /// Use exports for one operation.
    pub use_once: bool,
    /// Export memory before the request is sent.
    pub get_mr: bool,
    /// Fence answers after reads.
    pub fence: bool,
    /// Reuse keys.
    pub cache: bool,
    /// Send requests in one direction only.
    pub simplex: bool,
    /// Operations requested.
    pub mode: Mode,
    /// Number of pieces of memory of an operation.
    pub vector: u32,
    /// Offset of memory in a page.
    pub alignment: u32,
    /// Type of service of the messages.
    pub tos: u8,
}

/// Size of encoded options with this first part.
///
/// # Errors
/// The options are of another version.
pub fn wire_len(start: &[u8; START_LEN]) -> Result<usize> {
    if start == VERSION {
        return Ok(LONG_LEN);
    }
    // Without a version, the first field is the depth.
    ensure!(
        start[0] == 0,
        "the other side has version {} instead of 2.0.7",
        String::from_utf8_lossy(start).trim_end_matches('\0')
    );
    Ok(WIRE_LEN)
}

impl Options {
    /// Encodes the options.
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
            self.local.to_bits(),
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
            // Printing options are local.
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
            // `--async` is unsupported.
            wire.extend([self.tos, 0]);
        }
        wire
    }

    /// Decodes options; `local` is the local address.
    ///
    /// # Errors
    /// An option is unsupported.
    pub fn from_wire(wire: &[u8], local: Ipv4Addr) -> Result<Self> {
        let (wire, [tos, notify]) = match wire.strip_prefix(VERSION) {
            Some(rest) => rest.split_last_chunk(),
            None => Some((wire, &[0, 0])),
        }
        .filter(|(wire, _)| wire.len() == WIRE_LEN)
        .with_context(|| format!("{} bytes of options", wire.len()))?;
        ensure!(*notify == 0, "--async is not supported");
        let long =
            |at: usize| u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]]);
        let short = |at: usize| u16::from_be_bytes([wire[at], wire[at + 1]]);
        let flag = |at: usize| wire[32 + at] != 0;
        let options = Self {
            depth: long(0),
            request: long(4),
            ack: long(8),
            rdma: long(12),
            // The encoded address of the active side is the peer.
            peer: Ipv4Addr::from_bits(long(20)),
            local,
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

    /// Checks the options.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn check(&self) -> Result<()> {
        for (what, len) in [("request", self.request), ("ack", self.ack)] {
            ensure!(
                (HEADER_LEN..=MAX_BYTES).contains(&len),
                "{what} size {len} is not from {HEADER_LEN} to {MAX_BYTES}"
            );
        }
        let tasks = u64::from(self.tasks);
        ensure!(
            tasks > 0,
            "the number of tasks is 0; at least 1 is required"
        );
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
            "use-once keys cannot be cached"
        );
        Ok(())
    }

    /// Size of the memory of one operation in bytes.
    pub fn memory(&self) -> usize {
        self.rdma as usize * self.vector as usize
    }

    /// The port of a task.
    pub fn task_port(&self, task: u16) -> u16 {
        // `check` excludes an overflow.
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
            local: [10, 9, 0, 1].into(),
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
    fn options_round_trip() {
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
            peer: active.local,
            local: active.peer,
            ..active
        };
        assert_eq!(passive, swapped);
        assert_eq!(wire_len(wire.first_chunk().unwrap()).unwrap(), wire.len());
    }

    #[test]
    fn type_of_service_implies_version() {
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
        let mut notify = wire.clone();
        notify[76] = 1;
        assert!(Options::from_wire(&notify, active.peer).is_err());
        assert!(Options::from_wire(&wire[..76], active.peer).is_err());
        assert!(Options::from_wire(&wire[..3], active.peer).is_err());
        assert!(wire_len(b"2.3.9\0\0\0\0\0\0\0\0\0\0\0").is_err());
    }

    #[test]
    fn invalid_options_are_rejected() {
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
