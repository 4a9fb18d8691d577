//! How an engine is to be.

use std::{io, num::NonZero, time::Duration};

use super::Engine;
use crate::{
    proto::{connection, node},
    slots::FRAME_SIZE,
};

/// The bytes of a receive, with what is between it and the next.
const SLOT: u64 = (FRAME_SIZE as u64).next_multiple_of(64);

/// How an engine is to be, before it is started. Where the kernel has a setting for the same, the
/// defaults are its, but for [`receives`](Self::receives) and
/// [`max_unacked_packets`](Self::max_unacked_packets).
///
/// ```no_run
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
    pub(crate) doorbell_batch: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        // Numbers that are replaced at the start.
        let mut node = node::Settings::new(NonZero::<u64>::MIN, 0);
        node.connection.max_unacked_messages = 32;
        Self {
            node,
            sends: 256,
            receives: 768,
            receive_memory: 1 << 30,
            retries: 1,
            busy_poll: Duration::ZERO,
            doorbell_batch: 8,
        }
    }
}

impl EngineOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The requests that the send queue of a connection can hold; 256 if not set, at least 16.
    pub fn sends(mut self, requests: u32) -> Self {
        self.sends = requests.max(16);
        self
    }

    /// The frames that a connection can receive before somebody looks; 768 if not set, at least 64.
    /// The kernel's have 1024, of which no more are used than the peer can send: 256.
    /// Each takes 4160 bytes.
    pub fn receives(mut self, frames: u32) -> Self {
        self.receives = frames.max(64);
        self
    }

    /// Maximum number of bytes that the receives of all connections have pinned; 1 GiB if not set, which is 336
    /// connections with the default number of [receives](Self::receives). Where there are more peers, an idle
    /// connection is closed for each that asks, new ones are refused, and dialling waits.
    pub fn receive_memory(mut self, bytes: u64) -> Self {
        self.receive_memory = bytes;
        self
    }

    /// Maximum number of bytes of messages that wait in all sockets until programs receive them, with 256 bytes for
    /// each message; 256 MiB if not set. Beyond it, a connection that has more than its share waiting, which is this
    /// divided by the maximum number of connections, is lost and made anew; the others are not.
    pub fn max_waiting(mut self, bytes: u64) -> Self {
        self.node.max_waiting = bytes;
        self
    }

    /// Maximum number of peers at a time that have asked to connect, and never been connected; 64 if not set. An
    /// eighth of them can be of one address.
    pub fn max_pending(mut self, peers: usize) -> Self {
        self.node.max_pending = peers;
        self
    }

    /// Number of connections whose receives fit, at least one.
    pub(super) fn max_links(&self) -> usize {
        let each = u64::from(self.receives) * SLOT;
        usize::try_from(self.receive_memory / each.max(1))
            .unwrap_or(usize::MAX)
            .max(1)
    }

    /// How often the device sends again what is not acknowledged, before a connection is given up
    /// and made anew; once if not set, 7 at most.
    pub fn retry_count(mut self, retries: u8) -> Self {
        self.retries = retries.min(7);
        self
    }

    /// `net.core.busy_read`—How long the calls of new sockets look for what comes before they sleep: see
    /// [`Socket::set_busy_poll`](crate::Socket::set_busy_poll); not at all if not set.
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.busy_poll = time;
        self
    }

    /// After how many messages that are not acknowledged one asks for that; 32 if not set. The kernel's do
    /// after 8, and are told in a packet of its own each time, if nothing is sent back. Whatever is set here,
    /// while half of what [may be unacknowledged](crate::Socket::set_send_limit) is, one asks with each eighth.
    pub fn max_unacked_packets(mut self, messages: u32) -> Self {
        self.node.connection.max_unacked_messages = messages;
        self
    }

    /// After how many bytes that are not acknowledged a message asks for that; 16 MiB if not set.
    pub fn max_unacked_bytes(mut self, bytes: u32) -> Self {
        self.node.connection.max_unacked_bytes = bytes;
        self
    }

    /// At least one of so many requests is signalled; 16 if not set, at most 64.
    pub fn max_unsignaled_wr(mut self, requests: u32) -> Self {
        self.node.connection.max_unsignalled = requests.clamp(1, 64);
        self
    }

    /// How many short messages are posted with one doorbell, while twice as many requests are in flight as
    /// [one has to be signalled of](Self::max_unsignaled_wr); 8 if not set, with 1 each has its own. Those that
    /// wait for the others are posted by the next call of any socket that sends, receives, or waits, or some
    /// milliseconds later.
    pub fn doorbell_batch(mut self, messages: u32) -> Self {
        self.doorbell_batch = messages;
        self
    }

    /// After such a time in which a peer says nothing, it is asked for a sign of life; 10 seconds if
    /// not set, never with `None`. Without, a peer that vanishes is noticed when something is sent.
    pub fn keepalive(mut self, after: Option<Duration>) -> Self {
        self.node.connection.keepalive = after;
        self
    }

    /// Whether headers without a checksum pass, as some kernels send; they do if not set.
    pub fn accept_unchecked(mut self, accept: bool) -> Self {
        self.node.connection.accept_unchecked = accept;
        self
    }

    /// Maximum number of connections that are remembered, in all, and to one address; 4096 and 16 if not set. Peers
    /// that ask can have seven eighths of them. Where there are more, the one that has been idle for longest is
    /// forgotten: if its peer had messages to send again, they come twice.
    pub fn max_connections(mut self, all: usize, per_peer: usize) -> Self {
        self.node.max_connections = all;
        self.node.max_connections_per_peer = per_peer;
        self
    }

    /// The settings of connections that have no call of their own here.
    pub fn connection(mut self, settings: connection::Settings) -> Self {
        self.node.connection = settings;
        self
    }

    /// Starts an engine.
    ///
    /// # Errors
    /// - `NotFound`: there is no RDMA device.
    /// - `Unsupported`: the process is the child of one whose sockets have had an address of a device. As
    ///   long as none has, a process may fork, and its children start engines of theirs.
    /// - Whatever making descriptors or a thread fails with.
    pub fn start(self) -> io::Result<Engine> {
        Engine::start(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_bounded_by_the_memory_of_their_receives() {
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
