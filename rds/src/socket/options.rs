//! What can be chosen for a socket.

use std::{io, sync::MutexGuard, time::Duration};

use rustix::io::Errno;

use super::{Socket, lock};
use crate::{
    engine::State,
    errno::socket_error,
    outbound::Payload,
    proto::{
        SocketId,
        node::{Node, SocketError},
    },
    slots::Body,
};

/// The numbers of transports.
const INFINIBAND: i32 = 0;
const LOOPBACK: i32 = 3;

impl Socket {
    /// `SO_SNDBUF`—Sets how many bytes may be sent and not yet be acknowledged; 106496 if not set. A
    /// message may be the last that goes beyond, but may not be longer itself.
    ///
    /// This is the limit itself, not, as for the kernel's sockets, twice that.
    ///
    /// # Errors
    /// - `Unsupported`: the socket is of a parent process.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_limit(&self, bytes: u32) -> io::Result<()> {
        let recv = self.recv_limit();
        self.set_limits(bytes, recv)
    }

    /// `SO_RCVBUF`—Sets how many bytes may wait to be received before senders are asked to stop;
    /// 106496 if not set. They may go on when less than half is left.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_recv_limit(&self, bytes: u32) -> io::Result<()> {
        let send = self.send_limit();
        self.set_limits(send, bytes)
    }

    /// Chooses something. What the socket itself has of it is to be changed under the same lock.
    fn set(
        &self,
        call: impl FnOnce(&mut Node<Payload, Body>, SocketId) -> Result<(), SocketError>,
    ) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock()?;
        call(&mut state.node, self.id).map_err(socket_error)?;
        Ok(state)
    }

    fn set_limits(&self, send: u32, recv: u32) -> io::Result<()> {
        let mut state = self.set(|node, id| node.set_limits(id, send, recv))?;
        *lock(&self.limits) = (send, recv);
        self.engine.inner().drive(&mut state);
        Ok(())
    }

    /// How many bytes may be sent and not yet be acknowledged.
    #[doc(alias = "SO_SNDBUF")]
    pub fn send_limit(&self) -> u32 {
        lock(&self.limits).0
    }

    /// How many bytes may wait to be received before senders are asked to stop.
    #[doc(alias = "SO_RCVBUF")]
    pub fn recv_limit(&self) -> u32 {
        lock(&self.limits).1
    }

    /// Whether calls return at once, with `WouldBlock`, instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        lock(&self.options).nonblocking = nonblocking;
    }

    /// `SO_RCVTIMEO`—Sets how long a call waits for something to receive; for ever with `None`, and
    /// with zero. It fails with `TimedOut` then.
    #[doc(alias = "SO_RCVTIMEO")]
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        lock(&self.options).read = timeout.filter(|timeout| !timeout.is_zero());
    }

    /// `SO_SNDTIMEO`—Sets how long a call waits until it can send, also to a port that is
    /// congested, where the kernel's sockets wait for ever; for ever with `None`, and with zero.
    #[doc(alias = "SO_SNDTIMEO")]
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        lock(&self.options).write = timeout.filter(|timeout| !timeout.is_zero());
    }

    /// `SO_RCVTIMEO`—How long a call waits for something to receive.
    pub fn read_timeout(&self) -> Option<Duration> {
        lock(&self.options).read
    }

    /// `SO_SNDTIMEO`—How long a call waits until it can send.
    pub fn write_timeout(&self) -> Option<Duration> {
        lock(&self.options).write
    }

    /// `SO_BUSY_POLL`—Sets how long a call that has to wait looks for what comes, again and again, before it
    /// sleeps; not at all if not set, nor with zero.
    ///
    /// Whoever looks does not have to be woken, which takes longer than most messages do, but keeps a
    /// processor busy for that. It lets other threads go first. Where several calls wait at once, only one
    /// of them looks, for all, and as long as its own socket says.
    #[doc(alias = "SO_BUSY_POLL")]
    pub fn set_busy_poll(&self, time: Duration) {
        self.waiters.set_busy_poll(time);
    }

    /// `SO_BUSY_POLL`—How long a call that has to wait looks for what comes before it sleeps, to the
    /// microsecond.
    #[doc(alias = "SO_BUSY_POLL")]
    pub fn busy_poll(&self) -> Duration {
        self.waiters.busy_poll()
    }

    /// `RDS_RECVERR`—Sets whether operations that fail are told of even where that was not asked
    /// for.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "RDS_RECVERR")]
    pub fn set_recverr(&self, wanted: bool) -> io::Result<()> {
        let _state = self.set(|node, id| node.set_failures(id, wanted))?;
        lock(&self.options).recverr = wanted;
        Ok(())
    }

    /// `RDS_RECVERR`—Whether operations that fail are told of even where that was not asked for.
    #[doc(alias = "RDS_RECVERR")]
    pub fn recverr(&self) -> bool {
        lock(&self.options).recverr
    }

    /// `RDS_CONG_MONITOR`—Sets whether the socket [receives](crate::Received::Congestion) which of
    /// the ports are free again that it could not send to. Otherwise, every change of a peer's
    /// congestion makes it [ready](Self::readiness) once.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "RDS_CONG_MONITOR")]
    pub fn set_congestion_monitor(&self, wanted: bool) -> io::Result<()> {
        drop(self.set(|node, id| node.set_watch(id, wanted))?);
        Ok(())
    }

    /// `SO_TIMESTAMP`, `SO_RDS_MSG_RXPATH_LATENCY`—Sets whether the [times](crate::Message::timestamp)
    /// of messages that come from now on are exact. Otherwise they go by the ticks of the kernel's
    /// clock, which are some milliseconds: to read a better one can cost as much as the rest of a
    /// small message. It concerns all sockets of the engine, as long as one wants it.
    #[doc(alias = "SO_TIMESTAMP")]
    #[doc(alias = "SO_RDS_MSG_RXPATH_LATENCY")]
    pub fn set_exact_times(&self, wanted: bool) {
        let mut options = lock(&self.options);
        if std::mem::replace(&mut options.exact, wanted) != wanted {
            self.engine.inner().clock().want_exact(wanted);
        }
    }

    /// Whether the times of messages are exact since this socket wants it.
    pub fn exact_times(&self) -> bool {
        lock(&self.options).exact
    }

    /// `SIOCRDSSETTOS`—Sets the type of service, once, before anything is sent. Messages of
    /// different types go over different connections, and overtake each other.
    ///
    /// # Errors
    /// - `NotConnected`: it has no address yet; the kernel says `ENOTTY`.
    /// - `InvalidInput`: it is set already, or something has been sent.
    #[doc(alias = "SIOCRDSSETTOS")]
    pub fn set_tos(&self, tos: u8) -> io::Result<()> {
        let _state = self.set(|node, id| node.set_tos(id, tos))?;
        lock(&self.options).tos = tos;
        Ok(())
    }

    /// `SIOCRDSGETTOS`—The type of service.
    #[doc(alias = "SIOCRDSGETTOS")]
    pub fn tos(&self) -> u8 {
        lock(&self.options).tos
    }

    /// `SO_RDS_TRANSPORT`—Chooses the transport, once, before the socket has an address. There is
    /// one: 0, InfiniBand.
    ///
    /// # Errors
    /// - `Unsupported`: it is chosen already, or the socket has an address.
    /// - `InvalidInput`: there is none of that number.
    /// - `ENOPROTOOPT`: iWARP (1) or TCP (2), which are not spoken here.
    #[doc(alias = "SO_RDS_TRANSPORT")]
    pub fn set_transport(&self, transport: i32) -> io::Result<()> {
        if self.transport()?.is_some() {
            return Err(Errno::OPNOTSUPP.into());
        }
        match transport {
            INFINIBAND => {
                lock(&self.options).transport = true;
                Ok(())
            }
            1 | 2 => Err(Errno::NOPROTOOPT.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// `SO_RDS_TRANSPORT`—The transport: 0, InfiniBand, or 3, for an address of this host itself.
    /// None (-1 for C) if it is not chosen, and the socket has no address.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "SO_RDS_TRANSPORT")]
    pub fn transport(&self) -> io::Result<Option<i32>> {
        let local = self.local_addr()?;
        Ok(match local {
            Some(addr) if addr.ip().is_loopback() => Some(LOOPBACK),
            Some(_) => Some(INFINIBAND),
            None => lock(&self.options).transport.then_some(INFINIBAND),
        })
    }
}
