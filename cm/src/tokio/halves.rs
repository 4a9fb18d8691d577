//! The two halves of an endpoint, for tasks of their own.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ::tokio::sync::Notify;
use verbs::{
    Buf, ProtectionDomain, Result, WorkCompletion,
    cq::Attempts,
    error::PostError,
    op::SendRequest,
    qp::{Completion, ReceiveQueue, SendQueue},
    tokio as watched,
    work::Scatter,
};

use super::{EventChannel, First, at_most, first, in_time};
use crate::{
    connection::{self, Connection},
    endpoint::{Closing, DISCONNECT_TIMEOUT, Ending, disconnected, unmatched_completion},
    event::{ConnectFailure, Event},
    id::CmId,
    param::PeerParam,
    phases::Connected,
};

/// State shared by the two halves.
#[derive(Debug)]
struct HalvesShared {
    id: CmId<Connected>,
    peer: PeerParam,
    channel: EventChannel,
    ending: Mutex<Ending>,
    /// Wakes the other half once one half has noticed the end.
    noticed: Notify,
    /// Number of requests in the send queue, for the receiving half.
    sends: AtomicUsize,
}

/// The half of an [endpoint](super::Endpoint) that sends, reads and writes; see
/// [`Endpoint::into_split`](super::Endpoint::into_split).
///
/// # Examples
/// ```
/// # #[tokio::main]
/// # async fn main() -> verbs::Result<()> {
/// # let _server = doctest::server();
/// # let endpoint = cm::tokio::connect("10.9.0.1:7471".parse().unwrap()).await?;
/// use verbs::op;
///
/// let (mut sender, mut receiver) = endpoint.into_split();
/// receiver.post_recv(receiver.pd().alloc_buf(64)?)?;
/// sender.post(op::Send::new(sender.pd().register_buf(*b"hello")?))?;
/// let (sent, received) = tokio::join!(sender.send_comp(), receiver.recv_comp());
/// sent?.into_work()?;
/// println!("{:?}", received?.received()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SendHalf<SW = Buf, RW = Buf> {
    // Destroyed before the identifier.
    queue: SendQueue<verbs::Rc, SW, RW>,
    cq: watched::CompletionQueue,
    shared: Arc<HalvesShared>,
    /// Retries of the queue pair for the last completion, if the retries were exhausted.
    attempts: Option<Attempts>,
}

/// The half of an [endpoint](super::Endpoint) that receives; see
/// [`Endpoint::into_split`](super::Endpoint::into_split).
#[derive(Debug)]
pub struct RecvHalf<SW = Buf, RW = Buf> {
    // Destroyed before the identifier.
    queue: ReceiveQueue<verbs::Rc, SW, RW>,
    cq: watched::CompletionQueue,
    shared: Arc<HalvesShared>,
}

pub(super) fn split<SW, RW>(
    connection: Connection<SW, RW>,
    peer: PeerParam,
    (send_cq, recv_cq): (watched::CompletionQueue, watched::CompletionQueue),
    channel: EventChannel,
    ending: Ending,
) -> (SendHalf<SW, RW>, RecvHalf<SW, RW>) {
    let (qp, id) = connection.into_parts();
    let (sends, receives) = qp.split();
    let shared = Arc::new(HalvesShared {
        id,
        peer,
        channel,
        ending: Mutex::new(ending),
        noticed: Notify::new(),
        sends: AtomicUsize::new(sends.in_flight()),
    });
    let sender = SendHalf {
        queue: sends,
        cq: send_cq,
        shared: Arc::clone(&shared),
        attempts: None,
    };
    let receiver = RecvHalf {
        queue: receives,
        cq: recv_cq,
        shared,
    };
    (sender, receiver)
}

/// One half, as a connection to end.
struct Half<'a, Q> {
    queue: &'a mut Q,
    shared: &'a HalvesShared,
}

macro_rules! closing {
    ($($queue:ident)*) => {$(
        impl<SW, RW> Closing for Half<'_, $queue<verbs::Rc, SW, RW>> {
            fn sends_in_flight(&self) -> usize {
                self.shared.sends.load(Relaxed)
            }

            fn is_iwarp(&self) -> bool {
                self.queue.pd().context().is_iwarp()
            }

            fn to_error(&mut self) -> Result<()> {
                self.queue.to_error()
            }

            fn disconnect(&mut self) -> Result<()> {
                let iwarp = self.is_iwarp();
                connection::disconnect(&self.shared.id, iwarp, || self.queue.to_error())
            }
        }
    )*};
}

closing! { SendQueue ReceiveQueue }

macro_rules! both {
    ($($half:ident)*) => {$(
        impl<SW, RW> $half<SW, RW> {
            /// The identifier, with addresses, device and route.
            pub fn id(&self) -> &CmId<Connected> {
                &self.shared.id
            }

            /// The peer's connection parameters and private data.
            pub fn peer_param(&self) -> &PeerParam {
                &self.shared.peer
            }

            /// The protection domain of the queue pair.
            pub fn pd(&self) -> &ProtectionDomain {
                self.queue.pd()
            }

            /// Whether the end of the connection has been detected.
            pub fn is_disconnected(&self) -> bool {
                self.shared.ending().is_noticed()
            }

            /// Why the connection has ended; see [`crate::Endpoint::end_cause`].
            pub fn end_cause(&self) -> Option<ConnectFailure> {
                self.shared.ending().cause()
            }

            /// Waits until the connection has ended; see [`crate::Endpoint::wait_disconnected`].
            ///
            /// Cancel safe.
            ///
            /// # Errors
            /// As for [`Endpoint::wait_disconnected`](super::Endpoint::wait_disconnected).
            pub async fn wait_disconnected(&mut self) -> Result<()> {
                let Self { queue, shared, .. } = self;
                shared.wait_disconnected(Half { queue, shared }).await
            }

            /// Ends the connection in both directions, and waits until the peer has answered, at most 60 s. Requests in flight
            /// complete with the status [`WR_FLUSH_ERR`](verbs::WcStatus::WR_FLUSH_ERR), on both halves.
            ///
            /// Cancel safe, as [`Endpoint::disconnect`](super::Endpoint::disconnect).
            ///
            /// # Errors
            /// As for [`Endpoint::disconnect`](super::Endpoint::disconnect).
            ///
            /// # Panics
            /// Outside of a runtime with time enabled.
            pub async fn disconnect(&mut self) -> Result<()> {
                let Self { queue, shared, .. } = self;
                shared.disconnect(Half { queue, shared }).await
            }
        }
    )*};
}

both! { SendHalf RecvHalf }

impl<SW, RW> SendHalf<SW, RW> {
    /// Posts a request with any options.
    ///
    /// # Errors
    /// The request is returned in the error; see [`post`](verbs::QueuePair::post).
    #[inline]
    pub fn post<R>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<verbs::Rc, Work = SW>,
    {
        let posted = self.queue.post(request);
        self.shared.sends.store(self.queue.in_flight(), Relaxed);
        posted
    }

    /// Waits until a send, read or write has completed, and returns the payload.
    ///
    /// Cancel safe: no completion is lost.
    ///
    /// # Errors
    /// As for [`Endpoint::send_comp`](super::Endpoint::send_comp).
    ///
    /// # Panics
    /// Outside of a runtime with time enabled.
    pub async fn send_comp(&mut self) -> Result<Completion<'_, SW>> {
        const CALL: &str = "tokio::SendHalf::send_comp";
        let Self {
            queue, cq, shared, ..
        } = self;
        let in_flight = queue.in_flight();
        let wc = shared.next(CALL, cq, queue, in_flight).await?;
        self.attempts = connection::attempts(wc.status(), || queue.query(), &shared.id);
        let completed = queue.complete(wc).map_err(|_| unmatched_completion(CALL))?;
        shared.sends.store(queue.in_flight(), Relaxed);
        Ok(completed.with_attempts(self.attempts.as_ref()))
    }
}

impl<SW, RW> RecvHalf<SW, RW> {
    /// Posts memory for one message.
    ///
    /// # Errors
    /// The memory is returned in the error; see [`post_recv`](verbs::QueuePair::post_recv).
    #[inline]
    pub fn post_recv(&mut self, work: RW) -> Result<(), PostError<RW>>
    where
        RW: Scatter,
    {
        self.queue.post(work)
    }

    /// Waits until a message has arrived, and returns the memory.
    ///
    /// Cancel safe: no completion is lost.
    ///
    /// # Errors
    /// As for [`Endpoint::recv_comp`](super::Endpoint::recv_comp).
    ///
    /// # Panics
    /// Outside of a runtime with time enabled.
    pub async fn recv_comp(&mut self) -> Result<Completion<'_, RW>> {
        const CALL: &str = "tokio::RecvHalf::recv_comp";
        let Self { queue, cq, shared } = self;
        let in_flight = queue.in_flight();
        let wc = shared.next(CALL, cq, queue, in_flight).await?;
        queue.complete(wc).map_err(|_| unmatched_completion(CALL))
    }
}

impl HalvesShared {
    fn ending(&self) -> MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `cq` has completions, and takes the next one.
    async fn next<'c, Q>(
        &self,
        call: &'static str,
        cq: &'c mut watched::CompletionQueue,
        queue: &mut Q,
        in_flight: usize,
    ) -> Result<WorkCompletion<'c>>
    where
        for<'a> Half<'a, Q>: Closing,
    {
        let shared = self;
        self.wait(call, cq, Half { queue, shared }, in_flight)
            .await?;
        // An error is unreachable: a completion is pending, and this is the only consumer.
        cq.get_mut()
            .poll()?
            .next()
            .ok_or_else(|| unmatched_completion(call))
    }

    /// Waits until a queue has completions.
    async fn wait(
        &self,
        call: &'static str,
        queue: &mut watched::CompletionQueue,
        mut half: impl Closing,
        in_flight: usize,
    ) -> Result<()> {
        loop {
            // Enabled before the end is checked, so that no notification of the other half is missed.
            let mut noticed = pin!(self.noticed.notified());
            noticed.as_mut().enable();
            let cq = queue.get_mut();
            let next_check = self.ending().advance(call, &mut half, cq, in_flight)?;
            let completed = async { queue.wait().await.map(drop) };
            let next = first(completed, first(self.channel.wait(), noticed));
            let Some(next) = at_most(next_check, next).await else {
                continue;
            };
            match next {
                First::A(completed) => return completed,
                First::B(First::A(event)) => {
                    self.ending().notice(event?, &mut half)?;
                    self.noticed.notify_waiters();
                }
                First::B(First::B(())) => {}
            }
        }
    }

    async fn wait_disconnected(&self, mut half: impl Closing) -> Result<()> {
        loop {
            let mut noticed = pin!(self.noticed.notified());
            noticed.as_mut().enable();
            if self.ending().is_noticed() {
                return self.ending().answer_if_idle(&mut half);
            }
            if let First::A(event) = first(self.channel.wait(), noticed).await {
                self.ending().notice(event?, &mut half)?;
                self.noticed.notify_waiters();
            }
        }
    }

    async fn disconnect(&self, mut half: impl Closing) -> Result<()> {
        const CALL: &str = "tokio::Endpoint::disconnect";
        let mut requested = false;
        loop {
            let mut noticed = pin!(self.noticed.notified());
            noticed.as_mut().enable();
            if self.ending().is_noticed() {
                return self.ending().answer(&mut half);
            }
            if !requested {
                requested = true;
                match half.disconnect() {
                    // The peer or an earlier call has disconnected: an event follows.
                    Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {}
                    other => other?,
                }
            }
            let next = async { Ok(first(self.channel.wait(), noticed).await) };
            let First::A(event) = in_time(CALL, DISCONNECT_TIMEOUT, next).await? else {
                continue;
            };
            let cause = match event? {
                Event::Disconnected { cause, .. } => cause,
                Event::DeviceRemoval(_) => Some(ConnectFailure::DeviceRemoved),
                _ => continue,
            };
            self.ending().set_over(cause.clone());
            self.noticed.notify_waiters();
            disconnected(CALL, cause)?;
        }
    }
}
