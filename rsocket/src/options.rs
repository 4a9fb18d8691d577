//! What can be chosen before a socket is connected.

use std::{net::SocketAddr, time::Duration};

use crate::{config::config, proto::stream::Settings};

/// How long nothing of what is sent may be acknowledged, where nobody has said: what it takes TCP to
/// give up.
pub(crate) const USER_TIMEOUT: Duration = Duration::from_secs(924);

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
    pub(crate) source: Option<SocketAddr>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) linger: Duration,
    pub(crate) linger_in_background: bool,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) user_timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            settings: config().settings,
            backlog: 128,
            source: None,
            connect_timeout: None,
            linger: Duration::from_secs(10),
            linger_in_background: false,
            keep_alive: None,
            user_timeout: None,
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
    pub fn send_queue(mut self, depth: u16) -> Self {
        self.settings.send_depth = depth;
        self
    }

    /// How many messages can be waiting to be read: 16 to 65534, and what the device can do.
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
    pub fn inline(mut self, bytes: u32) -> Self {
        self.settings.inline = bytes;
        self
    }

    /// How many buffers the *peer* may map for this side to write to directly. Above 128, a
    /// multiple of 256 up to 32512.
    pub fn iomap_size(mut self, entries: u16) -> Self {
        let scaled = crate::proto::encode_size(entries);
        self.settings.iomap_size = crate::proto::decode_size(scaled);
        self
    }

    /// How many connections may be waiting to be accepted; 128 if not set.
    pub fn backlog(mut self, connections: u32) -> Self {
        self.backlog = connections;
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

    /// The same, whoever has said it.
    pub(crate) fn limit(&self) -> Duration {
        let said = self.user_timeout.filter(|timeout| !timeout.is_zero());
        said.unwrap_or(USER_TIMEOUT)
    }
}
