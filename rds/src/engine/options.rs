//! Options of an engine.

use std::{io, num::NonZero, time::Duration};

use super::Engine;
use crate::{
    proto::{connection, node},
    slots::FRAME_SIZE,
};

/// Memory per receive: a frame, rounded up to a cache line.
const SLOT: u64 = (FRAME_SIZE as u64).next_multiple_of(64);

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
    pub(crate) receive_memory: u64,
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
            receive_memory: 1 << 30,
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
    pub fn receives(mut self, frames: u32) -> Self {
        self.receives = frames.max(64);
        self
    }

    /// Maximum number of bytes pinned by the receive queues of all connections; 1 GiB by default,
    /// enough for 336 connections with the default number of [receives](Self::receives). At the
    /// limit, each connection request closes an idle connection and is rejected, and dialing waits.
    pub fn receive_memory(mut self, bytes: u64) -> Self {
        self.receive_memory = bytes;
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
    /// address can have one eighth of them.
    pub fn max_pending(mut self, peers: usize) -> Self {
        self.node.max_pending = peers;
        self
    }

    /// Number of connections with room for their receive queues, at least one.
    pub(super) fn max_links(&self) -> usize {
        let each = u64::from(self.receives) * SLOT;
        usize::try_from(self.receive_memory / each.max(1))
            .unwrap_or(usize::MAX)
            .max(1)
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
    /// Requests of peers can fill seven eighths. Beyond the limit, the longest idle connection is
    /// forgotten; messages retransmitted by its peer are then delivered twice.
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
    fn options_receive_memory_bounds_connections() {
        let links = |options: EngineOptions| options.max_links();
        assert_eq!(links(EngineOptions::new()), 336);
        let small = EngineOptions::new().receives(64);
        assert_eq!(links(small.clone().receive_memory(1 << 30)), 4032);
        assert_eq!(links(small.clone().receive_memory(10 * 64 * 4160)), 10);
        assert_eq!(
            links(small.receive_memory(0)),
            1,
            "or nothing could be sent"
        );
    }
}
