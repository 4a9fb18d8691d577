//! Connected endpoints.

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use verbs::{
    Buf, Completed, CompletionQueue, ProtectionDomain, RemoteAccess, RemoteRegion, RemoteToken,
    Result, WorkCompletion,
    cq::Attempts,
    error::PostError,
    fd::wait_any_readable,
    op::{self, SendRequest},
    qp::{Completion, QpId, QpKey},
    work::{Gather, Scatter},
};

use super::{
    Ending, Queues,
    ending::{DISCONNECT_TIMEOUT, disconnected},
    notify_fd,
    queues::{PrivateCqs, PrivateQueues, QueueChoice, SharedQueues},
    receiving, registration, unmatched_completion,
};
use crate::{
    channel::EventChannel,
    connection::Connection,
    dial::Deadline,
    event::{ConnectFailure, Event},
    id::CmId,
    param::PeerParam,
    phases::Connected,
};

/// A connection with completion queues and an event channel of its own: the counterpart of C's identifier
/// from `rdma_create_ep`.
///
/// All calls block, at most for the [timeout](Self::set_timeout). While waiting for a completion, a call also
/// handles a disconnect of the peer: then all requests in flight complete with the status
/// [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR).
///
/// Drop disconnects.
///
/// # Examples
/// ```
/// # let _server = doctest::server();
/// let mut endpoint = cm::connect("10.9.0.1:7471")?;
/// endpoint.post_recv(endpoint.reg_msgs([0; 64])?)?; // before the send, for the answer
/// endpoint.post_send(endpoint.reg_msgs(*b"hello")?)?;
/// endpoint.send_comp()?.ok()?;
/// println!("answer: {:?}", endpoint.recv_comp()?.received()?);
/// endpoint.disconnect()?;
/// # Ok::<(), verbs::Error>(())
/// ```
/// Requests have one type of payload. Buffers of its own and messages shared by several peers are
/// [`Either`](verbs::work::Either):
/// ```
/// # let _server = doctest::server();
/// use cm::{Endpoint, EndpointBuilder};
/// use verbs::{Buf, SharedBuf, work::Either};
///
/// let mut endpoint: Endpoint<Either<Buf, SharedBuf>> =
///     EndpointBuilder::new().connect_for("10.9.0.1:7471")?;
/// let shared = endpoint.reg_msgs(*b"to all")?.freeze();
/// endpoint.post_send(Either::Right(shared.clone()))?;
/// endpoint.post_send(Either::Left(endpoint.reg_msgs(*b"to one")?))?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "rdma_destroy_ep")]
#[derive(Debug)]
pub struct Endpoint<SW = Buf, RW = Buf, Q: QueueChoice = PrivateQueues> {
    connection: Connection<SW, RW>,
    peer: PeerParam,
    queues: Queues<Q>,
    link: Link,
    /// Retries of the queue pair for the last completion, if the retries were exhausted.
    attempts: Option<Attempts>,
    timeout: Option<Duration>,
}

/// Event state of the connection.
#[derive(Debug)]
struct Link {
    channel: EventChannel,
    ending: Ending,
}

impl<SW, RW, Q: QueueChoice> Endpoint<SW, RW, Q> {
    pub(crate) fn new(
        connection: Connection<SW, RW>,
        peer: PeerParam,
        queues: Queues<Q>,
        channel: EventChannel,
        timeout: Option<Duration>,
    ) -> Self {
        Self {
            connection,
            peer,
            queues,
            link: Link {
                channel,
                ending: Ending::open(),
            },
            attempts: None,
            timeout,
        }
    }

    /// Takes notice of an event of the end, read before the endpoint had its channel.
    pub(super) fn notice(&mut self, event: Event) -> Result<()> {
        self.link.ending.notice(event, &mut self.connection)
    }

    registration!();
    receiving!(connection.qp_mut());

    /// The identifier, with addresses, device and route.
    pub fn id(&self) -> &CmId<Connected> {
        self.connection.id()
    }

    /// Parameters and private data of the peer's request or answer.
    pub fn peer_param(&self) -> &PeerParam {
        &self.peer
    }

    /// The connection; its queue pair accepts all kinds of requests.
    pub fn connection_mut(&mut self) -> &mut Connection<SW, RW> {
        &mut self.connection
    }

    /// Sets the timeout of each call; `None` for no limit.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Posts a request with any options.
    ///
    /// # Errors
    /// The request is returned in the error; see [`post`](verbs::QueuePair::post).
    #[inline]
    pub fn post<R>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<verbs::Rc, Work = SW>,
    {
        self.connection.qp_mut().post(request)
    }

    /// `rdma_post_send`, `rdma_post_sendv`—Sends a message. Several buffers, in a vector or an array, are
    /// gathered into one message.
    ///
    /// # Errors
    /// The payload is returned in the error; see [`post`](verbs::QueuePair::post).
    #[doc(alias = "rdma_post_send")]
    #[doc(alias = "rdma_post_sendv")]
    pub fn post_send(&mut self, work: SW) -> Result<(), PostError<SW>>
    where
        SW: Gather,
    {
        let posted = self.post(op::Send::new(work));
        posted.map_err(|refused| refused.map(op::Send::into_work))
    }

    /// `rdma_post_read`, `rdma_post_readv`—Reads the peer's memory into `work`.
    ///
    /// # Errors
    /// The payload is returned in the error; see [`post`](verbs::QueuePair::post).
    #[doc(alias = "rdma_post_read")]
    #[doc(alias = "rdma_post_readv")]
    pub fn post_read(&mut self, work: SW, remote: RemoteToken) -> Result<(), PostError<SW>>
    where
        SW: Scatter,
    {
        let posted = self.post(op::Read::new(work, remote));
        posted.map_err(|refused| refused.map(op::Read::into_work))
    }

    /// `rdma_post_write`, `rdma_post_writev`—Writes `work` into the peer's memory.
    ///
    /// # Errors
    /// The payload is returned in the error; see [`post`](verbs::QueuePair::post).
    #[doc(alias = "rdma_post_write")]
    #[doc(alias = "rdma_post_writev")]
    pub fn post_write(&mut self, work: SW, remote: RemoteToken) -> Result<(), PostError<SW>>
    where
        SW: Gather,
    {
        let posted = self.post(op::Write::new(work, remote));
        posted.map_err(|refused| refused.map(op::Write::into_work))
    }

    /// `rdma_disconnect`—Ends the connection, and blocks until the peer has answered: by its own call, or by
    /// dropping its side; without a timeout at most 60 s. Requests in flight complete with the status
    /// [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR).
    ///
    /// # Errors
    /// - `TimedOut`: no answer before the timeout, or before the connection manager has given up. The connection has ended
    ///   nevertheless.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Result<()> {
        const CALL: &str = "rdma_disconnect";
        let timeout = self.timeout.unwrap_or(DISCONNECT_TIMEOUT);
        let deadline = Deadline::after(Some(timeout));
        self.link.attend(&mut self.connection)?;
        if self.link.ending.is_noticed() {
            return self.link.ending.answer(&mut self.connection);
        }
        self.connection.disconnect()?;
        loop {
            let event = match deadline.remaining() {
                None => Some(self.link.channel.wait()?),
                Some(remaining) => self.link.channel.wait_timeout(remaining)?,
            };
            match event {
                None => return Err(deadline.missed(CALL)),
                Some(Event::Disconnected { cause, .. }) => {
                    self.link.ending.set_over(cause.clone());
                    return disconnected(CALL, cause);
                }
                Some(Event::DeviceRemoval(_)) => {
                    let cause = ConnectFailure::DeviceRemoved;
                    self.link.ending.set_over(Some(cause));
                    return Ok(());
                }
                Some(_) => {}
            }
        }
    }

    /// Blocks until the connection has ended: the peer has disconnected, or the connection is lost;
    /// [`end_cause`](Self::end_cause) returns the cause. Returns at once after the end.
    ///
    /// The peer's disconnect is answered, unless sends are in flight; wait for their completions then, or drop the
    /// endpoint.
    ///
    /// # Errors
    /// - `TimedOut`: the connection is still open after the timeout.
    ///
    /// # Examples
    /// ```
    /// # let _server = doctest::server();
    /// let mut endpoint = cm::connect("10.9.0.1:7471")?;
    /// # endpoint.set_timeout(Some(std::time::Duration::from_millis(1)));
    /// # let ended =
    /// endpoint.wait_disconnected();
    /// # assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    /// match endpoint.end_cause() {
    ///     None => println!("the peer has disconnected"),
    ///     Some(cause) => println!("lost: {cause}"),
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    pub fn wait_disconnected(&mut self) -> Result<()> {
        const CALL: &str = "Endpoint::wait_disconnected";
        let deadline = Deadline::after(self.timeout);
        while !self.link.ending.is_noticed() {
            let event = match deadline.remaining() {
                None => Some(self.link.channel.wait()?),
                Some(remaining) => self.link.channel.wait_timeout(remaining)?,
            };
            let event = event.ok_or_else(|| deadline.missed(CALL))?;
            self.link.ending.notice(event, &mut self.connection)?;
        }
        self.link.ending.answer_if_idle(&mut self.connection)
    }

    /// Whether the end of the connection has been detected.
    pub fn is_disconnected(&self) -> bool {
        self.link.ending.is_noticed()
    }

    /// Why the connection has ended: `None` if it is open, as far as detected, or if either side has disconnected.
    pub fn end_cause(&self) -> Option<ConnectFailure> {
        self.link.ending.cause()
    }

    /// Everything that the endpoint has.
    #[cfg(feature = "tokio")]
    pub(crate) fn dismantle(
        self,
    ) -> (
        Connection<SW, RW>,
        PeerParam,
        Queues<Q>,
        EventChannel,
        Ending,
    ) {
        let Link { channel, ending } = self.link;
        (self.connection, self.peer, self.queues, channel, ending)
    }
}

impl<SW, RW> Endpoint<SW, RW> {
    /// `rdma_get_send_comp`—Blocks until a send, read or write has completed, and returns the payload.
    ///
    /// # Errors
    /// - `TimedOut`: no completion before the timeout.
    /// - `NotConnected`: the connection has ended, and no request is in flight.
    /// - The errors of [`poll`](CompletionQueue::poll).
    ///
    /// A failed request is not an error of this call, but a [`Completion`] with an error status.
    #[doc(alias = "rdma_get_send_comp")]
    pub fn send_comp(&mut self) -> Result<Completion<'_, SW>> {
        const CALL: &str = "rdma_get_send_comp";
        let deadline = Deadline::after(self.timeout);
        let in_flight = self.connection.qp().send_queue().in_flight();
        let queue = &mut self.queues.cqs.send;
        self.link
            .wait(CALL, queue, &mut self.connection, in_flight, deadline)?;
        match self.queues.cqs.send.poll()?.next() {
            Some(wc) => {
                self.attempts = self.connection.attempts(wc.status());
                match self.connection.qp_mut().complete(wc) {
                    Ok(Completed::Send(completion)) => {
                        Ok(completion.with_attempts(self.attempts.as_ref()))
                    }
                    _ => Err(unmatched_completion(CALL)),
                }
            }
            None => Err(deadline.missed(CALL)),
        }
    }

    /// `rdma_get_recv_comp`—Blocks until a message has arrived, and returns the memory.
    ///
    /// # Errors
    /// As for [`send_comp`](Self::send_comp).
    #[doc(alias = "rdma_get_recv_comp")]
    pub fn recv_comp(&mut self) -> Result<Completion<'_, RW>> {
        const CALL: &str = "rdma_get_recv_comp";
        let deadline = Deadline::after(self.timeout);
        let in_flight = self.connection.qp().receive_queue().in_flight();
        let queue = &mut self.queues.cqs.recv;
        self.link
            .wait(CALL, queue, &mut self.connection, in_flight, deadline)?;
        match self.queues.cqs.recv.poll()?.next() {
            Some(wc) => match self.connection.qp_mut().complete(wc) {
                Ok(Completed::Receive(completion)) => Ok(completion),
                _ => Err(unmatched_completion(CALL)),
            },
            None => Err(deadline.missed(CALL)),
        }
    }

    /// Splits the endpoint into the connection, the send and receive completion queues, and the event
    /// channel. Drop the connection first.
    pub fn into_parts(
        self,
    ) -> (
        Connection<SW, RW>,
        CompletionQueue,
        CompletionQueue,
        EventChannel,
    ) {
        let PrivateCqs { send, recv } = self.queues.cqs;
        (self.connection, send, recv, self.link.channel)
    }
}

/// An endpoint on the program's [completion queues](crate::EndpointBuilder::cqs). Polling the queues does not handle the end of
/// the connection: [`check_disconnected`](Self::check_disconnected) does.
impl<SW, RW> Endpoint<SW, RW, SharedQueues> {
    /// The identity of the queue pair in completions.
    pub fn qp_id(&self) -> QpId {
        self.connection.qp().id()
    }

    /// Sets the program's key for the endpoint, returned by [`QpId::key`] for its completions. For a key before the peer's first
    /// message, use [`Incoming::set_key`](crate::Incoming::set_key), or [`key`](crate::EndpointBuilder::key) to connect.
    pub fn set_key(&mut self, key: QpKey) {
        self.connection.qp_mut().set_key(key);
    }

    /// Returns the work completed by `wc`. Never blocks. The work of a shared receive queue is returned by
    /// [the queue](verbs::SharedReceiveQueue::complete). [`Connection::attempts`] explains exhausted retries.
    ///
    /// # Errors
    /// The completion belongs to another queue pair, or to the shared receive queue; the error returns the completion.
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completed<'p, SW, RW>, WorkCompletion<'p>> {
        self.connection.qp_mut().complete(wc)
    }

    /// Handles pending events of the connection, and returns whether it has ended; then [`end_cause`](Self::end_cause) returns the
    /// cause. Never blocks.
    ///
    /// The peer's disconnect is answered once no send is in flight, at latest by a call after a second. Call when the descriptor
    /// ([`AsFd`]) is readable, and after a failed completion. Receives of a shared queue do not complete at the end of a
    /// connection.
    ///
    /// # Errors
    /// The errors of [`EventChannel::try_next`].
    pub fn check_disconnected(&mut self) -> Result<bool> {
        self.link.attend(&mut self.connection)?;
        self.link.ending.answer_if_due(&mut self.connection)?;
        Ok(self.link.ending.is_noticed())
    }

    /// Splits the endpoint into the connection and the event channel. One channel for the events of all connections:
    /// [`Connection::migrate`].
    pub fn into_parts(self) -> (Connection<SW, RW>, EventChannel) {
        (self.connection, self.link.channel)
    }
}

/// Readable when an event of the connection is pending, for
/// [`check_disconnected`](Endpoint::check_disconnected). The descriptor is only for registration with an event loop.
impl<SW, RW> AsFd for Endpoint<SW, RW, SharedQueues> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.channel.as_fd()
    }
}

impl Link {
    /// Handles pending events of the connection manager.
    fn attend<SW, RW>(&mut self, connection: &mut Connection<SW, RW>) -> Result<()> {
        while let Some(event) = self.channel.try_next()? {
            self.ending.notice(event, connection)?;
        }
        Ok(())
    }

    /// Blocks until a queue has completions.
    fn wait<SW, RW>(
        &mut self,
        call: &'static str,
        queue: &mut CompletionQueue,
        connection: &mut Connection<SW, RW>,
        in_flight: usize,
        deadline: Deadline,
    ) -> Result<()> {
        while queue.poll_or_arm()?.is_none() {
            let next_check = self.ending.advance(call, connection, queue, in_flight)?;
            let remaining = deadline.remaining();
            let wait = next_check.into_iter().chain(remaining).min();
            let fds = [notify_fd(call, queue)?, self.channel.handle().event_fd()];
            let readable = wait_any_readable(call, fds, wait)?;
            if let [_, true] = readable {
                self.attend(connection)?;
            }
            if readable == [false; 2] && wait == remaining {
                // Poll once more: event and completion may have arrived at the same time.
                return match queue.poll_or_arm()? {
                    Some(_) => Ok(()),
                    None => Err(deadline.missed(call)),
                };
            }
        }
        Ok(())
    }
}
