//! Options of an engine.

use std::{io, num::NonZero, time::Duration};

use rustix::{
    process::{Resource, getrlimit},
    system::sysinfo,
    thread::{CapabilitySet, capabilities},
};

use super::Engine;
use crate::{
    proto::{connection, node},
    slots::FRAME_SIZE,
};

/// Memory per receive: a frame, rounded up to a cache line.
const SLOT: u64 = (FRAME_SIZE as u64).next_multiple_of(64);

/// Upper bound of the memory for receives, unless set.
const MAX_RECEIVE_MEMORY: u64 = 1 << 30;

/// Divisor of `RLIMIT_MEMLOCK`: receives leave half of the limit to sends and to the program.
const LOCKED_PART: u64 = 2;

/// Divisor of the host's memory: peers control how many receives are posted.
const RAM_PART: u64 = 16;

/// Maximum number of bytes that the process may lock; `None` without a limit.
pub(super) fn locked_limit() -> Option<u64> {
    let unlimited =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    getrlimit(Resource::Memlock).current.filter(|_| !unlimited)
}

/// Memory for receives, unless set, in bytes.
fn default_receive_memory() -> u64 {
    let limit = locked_limit();
    let info = sysinfo();
    // `totalram` has 32 bits on 32-bit kernels.
    let ram = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    receive_memory_of(ram, limit)
}

/// Computes the default memory for receives from the host's memory and the lock limit, in bytes;
/// `None` means no limit.
fn receive_memory_of(ram: u64, limit: Option<u64>) -> u64 {
    let locked = limit.unwrap_or(u64::MAX) / LOCKED_PART;
    MAX_RECEIVE_MEMORY.min(locked).min(ram / RAM_PART)
}

/// Options of an engine. Defaults equal the kernel's settings where one exists, except for
/// [`receives`](Self::receives) and [`max_unacked_packets`](Self::max_unacked_packets).
///
/// ```
/// # let _fabric = doctest::lasting_host();
/// let engine = rds::EngineOptions::new().receives(256).start()?;
/// let socket = engine.socket()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "call `start`"]
pub struct EngineOptions {
    pub(crate) node: node::Settings,
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    receive_memory: Option<u64>,
    pub(crate) retries: u8,
    pub(crate) busy_poll: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        // Sequence number and seed are replaced in `start`.
        let mut node = node::Settings::new(NonZero::<u64>::MIN, 0);
        node.connection.max_unacked_messages = 32;
        Self {
            node,
            sends: 256,
            receives: 768,
            receive_memory: None,
            retries: 1,
            busy_poll: Duration::ZERO,
        }
    }
}

impl EngineOptions {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Send queue length of a connection; 256 by default, at least 16.
    pub fn sends(mut self, requests: u32) -> Self {
        self.sends = requests.max(16);
        self
    }

    /// Receive queue length of a connection, in frames of 4160 bytes; 768 by default, at least 64.
    /// The kernel allocates 1024, but a peer of the kernel uses at most 256.
    ///
    /// Until the peer has delivered or acknowledged a message, 16 receives are posted, except on
    /// iWARP. Then the others follow, or half of those free within
    /// [`receive_memory`](Self::receive_memory) if these are fewer. A peer with more frames in flight
    /// waits and retransmits.
    pub fn receives(mut self, frames: u32) -> Self {
        self.receives = frames.max(64);
        self
    }

    /// Maximum number of bytes pinned by the queues and receives of all connections. The default is 1 GiB,
    /// but at most half of `RLIMIT_MEMLOCK`, and at most one sixteenth of the host's memory.
    ///
    /// One eighth is reserved for connections with messages of this program, and one quarter for the
    /// initial receives of connections. At the limit, a connection of the address with most of them
    /// is closed in favor of a new one, or the request is rejected and dialing waits.
    pub fn receive_memory(mut self, bytes: u64) -> Self {
        self.receive_memory = Some(bytes);
        self
    }

    /// Maximum number of bytes in the receive buffers of all sockets, counting 256 bytes of
    /// overhead per message, and 4096 for the last part of a message if longer than 1024; 256 MiB by
    /// default. Beyond the limit, a connection is reset if its own messages exceed an equal share,
    /// which is the limit divided by the maximum number of connections. Other connections are not
    /// affected.
    pub fn max_waiting(mut self, bytes: u64) -> Self {
        self.node.max_waiting = bytes;
        self
    }

    /// Maximum number of concurrent connection requests from unknown peers; 64 by default. An
    /// address can have one eighth of them. At the limit, the oldest of the address with most of them
    /// is ended.
    pub fn max_pending(mut self, peers: usize) -> Self {
        self.node.max_pending = peers;
        self
    }

    /// Maximum number of posted receives of all connections.
    pub(super) fn max_receives(&self) -> u64 {
        self.receive_memory.unwrap_or_else(default_receive_memory) / SLOT
    }

    /// Transport retries before the device fails the connection, which is then reestablished; 1 by
    /// default, at most 7.
    pub fn retry_count(mut self, retries: u8) -> Self {
        self.retries = retries.min(7);
        self
    }

    /// `net.core.busy_read`—Initial [`Socket::set_busy_poll`](crate::Socket::set_busy_poll) of
    /// sockets; zero by default.
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// Number of unacknowledged messages after which one requests an acknowledgement; 32 by
    /// default. The kernel uses 8, and without return traffic pays one packet for each
    /// acknowledgement. Independent of this setting, once half of [the send
    /// limit](crate::Socket::set_send_limit) is unacknowledged, each further eighth requests an
    /// acknowledgement.
    pub fn max_unacked_packets(mut self, messages: u32) -> Self {
        self.node.connection.max_unacked_messages = messages;
        self
    }

    /// Number of unacknowledged bytes after which a message requests an acknowledgement; 16 MiB by
    /// default.
    pub fn max_unacked_bytes(mut self, bytes: u32) -> Self {
        self.node.connection.max_unacked_bytes = bytes;
        self
    }

    /// Maximum number of requests per signaled completion; 16 by default, at most 64.
    pub fn max_unsignaled_wr(mut self, requests: u32) -> Self {
        self.node.connection.max_unsignaled = requests.clamp(1, 64);
        self
    }

    /// Interval without a frame from the peer after which a keepalive probe is sent; 10 s by
    /// default, `None` disables probes. Without probes, the loss of an idle peer is noticed by the
    /// next send.
    pub fn keepalive(mut self, after: Option<Duration>) -> Self {
        self.node.connection.keepalive = after;
        self
    }

    /// Accepts headers without a checksum, as sent by some kernels; `true` by default.
    pub fn accept_unchecked(mut self, accept: bool) -> Self {
        self.node.connection.accept_unchecked = accept;
        self
    }

    /// Maximum number of known connections in total and per peer address; 4096 and 16 by default.
    /// Requests of peers can fill seven eighths. Beyond the limit, the longest idle connection of the
    /// address with most of them is forgotten; messages retransmitted by its peer are then delivered
    /// twice.
    pub fn max_connections(mut self, all: usize, per_peer: usize) -> Self {
        self.node.max_connections = all;
        self.node.max_connections_per_peer = per_peer;
        self
    }

    /// Protocol settings without an option of their own here.
    pub fn connection(mut self, settings: connection::Settings) -> Self {
        self.node.connection = settings;
        self
    }

    /// Memory of the queues of a connection, in receives: about 160 bytes for a send, 16 for a receive
    /// and 64 for a completion. Completion queues are up to twice as long as needed.
    pub(super) fn queues(&self) -> u32 {
        let (sends, receives) = (u64::from(self.sends), u64::from(self.receives));
        let bytes = sends * 160 + receives * 16 + 2 * (sends + receives) * 64;
        u32::try_from(bytes.div_ceil(SLOT)).unwrap_or(u32::MAX)
    }

    /// Starts the engine and its thread.
    ///
    /// # Errors
    /// - `NotFound`: there is no RDMA device.
    /// - `Unsupported`: the process is a child of a process with open RDMA devices. A process may
    ///   fork before its sockets are bound to addresses of devices; each child then starts its own
    ///   engine.
    /// - Any error of creating descriptors or the thread.
    pub fn start(self) -> io::Result<Engine> {
        Engine::start(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_receive_memory_bounds_receives() {
        let receives = |options: EngineOptions| options.max_receives();
        assert_eq!(receives(EngineOptions::new().receive_memory(10 * 4160)), 10);
        assert_eq!(receives(EngineOptions::new().receive_memory(4159)), 0);
    }

    #[test]
    fn default_receive_memory_is_a_share_of_the_lock_limit() {
        const GIB: u64 = 1 << 30;
        assert_eq!(receive_memory_of(64 * GIB, None), GIB);
        assert_eq!(receive_memory_of(8 * GIB, None), GIB / 2);
        assert_eq!(receive_memory_of(64 * GIB, Some(8 << 20)), 4 << 20);
        assert_eq!(receive_memory_of(64 * GIB, Some(64 << 10)), 32 << 10);
        assert_eq!(receive_memory_of(GIB, Some(GIB)), GIB / 16);
    }
}
