//! Socket options.

use std::{io, time::Duration};

use rustix::io::Errno;

use super::{Socket, lock};
use crate::{
    engine::Guard,
    errno::socket_error,
    outbound::Payload,
    proto::{
        SocketId,
        node::{Node, SocketError},
    },
    slots::FrameBody,
};

/// Transport numbers of `SO_RDS_TRANSPORT`.
const INFINIBAND: i32 = 0;
const LOOPBACK: i32 = 3;

impl Socket {
    /// `SO_SNDBUF`—Sets the size of the send buffer, the maximum number of unacknowledged bytes;
    /// 106496 by default. The last message may exceed the limit, but must not be longer than the
    /// limit itself.
    ///
    /// The value is used as is; the kernel's sockets double it.
    ///
    /// # Errors
    /// - `Unsupported`: the socket belongs to the parent process.
    #[doc(alias = "SO_SNDBUF")]
    pub fn set_send_limit(&self, bytes: u32) -> io::Result<()> {
        let recv = self.recv_limit();
        self.set_limits(bytes, recv)
    }

    /// `SO_RCVBUF`—Sets the number of received bytes above which the port is congested and senders
    /// stop; 106496 by default. Senders resume below half.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "SO_RCVBUF")]
    pub fn set_recv_limit(&self, bytes: u32) -> io::Result<()> {
        let send = self.send_limit();
        self.set_limits(send, bytes)
    }

    /// Calls `call` under the lock. Returns the guard, for changes of the socket's own options.
    fn set(
        &self,
        call: impl FnOnce(&mut Node<Payload, FrameBody>, SocketId) -> Result<(), SocketError>,
    ) -> io::Result<Guard<'_>> {
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

    /// Size of the send buffer in bytes.
    #[doc(alias = "SO_SNDBUF")]
    pub fn send_limit(&self) -> u32 {
        lock(&self.limits).0
    }

    /// Size of the receive buffer in bytes.
    #[doc(alias = "SO_RCVBUF")]
    pub fn recv_limit(&self) -> u32 {
        lock(&self.limits).1
    }

    /// Makes calls return `WouldBlock` instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        lock(&self.options).nonblocking = nonblocking;
    }

    /// `SO_RCVTIMEO`—Sets the timeout of receive calls. `None` and zero block forever. On
    /// timeout, calls fail with `WouldBlock`, as in [`std::net`] on Unix; [`errno`](crate::errno())
    /// of the error is `ETIMEDOUT`, as with the kernel's sockets.
    #[doc(alias = "SO_RCVTIMEO")]
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        lock(&self.options).read = timeout.filter(|timeout| !timeout.is_zero());
    }

    /// `SO_SNDTIMEO`—Sets the timeout of send calls. `None` and zero block forever. Includes
    /// waiting for a congested port, which the kernel's sockets do without a timeout.
    #[doc(alias = "SO_SNDTIMEO")]
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        lock(&self.options).write = timeout.filter(|timeout| !timeout.is_zero());
    }

    /// `SO_RCVTIMEO`—The timeout of receive calls.
    pub fn read_timeout(&self) -> Option<Duration> {
        lock(&self.options).read
    }

    /// `SO_SNDTIMEO`—The timeout of send calls.
    pub fn write_timeout(&self) -> Option<Duration> {
        lock(&self.options).write
    }

    /// `SO_BUSY_POLL`—Sets how long a call polls before sleeping; zero by default.
    ///
    /// Polling avoids the cost of a wake-up, which exceeds the time of most messages, but keeps a
    /// processor busy. The polling call yields to other threads.
    #[doc(alias = "SO_BUSY_POLL")]
    pub fn set_busy_poll(&self, time: Duration) {
        self.descriptors.set_busy_poll(time);
    }

    /// `SO_BUSY_POLL`—How long a call polls before sleeping, in whole microseconds.
    #[doc(alias = "SO_BUSY_POLL")]
    pub fn busy_poll(&self) -> Duration {
        self.descriptors.busy_poll()
    }

    /// `RDS_RECVERR`—Sets whether failed operations are notified without a request.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "RDS_RECVERR")]
    pub fn set_recverr(&self, enabled: bool) -> io::Result<()> {
        let _state = self.set(|node, id| node.set_failures(id, enabled))?;
        lock(&self.options).recverr = enabled;
        Ok(())
    }

    /// `RDS_RECVERR`—Whether failed operations are notified without a request.
    #[doc(alias = "RDS_RECVERR")]
    pub fn recverr(&self) -> bool {
        lock(&self.options).recverr
    }

    /// `RDS_CONG_MONITOR`—Sets whether the socket [receives](crate::Event::Congestion) an event
    /// when a port with a blocked send is released. Otherwise, every change of a peer's congestion
    /// map makes the socket [ready](Self::readiness) once.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "RDS_CONG_MONITOR")]
    pub fn set_congestion_monitor(&self, enabled: bool) -> io::Result<()> {
        drop(self.set(|node, id| node.set_watch(id, enabled))?);
        Ok(())
    }

    /// `SIOCRDSSETTOS`—Sets the type of service, once, before the first send. Each type of service
    /// uses its own connection, without order between them.
    ///
    /// # Errors
    /// - `NotConnected`: the socket is unbound; the kernel returns `ENOTTY`.
    /// - `InvalidInput`: set already, or a message was sent.
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

    /// `SO_RDS_TRANSPORT`—Selects the transport, once, before binding. The only transport is 0,
    /// InfiniBand.
    ///
    /// # Errors
    /// - `Unsupported`: selected already, or the socket is bound.
    /// - `InvalidInput`: unknown transport.
    /// - `ENOPROTOOPT`: iWARP (1) or TCP (2), not supported.
    #[doc(alias = "SO_RDS_TRANSPORT")]
    pub fn set_transport(&self, transport: i32) -> io::Result<()> {
        if self.transport()?.is_some() {
            let reason = "the transport is selected already, or by the bound address";
            return Err(verbs::Error::from_io("setsockopt", Errno::OPNOTSUPP)
                .detail(reason)
                .into());
        }
        match transport {
            INFINIBAND => {
                lock(&self.options).transport = true;
                Ok(())
            }
            1 | 2 => {
                let reason = format!("transport {transport}; the only one here is 0, InfiniBand");
                Err(verbs::Error::from_io("setsockopt", Errno::NOPROTOOPT)
                    .detail(reason)
                    .into())
            }
            _ => {
                let reason =
                    format!("{transport} is no transport; the only one here is 0, InfiniBand");
                Err(verbs::Error::from_io("setsockopt", Errno::INVAL)
                    .detail(reason)
                    .into())
            }
        }
    }

    /// `SO_RDS_TRANSPORT`—The transport: 0 for InfiniBand, 3 for a loopback address. `None` (-1 in
    /// C) if not selected and unbound.
    ///
    /// # Errors
    /// As for [`set_send_limit`](Self::set_send_limit).
    #[doc(alias = "SO_RDS_TRANSPORT")]
    pub fn transport(&self) -> io::Result<Option<i32>> {
        let local = self.bound_addr()?;
        Ok(match local {
            Some(addr) if addr.ip().is_loopback() => Some(LOOPBACK),
            Some(_) => Some(INFINIBAND),
            None => lock(&self.options).transport.then_some(INFINIBAND),
        })
    }
}
