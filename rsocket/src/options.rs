//! Options chosen before a socket is connected.

use std::{net::SocketAddr, time::Duration};

use crate::{config::config, device::ProtectionGroup, proto::stream::Settings};

/// Default timeout for unacknowledged data: TCP's with default retransmissions.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(924);

/// Default timeout for completing the handshake of an accepted connection. The reply is repeated once within
/// this time, after about four seconds, in case the reply or the RTU was lost.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Default time for which a dropped stream waits for its peer to acknowledge data.
const LINGER: Duration = Duration::from_secs(10);

/// Sizes, connection setup and shutdown of a connection.
///
/// ```
/// # let _fabric = doctest::lasting_host();
/// # let _listener = rsocket::Listener::bind("10.9.0.1:7471")?;
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
    /// Timeout for unacknowledged keepalive probes, unless `user_timeout` is set.
    pub(crate) keep_alive_timeout: Option<Duration>,
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
            linger: LINGER,
            linger_in_background: true,
            keep_alive: None,
            user_timeout: None,
            keep_alive_timeout: None,
            group: None,
        }
    }
}

impl Options {
    /// Creates options with the defaults of rsockets: queues of 384 messages, buffers of 128 KiB, 64 bytes
    /// inline. The files in `/etc/rdma/rsocket` override these, as for [`Socket::new`](crate::Socket::new).
    /// Unlike librdmacm, buffers without an explicit size are smaller until first used up, so that an idle stream
    /// pins 48 KiB instead of 256, and grow beyond this size under load.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the depth of the send queue: 16 to 65534, limited by the device.
    #[doc(alias = "RDMA_SQSIZE")]
    pub fn send_queue(mut self, depth: u16) -> Self {
        self.settings.send_depth = depth;
        self
    }

    /// Sets the maximum number of unread messages: 16 to 65534, limited by the device.
    #[doc(alias = "RDMA_RQSIZE")]
    pub fn receive_queue(mut self, depth: u16) -> Self {
        self.settings.recv_depth = depth;
        self
    }

    /// Sets the size of the send buffer in bytes, at least 4096, registered when connecting. Without an explicit size,
    /// the buffer has 16 KiB, 128 KiB from the first time it is full, and grows up to 512 KiB when full repeatedly.
    pub fn send_buffer(mut self, bytes: u32) -> Self {
        self.settings.set_send_buffer(bytes);
        self
    }

    /// Sets the size of the receive buffer in bytes, at least 4096, registered when connecting. Without an explicit
    /// size, the buffer has 32 KiB, 128 KiB from the first time the peer has run out of room, and grows up to 512 KiB
    /// when the peer repeatedly runs out of room although the program reads everything.
    pub fn receive_buffer(mut self, bytes: u32) -> Self {
        self.settings.set_recv_buffer(bytes);
        self
    }

    /// Sets the maximum number of bytes sent inline, without a copy to the send buffer; limited by the device.
    #[doc(alias = "RDMA_INLINE")]
    pub fn inline(mut self, bytes: u32) -> Self {
        self.settings.inline = bytes;
        self
    }

    /// Sets how many buffers the *peer* may map for direct writes by this side. Values above 128 are rounded down
    /// to a multiple of 256, up to 32512.
    #[doc(alias = "RDMA_IOMAPSIZE")]
    pub fn iomap_size(mut self, entries: u16) -> Self {
        let scaled = crate::proto::encode_size(entries);
        self.settings.iomap_size = crate::proto::decode_size(scaled);
        self
    }

    /// Sets the maximum number of half-open and not yet accepted connections; 128 if not set.
    ///
    /// A connection is half-open from the reply to the peer's request until the peer has completed the
    /// handshake. A half-open connection uses a queue pair and the receive buffer named in the reply. When
    /// the backlog is full, a request displaces the oldest half-open connection of the address with the most,
    /// or the oldest of all if older than a second or than 16 others. Without such a connection, the request
    /// waits for a place; beyond 128 waiting requests, one is rejected.
    /// [`Listener::refusals`](crate::Listener::refusals) counts displaced connections and rejected requests.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
        self
    }

    /// Sets the maximum number of half-open connections from one address, at least 1. If not set: three
    /// quarters of the [backlog](Self::backlog), but at least 16. At the limit, a request displaces the
    /// oldest connection of its address if older than a second, or than connections of 16 addresses, or else waits.
    pub fn half_open_per_address(mut self, connections: u32) -> Self {
        self.half_open_per_address = Some(connections);
        self
    }

    /// Sets the timeout for completing the handshake of an accepted connection: 10 seconds if not set. Expiry
    /// releases the connection's memory.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    /// Sets the local address to connect from, and the local port unless 0.
    pub fn source(mut self, addr: SocketAddr) -> Self {
        self.source = Some(addr);
        self
    }

    /// Sets the timeout for connecting to one address. If not set, the transport gives up after about a
    /// minute. Each address of a host name gets the full timeout.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the time for which a dropped stream waits for acknowledgement of sent data, like `SO_LINGER`: 10 seconds if not
    /// set. Zero ends the connection at once.
    ///
    /// The engine waits in the background, and the drop returns at once. With a time set by this call, the drop blocks
    /// instead, at most for this time, unless [in the background](Self::linger_in_background).
    #[doc(alias = "SO_LINGER")]
    pub fn linger(mut self, timeout: Duration) -> Self {
        self.linger = timeout;
        self.linger_in_background = false;
        self
    }

    /// Sets whether dropping the stream returns at once while the engine delivers the sent data in the
    /// background, as with TCP: the default, until [`linger`](Self::linger) sets a time.
    pub fn linger_in_background(mut self, in_background: bool) -> Self {
        self.linger_in_background = in_background;
        self
    }

    /// Sends keepalive probes at this interval. Without probes, only a send detects a vanished peer.
    pub fn keep_alive(mut self, interval: Duration) -> Self {
        self.keep_alive = Some(interval);
        self
    }

    /// Fails the connection with `TimedOut` when data or [keepalive probes](Self::keep_alive) have been
    /// unacknowledged for this time, or data has waited for room of the peer: at least one second. If not set or zero,
    /// unacknowledged data fails the connection after 924 seconds, and data waits for room without a limit, as with TCP.
    ///
    /// Most devices give up by themselves after 4 to 15 seconds, some never. A peer running the C library
    /// with full queues and no rsockets call during this time also fails the connection.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn user_timeout(mut self, timeout: Duration) -> Self {
        self.user_timeout = Some(timeout);
        self
    }

    /// Shares the protection domain of a group among its connections; without a group, each connection has
    /// its own.
    ///
    /// Each peer of the group can write into the streams of all others; see [`ProtectionGroup`].
    #[doc(alias = "ibv_alloc_pd")]
    pub fn protection_group(mut self, group: &ProtectionGroup) -> Self {
        self.group = Some(group.clone());
        self
    }

    /// Returns the timeout for unacknowledged data, with its default.
    pub(crate) fn limit(&self) -> Duration {
        let fixed = self.stall_limit().or(self.keep_alive_timeout);
        fixed.unwrap_or(USER_TIMEOUT)
    }

    /// Returns the timeout for data without room of the peer, if limited.
    pub(crate) fn stall_limit(&self) -> Option<Duration> {
        self.user_timeout.filter(|timeout| !timeout.is_zero())
    }
}
