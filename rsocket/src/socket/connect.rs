//! Connection attempts of a socket, and the peer of a datagram socket.

use std::{
    io,
    mem::{self, take},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use cm::{CmId, phases::Idle};
use rustix::{event::epoll, io::Errno};

use super::{Phase, Socket, SocketState, failure_of, options::Choices, os_error};
use crate::{
    connecting::{BACKGROUND_RETRIES, Connecting, FailureHook},
    names::unmapped,
    stream::Stream,
};

impl SocketState {
    /// The result of another `connect` on a connected socket: the first one after an attempt in the background reports its end.
    fn repeated_connect(&mut self) -> io::Result<()> {
        let Phase::Connected(stream) = &self.phase else {
            return Err(os_error(Errno::NOTCONN));
        };
        if !take(&mut self.unreported_success) {
            return Err(os_error(Errno::ISCONN));
        }
        if !stream.connection().is_closed() {
            return Ok(());
        }
        let failure = failure_of(stream);
        let was_reported = mem::replace(&mut self.reported_failure, true);
        let failure = failure.filter(|_| !was_reported);
        Err(failure.unwrap_or_else(|| os_error(Errno::CONNABORTED)))
    }
}

impl Socket {
    /// Applies the result of a finished connection attempt. Returns its error, if any.
    pub(super) fn advance(&self, state: &mut SocketState) -> Option<io::Error> {
        let Phase::Connecting(connecting) = &state.phase else {
            return None;
        };
        let result = connecting.take()?;
        if let Some(poller) = self.poller.get() {
            // Cannot fail: the eventfd is a member.
            let _: Result<(), Errno> = epoll::delete(poller, connecting.event_fd());
        }
        let connected = result.and_then(|connection| {
            let options = state.choices.options();
            let stream = Stream::new(connection, &self.engine, &options);
            stream.set_nonblocking(self.is_nonblocking());
            if let Some(poller) = self.poller.get() {
                stream.connection().shared().notify_in(poller)?;
            }
            Ok(stream)
        });
        match connected {
            Ok(stream) => {
                state.set_phase(Phase::Connected(Arc::new(stream)));
                state.unreported_success = true;
                None
            }
            Err(err) => {
                state.fail(&err);
                Some(err)
            }
        }
    }

    /// Connects to a peer. Blocks until the connection is established or has failed. A
    /// [nonblocking](Self::set_nonblocking) socket connects in the background and becomes writable when done.
    ///
    /// For datagrams, selects the peer for sending and the only source for receiving, without sending
    /// anything. Can be repeated.
    ///
    /// # Errors
    /// - `EINPROGRESS`: the attempt continues in the background.
    /// - `EALREADY`: an earlier attempt is in progress.
    /// - `EISCONN`: the socket is connected. As with TCP, the first call after the success of an attempt in the background
    ///   succeeds.
    /// - `Interrupted`: a signal interrupted the wait. The attempt continues in the background, and another call waits for its
    ///   end.
    /// - `NotConnected`: an earlier attempt has failed. This socket cannot be reused.
    /// - `InvalidInput`: the socket is listening.
    /// - `EAFNOSUPPORT`: an IPv6 address for an IPv4 socket.
    /// - `NetworkUnreachable`: a mapped IPv4 address for a socket [limited to IPv6](Self::set_v6_only).
    /// - `ConnectionRefused` and so on: as for [`Options::connect`](crate::Options::connect).
    /// - For datagrams, `NetworkUnreachable`, `ENODEV`: no RDMA device leads to the address. `Unsupported`:
    ///   the device on the route is iWARP.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        let connected = self.connect_to(peer);
        self.reflect(true);
        connected
    }

    fn connect_to(&self, peer: SocketAddr) -> io::Result<()> {
        if let Some(datagram) = self.datagram_socket() {
            return datagram.connect(Some(unmapped(peer)));
        }
        let connecting = {
            let mut state = self.lock();
            let peer = self.plain(peer, &state.choices, Errno::NETUNREACH)?;
            let id = match &mut state.phase {
                Phase::Idle(id) | Phase::Ended(id) => id.take(),
                // As for TCP, a blocking call waits for the attempt of an interrupted one.
                Phase::Connecting(connecting) if !self.is_nonblocking() => {
                    let connecting = Arc::clone(connecting);
                    drop(state);
                    return self.finish_connecting(&connecting);
                }
                Phase::Connecting(_) | Phase::Replaced { .. } => {
                    return Err(os_error(Errno::ALREADY));
                }
                Phase::Connected(_) => return state.repeated_connect(),
                Phase::Failed => return Err(os_error(Errno::NOTCONN)),
                Phase::Listening(_) | Phase::Datagram(_) => {
                    return Err(os_error(Errno::INVAL));
                }
                Phase::Closed => return Err(os_error(Errno::BADF)),
            };
            let id = match id {
                Some(id) if peer.is_ipv4() => self.bound_to_v4(id, &state.choices)?,
                Some(id) => id,
                None => self.create_id(&state.choices)?,
            };
            let retries = if self.is_nonblocking() {
                BACKGROUND_RETRIES
            } else {
                0
            };
            let hook = state.failure_hook.take().filter(|_| self.is_nonblocking());
            let settings = state.choices.settings;
            let route = take(&mut state.choices.route);
            let engine = &self.engine;
            let connecting =
                Connecting::start_with(engine, id, peer, settings, retries, route, hook)
                    .and_then(|connecting| {
                        self.watch(connecting.event_fd())?;
                        Ok(connecting)
                    })
                    .inspect_err(|err| drop(state.fail(err)))?;
            state.set_phase(Phase::Connecting(Arc::clone(&connecting)));
            connecting
        };
        if self.is_nonblocking() {
            return Err(os_error(Errno::INPROGRESS));
        }
        self.finish_connecting(&connecting)
    }

    /// Keeps the failure of the next attempt in the background from callers and from the [mirror](Self::mirror), and calls
    /// `failed` once, on a thread of this crate, which must not be blocked. The attempt stays in progress until
    /// [`fail_attempt`](Self::fail_attempt) or [`show_replaced`](Self::show_replaced).
    pub fn keep_failure(&self, failed: impl FnOnce() + Send + 'static) {
        self.lock_raw().failure_hook = Some(FailureHook::new(failed));
    }

    /// Ends an attempt whose failure was [kept](Self::keep_failure), with `error` or with its own.
    pub fn fail_attempt(&self, error: Option<io::Error>) {
        if let Phase::Connecting(connecting) = &self.lock_raw().phase {
            connecting.release(error);
        }
        self.reflect(true);
    }

    /// Shows in the [mirror](Self::mirror) that another socket has connected in place of an attempt whose failure was
    /// [kept](Self::keep_failure): writable, and `readable` or not. [`poll`](super::poll()) returns, with an error of this socket.
    pub fn show_replaced(&self, readable: bool) {
        let mut state = self.lock_raw();
        let replaced = match &state.phase {
            Phase::Connecting(connecting) => connecting.release(None),
            Phase::Replaced { .. } => true,
            _ => false,
        };
        if replaced {
            let before = state.set_phase(Phase::Replaced { readable });
            drop(state);
            drop(before);
            self.reflect(true);
        }
    }

    /// Waits for the end of a connection attempt.
    fn finish_connecting(&self, connecting: &Connecting) -> io::Result<()> {
        connecting.wait_for_end()?;
        let mut state = self.lock_raw();
        if let Some(err) = self.advance(&mut state) {
            return Err(err);
        }
        match (&state.phase, state.error) {
            (Phase::Connected(_), _) => {
                state.unreported_success = false;
                Ok(())
            }
            (Phase::Failed, Some(errno)) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// Clears the peer of a datagram socket.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is a stream.
    pub fn disconnect(&self) -> io::Result<()> {
        let datagram = self
            .datagram_socket()
            .ok_or_else(|| os_error(Errno::OPNOTSUPP))?;
        datagram.connect(None)
    }

    /// Binds an identifier of all IPv6 addresses to all IPv4 addresses, at the same port.
    fn bound_to_v4(&self, id: CmId<Idle>, choices: &Choices) -> io::Result<CmId<Idle>> {
        let Some(SocketAddr::V6(bound)) = id.local_addr() else {
            return Ok(id);
        };
        if !bound.ip().is_unspecified() {
            return Ok(id);
        }
        drop(id);
        let mut id = self.create_id(choices)?;
        id.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, bound.port())))?;
        Ok(id)
    }
}
