//! Asynchronous endpoints.

use verbs::{
    Buf, Completed, ProtectionDomain, QueuePair, Result, Rts, WorkCompletion,
    cq::Attempts,
    error::PostError,
    op::SendRequest,
    qp::{Completion, QpId, QpKey},
    tokio as watched,
    work::Scatter,
};

use super::{
    EventChannel, First, at_most, first,
    halves::{self, RecvHalf, SendHalf},
    in_time,
};
use crate::{
    connection::Connection,
    endpoint::{
        DISCONNECT_TIMEOUT, Ending, PrivateCqs, PrivateQueues, QueueChoice, Queues, SharedQueues,
        disconnected, unmatched_completion,
    },
    event::{ConnectFailure, Event},
    id::CmId,
    param::PeerParam,
    phases::Connected,
};

/// An asynchronous [endpoint](crate::Endpoint).
///
/// While waiting, a task also handles a disconnect of the peer: then all requests in flight complete with the
/// status [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR).
///
/// Drop disconnects.
#[derive(Debug)]
pub struct Endpoint<SW = Buf, RW = Buf, Q: QueueChoice = PrivateQueues> {
    connection: Connection<SW, RW>,
    peer: PeerParam,
    cqs: Q::Watched,
    link: AsyncLink,
    /// Retries of the queue pair for the last completion, if the retries were exhausted.
    attempts: Option<Attempts>,
}

/// Event state of the connection.
#[derive(Debug)]
struct AsyncLink {
    channel: EventChannel,
    ending: Ending,
}

/// The private completion queues of an endpoint, registered with the runtime.
#[derive(Debug)]
pub struct WatchedCqs {
    send: watched::CompletionQueue,
    recv: watched::CompletionQueue,
}

impl WatchedCqs {
    pub(crate) fn new(cqs: PrivateCqs) -> Result<Self> {
        Ok(Self {
            send: watched::CompletionQueue::new(cqs.send)?,
            recv: watched::CompletionQueue::new(cqs.recv)?,
        })
    }
}

impl<SW, RW, Q: QueueChoice> Endpoint<SW, RW, Q> {
    /// Registers an endpoint with the runtime.
    ///
    /// # Errors
    /// Any error of `epoll_ctl(2)`. The endpoint is dropped then, which disconnects.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(endpoint: crate::Endpoint<SW, RW, Q>) -> Result<Self> {
        let (connection, peer, queues, channel, ending) = endpoint.dismantle();
        let channel = EventChannel::new(channel)?;
        Self::from_parts(connection, peer, queues, channel, ending)
    }

    pub(super) fn from_parts(
        connection: Connection<SW, RW>,
        peer: PeerParam,
        queues: Queues<Q>,
        channel: EventChannel,
        ending: Ending,
    ) -> Result<Self> {
        Ok(Self {
            connection,
            peer,
            cqs: Q::watch(queues.cqs)?,
            link: AsyncLink { channel, ending },
            attempts: None,
        })
    }

    /// The identifier, with addresses, device and route.
    pub fn id(&self) -> &CmId<Connected> {
        self.connection.id()
    }

    /// Parameters and private data of the peer's request or answer.
    pub fn peer_param(&self) -> &PeerParam {
        &self.peer
    }

    /// Protection domain of memory and queue pair.
    pub fn pd(&self) -> &ProtectionDomain {
        self.connection.qp().pd()
    }

    /// The queue pair, for posting requests.
    #[inline]
    pub fn qp_mut(&mut self) -> &mut QueuePair<verbs::Rc, Rts, SW, RW> {
        self.connection.qp_mut()
    }

    /// Posts a request with any options.
    ///
    /// # Errors
    /// The request is returned in the error; see [`post`](QueuePair::post).
    #[inline]
    pub fn post<R>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<verbs::Rc, Work = SW>,
    {
        self.qp_mut().post(request)
    }

    /// Posts memory for one message.
    ///
    /// # Errors
    /// The memory is returned in the error; see [`post_recv`](QueuePair::post_recv).
    #[inline]
    pub fn post_recv(&mut self, work: RW) -> Result<(), PostError<RW>>
    where
        RW: Scatter,
    {
        self.qp_mut().post_recv(work)
    }

    /// Ends the connection, and waits until the peer has answered, at most 60 s.
    ///
    /// Cancel safe: the first poll disconnects, and a later call continues to wait.
    ///
    /// # Errors
    /// - `TimedOut`: no answer in this time, or before the connection manager has given up. The connection has ended
    ///   nevertheless.
    /// - As for [`Connection::disconnect`].
    ///
    /// # Panics
    /// As for [`send_comp`](Self::send_comp).
    pub async fn disconnect(&mut self) -> Result<()> {
        const CALL: &str = "tokio::Endpoint::disconnect";
        let mut requested = false;
        while !self.link.ending.is_noticed() {
            if !requested {
                requested = true;
                match self.connection.disconnect() {
                    // The peer or an earlier call has disconnected: an event follows.
                    Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {}
                    other => other?,
                }
            }
            let event = in_time(CALL, DISCONNECT_TIMEOUT, self.link.channel.wait());
            match event.await? {
                Event::Disconnected { cause, .. } => {
                    self.link.ending.set_over(cause.clone());
                    return disconnected(CALL, cause);
                }
                Event::DeviceRemoval(_) => {
                    let cause = ConnectFailure::DeviceRemoved;
                    self.link.ending.set_over(Some(cause));
                }
                _ => {}
            }
        }
        self.link.ending.answer(&mut self.connection)
    }

    /// Waits until the connection has ended; see [`crate::Endpoint::wait_disconnected`].
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// The errors of [`EventChannel::wait`].
    pub async fn wait_disconnected(&mut self) -> Result<()> {
        while !self.link.ending.is_noticed() {
            let event = self.link.channel.wait().await?;
            self.link.ending.notice(event, &mut self.connection)?;
        }
        self.link.ending.answer_if_idle(&mut self.connection)
    }

    /// Whether the end of the connection has been detected.
    pub fn is_disconnected(&self) -> bool {
        self.link.ending.is_noticed()
    }

    /// Why the connection has ended; see [`crate::Endpoint::end_cause`].
    pub fn end_cause(&self) -> Option<ConnectFailure> {
        self.link.ending.cause()
    }
}

impl<SW, RW> Endpoint<SW, RW> {
    /// Splits the endpoint into halves, so that one task or two can wait for sends and receives at once. The
    /// connection ends when both halves are dropped.
    pub fn into_split(self) -> (SendHalf<SW, RW>, RecvHalf<SW, RW>) {
        let AsyncLink { channel, ending } = self.link;
        let queues = (self.cqs.send, self.cqs.recv);
        halves::split(self.connection, self.peer, queues, channel, ending)
    }

    /// Waits until a send, read or write has completed, and returns the payload.
    ///
    /// Cancel safe: no completion is lost.
    ///
    /// # Errors
    /// - `NotConnected`: the connection has ended, and no request is in flight.
    /// - The errors of [`poll`](verbs::CompletionQueue::poll).
    ///
    /// # Panics
    /// Outside of a runtime with time enabled.
    pub async fn send_comp(&mut self) -> Result<Completion<'_, SW>> {
        const CALL: &str = "tokio::Endpoint::send_comp";
        let in_flight = self.connection.qp().send_queue().in_flight();
        let queue = &mut self.cqs.send;
        self.link
            .wait(CALL, queue, &mut self.connection, in_flight)
            .await?;
        match self.cqs.send.get_mut().poll()?.next() {
            Some(wc) => {
                self.attempts = self.connection.attempts(wc.status());
                match self.connection.qp_mut().complete(wc) {
                    Ok(Completed::Send(completion)) => {
                        Ok(completion.with_attempts(self.attempts.as_ref()))
                    }
                    _ => Err(unmatched_completion(CALL)),
                }
            }
            // Unreachable: a completion is pending, and this is the only consumer.
            None => Err(unmatched_completion(CALL)),
        }
    }

    /// Waits until a message has arrived, and returns the memory.
    ///
    /// Cancel safe: no completion is lost.
    ///
    /// # Errors
    /// As for [`send_comp`](Self::send_comp).
    ///
    /// # Panics
    /// As for [`send_comp`](Self::send_comp).
    pub async fn recv_comp(&mut self) -> Result<Completion<'_, RW>> {
        const CALL: &str = "tokio::Endpoint::recv_comp";
        let in_flight = self.connection.qp().receive_queue().in_flight();
        let queue = &mut self.cqs.recv;
        self.link
            .wait(CALL, queue, &mut self.connection, in_flight)
            .await?;
        match self.cqs.recv.get_mut().poll()?.next() {
            Some(wc) => match self.connection.qp_mut().complete(wc) {
                Ok(Completed::Receive(completion)) => Ok(completion),
                _ => Err(unmatched_completion(CALL)),
            },
            // Unreachable: a completion is pending, and this is the only consumer.
            None => Err(unmatched_completion(CALL)),
        }
    }
}

/// An endpoint on the program's [completion queues](crate::EndpointBuilder::cqs), which a task of the program waits for, such as by
/// [`verbs::tokio::CompletionQueue`].
impl<SW, RW> Endpoint<SW, RW, SharedQueues> {
    /// The identity of the queue pair in completions.
    pub fn qp_id(&self) -> QpId {
        self.connection.qp().id()
    }

    /// Sets the program's key for the endpoint; see [`crate::Endpoint::set_key`].
    pub fn set_key(&mut self, key: QpKey) {
        self.connection.qp_mut().set_key(key);
    }

    /// Returns the work completed by `wc`; see [`crate::Endpoint::complete`].
    ///
    /// # Errors
    /// As for [`crate::Endpoint::complete`].
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completed<'p, SW, RW>, WorkCompletion<'p>> {
        self.connection.qp_mut().complete(wc)
    }
}

impl AsyncLink {
    /// Waits until a queue has completions.
    async fn wait<SW, RW>(
        &mut self,
        call: &'static str,
        queue: &mut watched::CompletionQueue,
        connection: &mut Connection<SW, RW>,
        in_flight: usize,
    ) -> Result<()> {
        loop {
            let cq = queue.get_mut();
            let next_check = self.ending.advance(call, connection, cq, in_flight)?;
            let completed = async { queue.wait().await.map(drop) };
            let next = first(completed, self.channel.wait());
            let Some(next) = at_most(next_check, next).await else {
                continue;
            };
            match next {
                First::A(completed) => return completed,
                First::B(event) => self.ending.notice(event?, connection)?,
            }
        }
    }
}
