//! What can be asked of a socket, and chosen for it.

use std::{
    io,
    net::UdpSocket,
    sync::{Arc, MutexGuard},
    time::Duration,
};

use cm::PathRecord;
use rustix::io::Errno;

use super::{Family, Phase, Socket, State, os_error};
use crate::{
    errno::errno,
    options::Options,
    proto::{decode_size, encode_size, stream::Settings},
    stream::Stream,
};

/// When the first sign of life is asked for, where nobody has said: what the system has for TCP.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(7200);

/// How far apart signs of life are asked for that are not answered, and how many of them: as TCP does.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(75);
const KEEP_ALIVE_COUNT: u32 = 9;

/// The MTU to assume as long as the way is not known.
const ASSUMED_MTU: u32 = 2048;

/// What has been chosen.
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
    /// The same, for connections and listeners.
    pub(super) fn options(&self) -> Options {
        let mut options = Options::new();
        options.settings = self.settings;
        options.keep_alive = self.keep_alive_interval();
        options.user_timeout = self.user_timeout.or_else(|| self.unanswered());
        if let Some(linger) = self.linger {
            options.linger = linger;
        }
        options
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        self.keep_alive
            .then(|| self.keep_idle.unwrap_or(KEEP_ALIVE_IDLE))
    }

    /// How long signs of life may stay without an answer, if they are asked for and it was said.
    fn unanswered(&self) -> Option<Duration> {
        let said = self.keep_interval.is_some() || self.keep_count.is_some();
        (self.keep_alive && said).then(|| {
            let interval = self.keep_interval.unwrap_or(KEEP_ALIVE_INTERVAL);
            interval.saturating_mul(self.keep_count.unwrap_or(KEEP_ALIVE_COUNT))
        })
    }
}

/// Defines the reading and the setting of a size that is fixed when the connection is made.
macro_rules! size {
    ($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $type:ty, $put:expr) => {
        $(#[$doc])*
        ///
        /// After connecting it is what the connection has.
        pub fn $get(&self) -> $type {
            self.settings().$field
        }

        $(#[$doc])*
        ///
        /// # Errors
        /// - `InvalidInput`: it is too late.
        pub fn $set(&self, value: $type) -> io::Result<()> {
            let put: fn(&mut Settings, $type) = $put;
            self.set_size(|settings| put(settings, value))
        }
    };
}

/// Defines the reading and the setting of a choice that is only noted.
macro_rules! noted {
    ($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $type:ty) => {
        $(#[$doc])*
        pub fn $get(&self) -> $type {
            self.lock().choices.$field
        }

        $(#[$doc])*
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
            Phase::Datagram(port) => port.settings(),
            _ => state.choices.settings,
        }
    }

    fn set_size(&self, set: impl FnOnce(&mut Settings)) -> io::Result<()> {
        if let Some(port) = self.port() {
            return port.set_settings(set);
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

    /// Changes a choice, and tells a listener of it.
    fn change(
        &self,
        change: impl FnOnce(&mut State) -> io::Result<()>,
    ) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        change(&mut state)?;
        if let Phase::Listening(listener) = &state.phase {
            listener.set_options(&state.choices.options());
        }
        Ok(state)
    }

    /// Changes a choice that an existing connection follows.
    fn follow(&self, change: impl FnOnce(&mut Choices), tell: impl FnOnce(&Stream, &Options)) {
        let changed = self.change(|state| {
            change(&mut state.choices);
            Ok(())
        });
        let Ok(state) = changed else { return };
        if let Phase::Connected(stream) = &state.phase {
            let (stream, options) = (Arc::clone(stream), state.choices.options());
            drop(state);
            tell(&stream, &options);
        }
    }

    size!(
        /// The depth of the send queue.
        send_queue, set_send_queue, send_depth: u16,
        |settings, value| settings.send_depth = value);
    size!(
        /// How many messages can be waiting to be read.
        receive_queue, set_receive_queue, recv_depth: u16,
        |settings, value| settings.recv_depth = value);
    size!(
        /// The size of the send buffer, in bytes.
        send_buffer, set_send_buffer, send_buffer: u32, Settings::set_send_buffer);
    size!(
        /// The size of the receive buffer, in bytes.
        receive_buffer, set_receive_buffer, recv_buffer: u32, Settings::set_recv_buffer);
    size!(
        /// The most bytes that are sent without being copied to the send buffer.
        inline, set_inline, inline: u32,
        |settings, value| settings.inline = value);

    /// How many buffers the *peer* may map for this side to write to.
    pub fn iomap_size(&self) -> u16 {
        self.settings().iomap_size
    }

    /// How many buffers the *peer* may map for this side to write to. Above 128, a multiple of 256
    /// up to 32512.
    ///
    /// # Errors
    /// - `InvalidInput`: it is too late.
    pub fn set_iomap_size(&self, entries: u16) -> io::Result<()> {
        self.set_size(|settings| settings.iomap_size = decode_size(encode_size(entries)))
    }

    /// The way to the peer: what was said, until it is used, or what the connection has.
    ///
    /// # Errors
    /// - `InvalidInput`: it is a datagram socket.
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

    /// Says the way to the peer, instead of having it resolved when connecting, which on InfiniBand
    /// asks the subnet's administration. It may be that of an earlier [connection](Self::route).
    ///
    /// # Errors
    /// - `InvalidInput`: there is no path in it, or it is too late.
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
        /// Whether small messages are sent at once. They are in any case.
        no_delay, set_no_delay, no_delay: bool);
    noted!(
        /// Whether urgent data comes with the rest. There is none.
        oob_inline, set_oob_inline, oob_inline: bool);
    noted!(
        /// How long receiving may wait before it fails with `WouldBlock`; for ever if not set.
        read_timeout, set_read_timeout, read_timeout: Option<Duration>);
    noted!(
        /// How long sending may wait before it fails with `WouldBlock`; for ever if not set.
        write_timeout, set_write_timeout, write_timeout: Option<Duration>);

    /// Whether the address may be one that others use.
    pub fn reuse_addr(&self) -> bool {
        self.lock().choices.reuse_addr
    }

    /// Whether the address may be one that others use. Takes effect when binding; it may be said
    /// later, too.
    ///
    /// # Errors
    /// For datagrams, those of `setsockopt(2)`.
    pub fn set_reuse_addr(&self, reuse: bool) -> io::Result<()> {
        if let Some(port) = self.port() {
            port.set_reuse_addr(reuse)?;
        }
        self.lock().choices.reuse_addr = reuse;
        Ok(())
    }

    /// Whether a socket for IPv6 is for nothing else.
    pub fn v6_only(&self) -> bool {
        self.lock().choices.v6_only.unwrap_or(false)
    }

    /// Whether a socket for IPv6 is for nothing else. Takes effect when binding.
    ///
    /// # Errors
    /// For datagrams, those of `setsockopt(2)`.
    pub fn set_v6_only(&self, only: bool) -> io::Result<()> {
        if let Some(port) = self.port() {
            port.set_v6_only(only)?;
        }
        self.lock().choices.v6_only = Some(only);
        Ok(())
    }

    /// The type of service: the traffic class of the packets.
    pub fn tos(&self) -> u8 {
        self.lock().choices.tos.unwrap_or(0)
    }

    /// The type of service. Takes effect when binding or connecting; for datagrams, with the next
    /// peer.
    ///
    /// # Errors
    /// For datagrams, those of `setsockopt(2)`.
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        if let Some(port) = self.port() {
            port.set_tos(tos)?;
        }
        self.lock().choices.tos = Some(tos);
        Ok(())
    }

    /// How long closing waits until the peer has got everything, if it was said.
    pub fn linger(&self) -> Option<Duration> {
        self.lock().choices.linger
    }

    /// How long closing waits until the peer has got everything. Zero ends the connection at once,
    /// and `None` is the [default](Options::linger).
    pub fn set_linger(&self, linger: Option<Duration>) {
        self.follow(
            |choices| choices.linger = linger,
            |stream, options| stream.set_linger(options.linger),
        );
    }

    /// Whether the peer's device is asked for signs of life.
    pub fn keep_alive(&self) -> bool {
        self.lock().choices.keep_alive
    }

    /// Asks the peer's device for signs of life.
    pub fn set_keep_alive(&self, keep_alive: bool) {
        self.follow(
            |choices| choices.keep_alive = keep_alive,
            |stream, options| {
                stream.set_keep_alive(options.keep_alive);
                stream.set_user_timeout(options.user_timeout);
            },
        );
    }

    /// How often signs of life are asked for.
    pub fn keep_idle(&self) -> Duration {
        self.lock().choices.keep_idle.unwrap_or(KEEP_ALIVE_IDLE)
    }

    /// How often signs of life are asked for.
    ///
    /// # Errors
    /// - `InvalidInput`: zero.
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

    /// How far apart signs of life are asked for that are not answered: 75 seconds if not set.
    ///
    /// A device repeats them by itself. So what counts is the product with
    /// [how many](Self::set_keep_count), if one of the two has been set: the connection fails when
    /// nothing has been acknowledged for so long.
    pub fn keep_interval(&self) -> Duration {
        let interval = self.lock().choices.keep_interval;
        interval.unwrap_or(KEEP_ALIVE_INTERVAL)
    }

    /// How far apart signs of life are asked for that are not answered, as
    /// [`keep_interval`](Self::keep_interval).
    ///
    /// # Errors
    /// - `InvalidInput`: zero.
    #[doc(alias = "TCP_KEEPINTVL")]
    pub fn set_keep_interval(&self, interval: Duration) -> io::Result<()> {
        if interval.is_zero() {
            return Err(os_error(Errno::INVAL));
        }
        self.follow(
            |choices| choices.keep_interval = Some(interval),
            |stream, options| stream.set_user_timeout(options.user_timeout),
        );
        Ok(())
    }

    /// How many signs of life may stay without an answer: 9 if not set.
    pub fn keep_count(&self) -> u32 {
        let count = self.lock().choices.keep_count;
        count.unwrap_or(KEEP_ALIVE_COUNT)
    }

    /// How many signs of life may stay without an answer, as [`keep_interval`](Self::keep_interval).
    ///
    /// # Errors
    /// - `InvalidInput`: zero.
    #[doc(alias = "TCP_KEEPCNT")]
    pub fn set_keep_count(&self, count: u32) -> io::Result<()> {
        if count == 0 {
            return Err(os_error(Errno::INVAL));
        }
        self.follow(
            |choices| choices.keep_count = Some(count),
            |stream, options| stream.set_user_timeout(options.user_timeout),
        );
        Ok(())
    }

    /// How long nothing of what is sent may be acknowledged, if it was said.
    pub fn user_timeout(&self) -> Option<Duration> {
        self.lock().choices.user_timeout
    }

    /// How long nothing of what is sent may be acknowledged before the connection fails, as
    /// [`Options::user_timeout`], whatever was said of signs of life. `None` is the default.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    pub fn set_user_timeout(&self, timeout: Option<Duration>) {
        self.follow(
            |choices| choices.user_timeout = timeout.filter(|timeout| !timeout.is_zero()),
            |stream, options| stream.set_user_timeout(options.user_timeout),
        );
    }

    /// The most payload of a packet: what the way to the peer allows, or 2048 before it is known.
    pub fn max_segment(&self) -> u32 {
        self.stream()
            .and_then(|stream| stream.connection().mtu())
            .unwrap_or(ASSUMED_MTU)
    }

    /// What the socket is for.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether it listens.
    pub fn is_listening(&self) -> bool {
        matches!(self.lock().phase, Phase::Listening(_))
    }

    /// Whether it has, or has had, a connection; or, for datagrams, a peer.
    pub fn is_connected(&self) -> bool {
        match &self.lock().phase {
            Phase::Connected(_) => true,
            Phase::Datagram(port) => port.peer_addr().is_some(),
            _ => false,
        }
    }

    /// Whether it is [for datagrams](Self::datagram).
    pub fn is_datagram(&self) -> bool {
        self.port().is_some()
    }

    /// The UDP socket that datagrams are addressed by, for options that only it has. What is sent
    /// and received there is not for others than this crate.
    ///
    /// # Errors
    /// - `Unsupported`: it is a stream.
    /// - `EMFILE`: there are too many descriptors.
    pub fn udp_socket(&self) -> io::Result<UdpSocket> {
        let port = self.port().ok_or_else(|| os_error(Errno::OPNOTSUPP))?;
        port.duplicate_udp()
    }

    /// Whether it has been [closed](Self::close).
    pub fn is_closed(&self) -> bool {
        matches!(self.lock_raw().phase, Phase::Closed)
    }

    /// The first error since the last time, as the number that C knows it by.
    pub fn take_error(&self) -> Option<io::Error> {
        if let Some(port) = self.port() {
            let error = port.take_error();
            return error.map(|error| io::Error::from_raw_os_error(errno(&error)));
        }
        let mut state = self.lock();
        let failed = match &state.phase {
            Phase::Connected(stream) => stream.take_error().map(|err| errno(&err)),
            _ => None,
        };
        // A connection that has failed says so once.
        let told = std::mem::replace(&mut state.told_failure, failed.is_some());
        let noted = state.error.take().or(failed.filter(|_| !told));
        drop(state);
        if noted.is_some() {
            self.error_is_told();
        }
        noted.map(io::Error::from_raw_os_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-OP1
    #[test]
    fn signs_of_life_may_stay_without_an_answer_as_long_as_was_said() {
        let seconds = |count| Some(Duration::from_secs(count));
        let choices = Choices {
            keep_alive: true,
            ..Choices::default()
        };
        let limit = |choices: &Choices| choices.options().user_timeout;
        assert_eq!(limit(&choices), None);
        let often = Choices {
            keep_interval: seconds(5),
            ..choices.clone()
        };
        assert_eq!(limit(&often), seconds(45));
        let few = Choices {
            keep_count: Some(2),
            ..choices
        };
        assert_eq!(limit(&few), seconds(150));
        let off = Choices {
            keep_alive: false,
            ..few.clone()
        };
        assert_eq!(limit(&off), None);
        let said = Choices {
            user_timeout: seconds(7),
            ..few
        };
        assert_eq!(limit(&said), seconds(7));
    }
}
