//! Options and properties of a socket.

use std::{
    io,
    net::UdpSocket,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use cm::PathRecord;
use rustix::io::Errno;

use super::{Family, Phase, Socket, SocketState, failure_of, os_error};
use crate::{
    errno::errno,
    options::Options,
    proto::{decode_size, encode_size, stream::Settings},
    stream::Stream,
};

/// Default interval of keepalive probes, like TCP's.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(7200);

/// Defaults for unacknowledged keepalive probes, like TCP's: the interval in between, and their number.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(75);
const KEEP_ALIVE_COUNT: u32 = 9;

/// MTU assumed before the route is known, in bytes.
const ASSUMED_MTU: u32 = 2048;

/// Options chosen by the program.
#[derive(Clone, Debug, Default)]
pub(super) struct Choices {
    pub(super) settings: Settings,
    pub(super) reuse_addr: bool,
    pub(super) v6_only: Option<bool>,
    pub(super) tos: Option<u8>,
    pub(super) linger: Option<Duration>,
    pub(super) keep_alive: bool,
    pub(super) keep_idle: Option<Duration>,
    pub(super) keep_interval: Option<Duration>,
    pub(super) keep_count: Option<u32>,
    pub(super) user_timeout: Option<Duration>,
    pub(super) no_delay: bool,
    pub(super) oob_inline: bool,
    pub(super) route: Vec<PathRecord>,
    pub(super) read_timeout: Option<Duration>,
    pub(super) write_timeout: Option<Duration>,
}

impl Choices {
    /// Converts the choices to options of connections and listeners.
    pub(super) fn options(&self) -> Options {
        let mut options = Options::new();
        options.settings = self.settings;
        options.keep_alive = self.keep_alive_interval();
        options.user_timeout = self.user_timeout;
        options.keep_alive_timeout = self.unanswered();
        if let Some(linger) = self.linger {
            options = options.linger(linger);
        }
        options
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        self.keep_alive
            .then(|| self.keep_idle.unwrap_or(KEEP_ALIVE_IDLE))
    }

    /// Timeout for unacknowledged keepalive probes, if enabled and chosen.
    fn unanswered(&self) -> Option<Duration> {
        let is_set = self.keep_interval.is_some() || self.keep_count.is_some();
        (self.keep_alive && is_set).then(|| {
            let interval = self.keep_interval.unwrap_or(KEEP_ALIVE_INTERVAL);
            interval.saturating_mul(self.keep_count.unwrap_or(KEEP_ALIVE_COUNT))
        })
    }
}

/// Defines a getter and a setter of a size fixed at connection setup.
macro_rules! size {
    ($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $type:ty, $put:expr) => {
        $(#[$doc])*
        ///
        /// On a connected socket, returns the size in use.
        pub fn $get(&self) -> $type {
            self.settings().$field
        }

        #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
        ///
        /// # Errors
        /// - `InvalidInput`: the socket is already connected.
        pub fn $set(&self, value: $type) -> io::Result<()> {
            let put: fn(&mut Settings, $type) = $put;
            self.set_size(|settings| put(settings, value))
        }
    };
}

/// Defines a getter and a setter of an option without further effect.
macro_rules! noted {
    ($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $type:ty) => {
        $(#[$doc])*
        pub fn $get(&self) -> $type {
            self.lock().choices.$field
        }

        #[doc = concat!("Sets [`", stringify!($get), "`](Self::", stringify!($get), ").")]
        pub fn $set(&self, value: $type) {
            self.lock().choices.$field = value;
        }
    };
}

impl Socket {
    fn settings(&self) -> Settings {
        let state = self.lock();
        match &state.phase {
            Phase::Connected(stream) => stream.settings(),
            Phase::Datagram(datagram) => datagram.settings(),
            _ => state.choices.settings,
        }
    }

    fn set_size(&self, set: impl FnOnce(&mut Settings)) -> io::Result<()> {
        if let Some(datagram) = self.datagram_socket() {
            return datagram.set_settings(set);
        }
        self.change(|state| {
            if !matches!(state.phase, Phase::Idle(_) | Phase::Listening(_)) {
                return Err(os_error(Errno::INVAL));
            }
            set(&mut state.choices.settings);
            Ok(())
        })
        .map(drop)
    }

    /// Changes an option, also for future connections of a listener.
    fn change(
        &self,
        change: impl FnOnce(&mut SocketState) -> io::Result<()>,
    ) -> io::Result<MutexGuard<'_, SocketState>> {
        let mut state = self.lock();
        change(&mut state)?;
        if let Phase::Listening(listener) = &state.phase {
            listener.set_options(&state.choices.options());
        }
        Ok(state)
    }

    /// Changes an option of this socket and of its connection.
    fn follow(&self, change: impl FnOnce(&mut Choices), apply: impl FnOnce(&Stream, &Options)) {
        let changed = self.change(|state| {
            change(&mut state.choices);
            Ok(())
        });
        let Ok(state) = changed else { return };
        if let Phase::Connected(stream) = &state.phase {
            let (stream, options) = (Arc::clone(stream), state.choices.options());
            drop(state);
            apply(&stream, &options);
        }
    }

    size!(
        /// The depth of the send queue.
        send_queue, set_send_queue, send_depth: u16,
        |settings, value| settings.send_depth = value);
    size!(
        /// The maximum number of unread messages.
        receive_queue, set_receive_queue, recv_depth: u16,
        |settings, value| settings.recv_depth = value);
    size!(
        /// The size of the send buffer, in bytes.
        send_buffer, set_send_buffer, send_buffer: u32, Settings::set_send_buffer);
    size!(
        /// The size of the receive buffer, in bytes.
        receive_buffer, set_receive_buffer, recv_buffer: u32, Settings::set_recv_buffer);
    size!(
        /// The maximum number of bytes sent inline, without a copy to the send buffer.
        inline, set_inline, inline: u32,
        |settings, value| settings.inline = value);

    /// Makes the first buffers of this stream, and of streams accepted by this listener, as large as librdmacm's, and not
    /// smaller until used up: 64 KiB from the peer arrive before the program's first call, instead of 32 KiB, and 256 KiB
    /// are pinned. Programs ported from C may write so much before the peer reads.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is already connected.
    pub fn set_full_buffers(&self) -> io::Result<()> {
        self.set_size(Settings::set_full_buffers)
    }

    /// Returns how many buffers the *peer* may map for direct writes by this side.
    pub fn iomap_size(&self) -> u16 {
        self.settings().iomap_size
    }

    /// Sets how many buffers the *peer* may map for direct writes by this side. Values above 128 are rounded down
    /// to a multiple of 256, up to 32512.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is already connected.
    pub fn set_iomap_size(&self, entries: u16) -> io::Result<()> {
        self.set_size(|settings| settings.iomap_size = decode_size(encode_size(entries)))
    }

    /// Returns the route to the peer: the route set for the next connect, or of the connection.
    ///
    /// # Errors
    /// - `InvalidInput`: the socket is a datagram socket.
    pub fn route(&self) -> io::Result<Vec<PathRecord>> {
        let state = self.lock();
        match &state.phase {
            Phase::Datagram(_) => Err(os_error(Errno::INVAL)),
            Phase::Connected(stream) => {
                let stream = Arc::clone(stream);
                drop(state);
                Ok(stream.connection().route())
            }
            _ => Ok(state.choices.route.clone()),
        }
    }

    /// Sets the route to the peer, for instance of an earlier [connection](Self::route). Connecting then
    /// skips the resolution, which queries the subnet administrator on InfiniBand.
    ///
    /// # Errors
    /// - `InvalidInput`: `route` has no path, or the socket is already connected.
    #[doc(alias = "RDMA_ROUTE")]
    pub fn set_route(&self, route: &[PathRecord]) -> io::Result<()> {
        let mut state = self.lock();
        if route.is_empty() || !matches!(state.phase, Phase::Idle(_)) {
            return Err(os_error(Errno::INVAL));
        }
        state.choices.route = route.to_vec();
        Ok(())
    }

    noted!(
        /// Whether small messages are sent at once. Stored only: small messages are always sent at once.
        no_delay, set_no_delay, no_delay: bool);
    noted!(
        /// Whether urgent data is received inline. Stored only: rsockets have no urgent data.
        oob_inline, set_oob_inline, oob_inline: bool);
    noted!(
        /// The time a receive may block before failing with `WouldBlock`; unlimited if `None`.
        read_timeout, set_read_timeout, read_timeout: Option<Duration>);
    noted!(
        /// The time a send may block before failing with `WouldBlock`; unlimited if `None`.
        write_timeout, set_write_timeout, write_timeout: Option<Duration>);

    /// Whether binding to an address in use by other sockets is allowed.
    pub fn reuse_addr(&self) -> bool {
        self.lock().choices.reuse_addr
    }

    /// Allows binding to an address in use by other sockets. Takes effect when binding.
    ///
    /// # Errors
    /// For datagrams, those of `setsockopt(2)`.
    pub fn set_reuse_addr(&self, reuse: bool) -> io::Result<()> {
        if let Some(datagram) = self.datagram_socket() {
            datagram.set_reuse_addr(reuse)?;
        }
        self.lock().choices.reuse_addr = reuse;
        Ok(())
    }

    /// Whether an IPv6 socket rejects IPv4.
    pub fn v6_only(&self) -> bool {
        self.lock().choices.v6_only.unwrap_or(false)
    }

    /// Sets whether an IPv6 socket rejects IPv4. Takes effect when binding.
    ///
    /// # Errors
    /// For datagrams, those of `setsockopt(2)`.
    pub fn set_v6_only(&self, only: bool) -> io::Result<()> {
        if let Some(datagram) = self.datagram_socket() {
            datagram.set_v6_only(only)?;
        }
        self.lock().choices.v6_only = Some(only);
        Ok(())
    }

    /// Returns the type of service: the traffic class of the packets.
    pub fn tos(&self) -> u8 {
        self.lock().choices.tos.unwrap_or(0)
    }

    /// Sets the type of service. Takes effect when binding or connecting; for datagrams, from the next peer
    /// on.
    ///
    /// # Errors
    /// For datagrams, those of `setsockopt(2)`.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        if let Some(datagram) = self.datagram_socket() {
            datagram.set_tos(tos)?;
        }
        self.lock().choices.tos = Some(tos);
        Ok(())
    }

    /// Returns the time for which closing waits for acknowledgement of sent data, if set.
    pub fn linger(&self) -> Option<Duration> {
        self.lock().choices.linger
    }

    /// Sets how long closing waits for acknowledgement of sent data. Zero ends the connection at once; `None`
    /// restores the [default](Options::linger).
    pub fn set_linger(&self, linger: Option<Duration>) {
        self.follow(|choices| choices.linger = linger, Stream::follow_linger);
    }

    /// Whether keepalive probes are enabled.
    pub fn keep_alive(&self) -> bool {
        self.lock().choices.keep_alive
    }

    /// Enables or disables keepalive probes.
    pub fn set_keep_alive(&self, keep_alive: bool) {
        self.follow(
            |choices| choices.keep_alive = keep_alive,
            |stream, options| {
                stream.set_keep_alive(options.keep_alive);
                stream.set_limits(options);
            },
        );
    }

    /// Returns the interval of keepalive probes.
    pub fn keep_idle(&self) -> Duration {
        self.lock().choices.keep_idle.unwrap_or(KEEP_ALIVE_IDLE)
    }

    /// Sets the interval of keepalive probes.
    ///
    /// # Errors
    /// - `InvalidInput`: the interval is zero.
    pub fn set_keep_idle(&self, interval: Duration) -> io::Result<()> {
        if interval.is_zero() {
            return Err(os_error(Errno::INVAL));
        }
        self.follow(
            |choices| choices.keep_idle = Some(interval),
            |stream, options| stream.set_keep_alive(options.keep_alive),
        );
        Ok(())
    }

    /// Returns the interval between unacknowledged keepalive probes: 75 seconds if not set.
    ///
    /// The device itself repeats probes. If this interval or the [count](Self::set_keep_count) has been set,
    /// only their product counts: the connection fails when nothing has been acknowledged for this long.
    pub fn keep_interval(&self) -> Duration {
        let interval = self.lock().choices.keep_interval;
        interval.unwrap_or(KEEP_ALIVE_INTERVAL)
    }

    /// Sets the interval between unacknowledged keepalive probes; see [`keep_interval`](Self::keep_interval).
    ///
    /// # Errors
    /// - `InvalidInput`: the interval is zero.
    #[doc(alias = "TCP_KEEPINTVL")]
    pub fn set_keep_interval(&self, interval: Duration) -> io::Result<()> {
        if interval.is_zero() {
            return Err(os_error(Errno::INVAL));
        }
        self.follow(
            |choices| choices.keep_interval = Some(interval),
            |stream, options| stream.set_limits(options),
        );
        Ok(())
    }

    /// Returns the maximum number of unacknowledged keepalive probes: 9 if not set.
    pub fn keep_count(&self) -> u32 {
        let count = self.lock().choices.keep_count;
        count.unwrap_or(KEEP_ALIVE_COUNT)
    }

    /// Sets the maximum number of unacknowledged keepalive probes; see
    /// [`keep_interval`](Self::keep_interval).
    ///
    /// # Errors
    /// - `InvalidInput`: the count is zero.
    #[doc(alias = "TCP_KEEPCNT")]
    pub fn set_keep_count(&self, count: u32) -> io::Result<()> {
        if count == 0 {
            return Err(os_error(Errno::INVAL));
        }
        self.follow(
            |choices| choices.keep_count = Some(count),
            |stream, options| stream.set_limits(options),
        );
        Ok(())
    }

    /// Returns the timeout for unacknowledged data, if set.
    pub fn user_timeout(&self) -> Option<Duration> {
        self.lock().choices.user_timeout
    }

    /// Sets the timeout for unacknowledged data, like [`Options::user_timeout`]. Overrides the keepalive
    /// options. `None` restores the default.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_user_timeout(&self, timeout: Option<Duration>) {
        self.follow(
            |choices| choices.user_timeout = timeout.filter(|timeout| !timeout.is_zero()),
            |stream, options| stream.set_limits(options),
        );
    }

    /// Returns the maximum payload of a packet in bytes: the path MTU, or 2048 before the route is known.
    pub fn max_segment(&self) -> u32 {
        self.stream()
            .and_then(|stream| stream.connection().mtu())
            .unwrap_or(ASSUMED_MTU)
    }

    /// Returns the address family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether the socket is listening.
    pub fn is_listening(&self) -> bool {
        matches!(self.lock().phase, Phase::Listening(_))
    }

    /// Whether the socket is or has been connected; for datagrams, whether a peer is set.
    pub fn is_connected(&self) -> bool {
        match &self.lock().phase {
            Phase::Connected(_) => true,
            Phase::Datagram(datagram) => datagram.peer_addr().is_some(),
            _ => false,
        }
    }

    /// Whether a connection attempt is in progress.
    pub fn is_connecting(&self) -> bool {
        matches!(self.lock().phase, Phase::Connecting(_))
    }

    /// Whether this is a [datagram socket](Self::datagram).
    pub fn is_datagram(&self) -> bool {
        self.datagram_socket().is_some()
    }

    /// Duplicates the UDP socket of a datagram socket, for UDP socket options. Only this crate may send and
    /// receive on it.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is a stream.
    /// - `EMFILE`: too many open descriptors.
    pub fn udp_socket(&self) -> io::Result<UdpSocket> {
        let datagram = self
            .datagram_socket()
            .ok_or_else(|| os_error(Errno::OPNOTSUPP))?;
        datagram.duplicate_udp()
    }

    /// Whether an attempt to [connect](Self::connect) has failed, after which the socket can only be closed.
    pub fn has_failed(&self) -> bool {
        matches!(self.lock().phase, Phase::Failed)
    }

    /// Whether the socket has been [closed](Self::close).
    pub fn is_closed(&self) -> bool {
        matches!(self.lock_raw().phase, Phase::Closed)
    }

    /// Takes the first error since the last call, as an OS error.
    pub fn take_error(&self) -> Option<io::Error> {
        if let Some(datagram) = self.datagram_socket() {
            let error = datagram.take_error();
            return error.map(|error| io::Error::from_raw_os_error(errno(&error)));
        }
        let mut state = self.lock();
        let failed = match &state.phase {
            Phase::Connected(stream) => failure_of(stream).map(|err| errno(&err)),
            _ => None,
        };
        // The failure of a connection is reported once.
        let was_reported = std::mem::replace(&mut state.reported_failure, failed.is_some());
        let noted = state.error.take().or(failed.filter(|_| !was_reported));
        drop(state);
        if noted.is_some() {
            self.clear_mirror_error();
        }
        noted.map(io::Error::from_raw_os_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepalive_interval_and_count_set_the_user_timeout() {
        let seconds = |count| Some(Duration::from_secs(count));
        let choices = Choices {
            keep_alive: true,
            ..Choices::default()
        };
        let limit = |choices: &Choices| {
            let options = choices.options();
            options.user_timeout.or(options.keep_alive_timeout)
        };
        assert_eq!(limit(&choices), None);
        let often = Choices {
            keep_interval: seconds(5),
            ..choices.clone()
        };
        assert_eq!(limit(&often), seconds(45));
        let fewer_probes = Choices {
            keep_count: Some(2),
            ..choices
        };
        assert_eq!(limit(&fewer_probes), seconds(150));
        let off = Choices {
            keep_alive: false,
            ..fewer_probes.clone()
        };
        assert_eq!(limit(&off), None);
        let fixed = Choices {
            user_timeout: seconds(7),
            ..fewer_probes
        };
        assert_eq!(limit(&fixed), seconds(7));
    }
}
