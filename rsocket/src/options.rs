//! What can be chosen before a socket is connected.

use std::{net::SocketAddr, time::Duration};

use crate::{config::config, device::ProtectionGroup, proto::stream::Settings};

/// How long nothing of what is sent may be acknowledged, where nobody has said: what it takes TCP to
/// give up.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(924);

/// Default time-out for the end of an accepted peer's handshake. The reply is repeated once in that time, after about
/// four seconds, in case that the reply or the RTU was lost.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The sizes of a connection, and how it is made and ended.
///
/// ```no_run
/// use std::time::Duration;
///
/// let stream = rsocket::Options::new()
///     .receive_buffer(1 << 20)
///     .connect_timeout(Duration::from_secs(5))
///     .connect("10.9.0.1:7471")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "call `connect` or `bind`"]
pub struct Options {
    pub(crate) settings: Settings,
    pub(crate) backlog: u32,
    pub(crate) half_open_per_address: Option<u32>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) source: Option<SocketAddr>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) linger: Duration,
    pub(crate) linger_in_background: bool,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) group: Option<ProtectionGroup>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settings: config().settings,
            backlog: 128,
            half_open_per_address: None,
            handshake_timeout: HANDSHAKE_TIMEOUT,
            source: None,
            connect_timeout: None,
            linger: Duration::from_secs(10),
            linger_in_background: false,
            keep_alive: None,
            user_timeout: None,
            group: None,
        }
    }
}

impl Options {
    /// The defaults of rsockets: queues of 384, buffers of 128 KiB, 64 bytes inline; or what the files in
    /// `/etc/rdma/rsocket` say, as for [`Socket::new`](crate::Socket::new). Unlike the original's, buffers
    /// whose size is set nowhere grow where much is sent.
    pub fn new() -> Self {
        Self::default()
    }

    /// The depth of the send queue: 16 to 65534, and what the device can do.
    #[doc(alias = "RDMA_SQSIZE")]
    pub fn send_queue(mut self, depth: u16) -> Self {
        self.settings.send_depth = depth;
        self
    }

    /// How many messages can be waiting to be read: 16 to 65534, and what the device can do.
    #[doc(alias = "RDMA_RQSIZE")]
    pub fn receive_queue(mut self, depth: u16) -> Self {
        self.settings.recv_depth = depth;
        self
    }

    /// The size of the send buffer in bytes; at least 4096. If it is not set, the buffer grows to 512 KiB where
    /// it is full again and again.
    pub fn send_buffer(mut self, bytes: u32) -> Self {
        self.settings.set_send_buffer(bytes);
        self
    }

    /// The size of the receive buffer in bytes; at least 4096. If it is not set, the buffer grows to 512 KiB
    /// where the peer runs out of room again and again while everything is read, and is not of the C library.
    pub fn receive_buffer(mut self, bytes: u32) -> Self {
        self.settings.set_recv_buffer(bytes);
        self
    }

    /// The most bytes that are sent without being copied to the send buffer.
    #[doc(alias = "RDMA_INLINE")]
    pub fn inline(mut self, bytes: u32) -> Self {
        self.settings.inline = bytes;
        self
    }

    /// How many buffers the *peer* may map for this side to write to directly. Above 128, a
    /// multiple of 256 up to 32512.
    #[doc(alias = "RDMA_IOMAPSIZE")]
    pub fn iomap_size(mut self, entries: u16) -> Self {
        let scaled = crate::proto::encode_size(entries);
        self.settings.iomap_size = crate::proto::decode_size(scaled);
        self
    }

    /// Maximum number of connections that are half-open or wait to be accepted; 128 if not set.
    ///
    /// A connection is half-open from the reply to the peer's request until the peer has completed the handshake.
    /// Meanwhile it takes up a queue pair and the receive buffer, which the reply has to name. When the backlog is full, a
    /// request displaces the oldest half-open connection of the address with most of them, or the oldest of all if that
    /// is older than a second, or than 16 others. If there is none, the request waits for a place, and with 128 requests
    /// waiting one is rejected. [`Listener::refusals`](crate::Listener::refusals) counts both.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// Maximum number of half-open connections from one address: at least 1, and three quarters of the
    /// [backlog](Self::backlog), or 16 if that is more, if not set. At the limit, a request of the address displaces
    /// the oldest of them if that is older than a second, or than 16 others, or waits.
    pub fn half_open_per_address(mut self, connections: u32) -> Self {
        self.half_open_per_address = Some(connections);
        self
    }

    /// Time-out for the end of an accepted peer's handshake: 10 seconds if not set. Then the connection's memory is
    /// released.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// The address, and the port if it is not 0, to connect from.
    pub fn source(mut self, addr: SocketAddr) -> Self {
        self.source = Some(addr);
        self
    }

    /// Timeout for connecting to one address; if it is not set, the transport's own, which is about a
    /// minute. A name with several addresses has as much for each.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Timeout for what was sent to arrive when the stream is dropped; 10 seconds if not set. Zero ends the
    /// connection at once.
    ///
    /// The dropping thread blocks for that time at most, or not at all
    /// [in the background](Self::linger_in_background).
    pub fn linger(mut self, timeout: Duration) -> Self {
        self.linger = timeout;
        self
    }

    /// Whether dropping the stream returns at once, while what was sent is still delivered in the
    /// background, as TCP does. Not unless set: a process that exits after the drop loses what has not
    /// arrived by then.
    pub fn linger_in_background(mut self, in_background: bool) -> Self {
        self.linger_in_background = in_background;
        self
    }

    /// Asks the peer's device for a sign of life so often. Without, a peer that vanishes is noticed
    /// only by those who send to it.
    pub fn keep_alive(mut self, interval: Duration) -> Self {
        self.keep_alive = Some(interval);
        self
    }

    /// How long nothing of what is sent, or of the [signs of life](Self::keep_alive) that are asked
    /// for, may be acknowledged by the peer's device before the connection fails with `TimedOut`: at
    /// least a second, and a quarter of an hour if not set, or if zero.
    ///
    /// A device that gives up by itself does so after a quarter of a minute or so. Some never do. And a
    /// C program at the other end that calls nothing of rsockets' for that long, while its queues are
    /// full, looks just the same.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn user_timeout(mut self, timeout: Duration) -> Self {
        self.user_timeout = Some(timeout);
        self
    }

    /// Makes connections share the protection domain of a group; without, each has its own.
    ///
    /// Each peer of the group can write into the streams of all others; see [`ProtectionGroup`].
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_group(mut self, group: &ProtectionGroup) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Returns the time-out for unacknowledged data, with its default.
    pub(crate) fn limit(&self) -> Duration {
        let said = self.user_timeout.filter(|timeout| !timeout.is_zero());
        said.unwrap_or(USER_TIMEOUT)
    }
}
