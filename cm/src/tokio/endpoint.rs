//! Endpoints whose completions can be awaited.

use std::io;

use verbs::{
    Buf, Completed, Completion, CompletionQueue, Error, ProtectionDomain, QueuePair, Rc, Result,
    Rts, tokio as watched,
};

use super::{EventChannel, First, first};
use crate::{
    connection::Connection, endpoint::stranger, event::Event, id::CmId, phases::Connected,
};

/// An [endpoint](crate::Endpoint) whose completions can be awaited.
///
/// While a task waits it notices that the peer has disconnected: then what is in flight comes back
/// with the status [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR).
///
/// Dropping it ends the connection.
#[derive(Debug)]
pub struct Endpoint<SW = Buf, RW = Buf> {
    connection: Connection<SW, RW>,
    send_cq: watched::CompletionQueue,
    recv_cq: watched::CompletionQueue,
    channel: EventChannel,
    disconnected: bool,
}

impl<SW, RW> Endpoint<SW, RW> {
    /// Puts an endpoint into the runtime.
    ///
    /// # Errors
    /// Whatever `epoll_ctl(2)` fails with. The connection ends then.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(endpoint: crate::Endpoint<SW, RW>) -> Result<Self> {
        let disconnected = endpoint.is_disconnected();
        let (connection, send_cq, recv_cq, channel) = endpoint.into_parts();
        let channel = EventChannel::new(channel)?;
        let mut this = Self::from_parts(connection, send_cq, recv_cq, channel)?;
        this.disconnected = disconnected;
        Ok(this)
    }

    pub(super) fn from_parts(
        connection: Connection<SW, RW>,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        channel: EventChannel,
    ) -> Result<Self> {
        Ok(Self {
            connection,
            send_cq: watched::CompletionQueue::new(send_cq)?,
            recv_cq: watched::CompletionQueue::new(recv_cq)?,
            channel,
            disconnected: false,
        })
    }

    /// The identifier: the addresses, the device, and the route.
    pub fn id(&self) -> &CmId<Connected> {
        self.connection.id()
    }

    /// The domain that memory and queue pair share.
    pub fn pd(&self) -> &ProtectionDomain {
        self.connection.qp().pd()
    }

    /// The queue pair, to post to.
    #[inline]
    pub fn qp_mut(&mut self) -> &mut QueuePair<Rc, Rts, SW, RW> {
        self.connection.qp_mut()
    }

    /// Waits until something has been sent, read or written, and gives it back.
    ///
    /// Cancel safe: no completion is lost.
    ///
    /// # Errors
    /// - `NotConnected`: the connection has ended, and nothing is in flight.
    /// - Those of [`poll`](CompletionQueue::poll).
    pub async fn send_comp(&mut self) -> Result<Completion<'_, SW>> {
        const CALL: &str = "tokio::Endpoint::send_comp";
        loop {
            let idle = self.connection.qp().send_queue().in_flight() == 0;
            self.check(CALL, idle)?;
            let queue = async { self.send_cq.wait().await.map(drop) };
            match first(queue, self.channel.wait()).await {
                First::A(completed) => break completed?,
                First::B(event) => self.attend(&event?)?,
            }
        }
        match self.send_cq.get_mut().poll()?.next() {
            Some(wc) => match self.connection.qp_mut().complete(wc) {
                Ok(Completed::Send(completion)) => Ok(completion),
                _ => Err(stranger(CALL)),
            },
            // Not reached: one has just been found, and nobody else takes them.
            None => Err(stranger(CALL)),
        }
    }

    /// Waits until a message has arrived, and gives its memory back.
    ///
    /// Cancel safe: no completion is lost.
    ///
    /// # Errors
    /// As for [`send_comp`](Self::send_comp).
    pub async fn recv_comp(&mut self) -> Result<Completion<'_, RW>> {
        const CALL: &str = "tokio::Endpoint::recv_comp";
        loop {
            let idle = self.connection.qp().receive_queue().in_flight() == 0;
            self.check(CALL, idle)?;
            let queue = async { self.recv_cq.wait().await.map(drop) };
            match first(queue, self.channel.wait()).await {
                First::A(completed) => break completed?,
                First::B(event) => self.attend(&event?)?,
            }
        }
        match self.recv_cq.get_mut().poll()?.next() {
            Some(wc) => match self.connection.qp_mut().complete(wc) {
                Ok(Completed::Receive(completion)) => Ok(completion),
                _ => Err(stranger(CALL)),
            },
            // Not reached: one has just been found, and nobody else takes them.
            None => Err(stranger(CALL)),
        }
    }

    /// Ends the connection, and waits until the peer has answered.
    ///
    /// Cancel safe: the connection has ended as soon as this is polled, and the next call waits on.
    ///
    /// # Errors
    /// Those of [`Connection::disconnect`].
    pub async fn disconnect(&mut self) -> Result<()> {
        let mut asked = false;
        while !self.disconnected {
            if !asked {
                asked = true;
                match self.connection.disconnect() {
                    // The peer has ended it, or an earlier call has: the event tells.
                    Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {}
                    other => other?,
                }
            }
            if let Event::Disconnected(_) | Event::DeviceRemoval(_) = self.channel.wait().await? {
                self.disconnected = true;
            }
        }
        Ok(())
    }

    /// Whether the connection has ended, as far as has been noticed.
    pub fn is_disconnected(&self) -> bool {
        self.disconnected
    }

    fn check(&self, call: &'static str, idle: bool) -> Result<()> {
        if self.disconnected && idle {
            let reason = "the connection has ended, and nothing is in flight";
            return Err(Error::refused(call, io::ErrorKind::NotConnected, reason));
        }
        Ok(())
    }

    fn attend(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Disconnected(_) if !self.disconnected => {
                self.disconnected = true;
                self.connection.disconnect()
            }
            Event::DeviceRemoval(_) if !self.disconnected => {
                self.disconnected = true;
                self.connection.qp_mut().to_error()
            }
            _ => Ok(()),
        }
    }
}
