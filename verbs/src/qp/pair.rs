//! Queue pairs.

use std::{fmt, marker::PhantomData, sync::Arc};

use ibverbs_sys as ffi;

use super::{
    attributes::Attributes,
    batch::Batch,
    completion::Completion,
    modify,
    query::{self, QpAttr},
    queues::{Inner, ReceiveQueue, SendQueue},
    state::{CanPostReceive, CanPostSend, Init, Reset, Rtr, Rts, Sqd, State},
    transport::Transport,
};
use crate::{
    bounded::QpNum,
    completion_counter::CompletionCounter,
    cq::WorkCompletion,
    error::{Error, PostError, Refused, Result},
    mr::Buf,
    op::SendRequest,
    pd::ProtectionDomain,
    work::Scatter,
    wr_id::QpId,
};

/// `ibv_qp`—A queue pair of transport `T` in state `S`.
///
/// `SW` is the type of the work in flight on the send queue, and `RW` on the receive queue: anything
/// made of registered memory, alone or [`With`](crate::work::With) a context of the caller.
///
/// Dropping a queue pair ends the device's access, and then drops the work in flight. A queue pair
/// keeps its protection domain and its completion queues alive. Forgetting one leaks memory, and
/// frees none.
///
/// | to | call |
/// |---|---|
/// | bring it up | [`to_init`](Self::to_init), [`to_rtr`](QueuePair::to_rtr), [`to_rts`](QueuePair::to_rts), with [`Attributes`]; or the crate `cm` |
/// | receive | [`post_recv`](Self::post_recv), [`recv_batch`](Self::recv_batch) |
/// | send, read, write | [`post`](Self::post), [`batch`](Self::batch), [`extended_batch`](Self::extended_batch), with the requests of [`op`](crate::op) |
/// | take the work back | [`complete`](Self::complete), [`complete_each`](Self::complete_each) |
/// | send in one thread and receive in another | [`split`](QueuePair::split) |
/// | change attributes, ask for them | [`modify`](Self::modify), [`to_sqd`](QueuePair::to_sqd), [`query`](Self::query) |
/// | explain a failed request | [`explain`](Self::explain) |
/// | end its traffic from another thread | [`handle`](Self::handle) |
/// | end it | [`to_error`](Self::to_error), [`drain`](Self::drain), [`destroy`](Self::destroy), [`to_reset`](Self::to_reset) |
///
/// # Examples
/// A message, and its answer:
/// ```
/// # let (_peer, mut qp, mut cq) = doctest::connected();
/// use verbs::{Completed, op};
///
/// qp.post_recv(qp.pd().alloc_buf(1024)?)?;
/// qp.post(op::Send::new(qp.pd().register_buf(*b"ping")?))?;
/// while qp.send_queue().in_flight() + qp.receive_queue().in_flight() > 0 {
///     for wc in cq.wait(None)? {
///         match qp.complete(wc).expect("there is no other queue pair") {
///             Completed::Send(done) => drop(done.into_work()?),
///             Completed::Receive(done) => println!("answer: {:?}", done.received()?),
///         }
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_create_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html)
#[doc(alias = "ibv_qp")]
pub struct QueuePair<T, S, SW = Buf, RW = Buf> {
    // INVARIANT: the two halves of one queue pair.
    send: SendQueue<T, SW, RW>,
    receive: ReceiveQueue<T, SW, RW>,
    state: PhantomData<S>,
}

/// Work returned by a completion: of the send queue, or of the receive queue.
#[derive(Debug)]
#[must_use = "it may report a failure"]
pub enum Completed<'p, SW, RW> {
    /// A request of [`QueuePair::post`].
    Send(Completion<'p, SW>),
    /// A receive of [`QueuePair::post_recv`].
    Receive(Completion<'p, RW>),
}

impl<T, S, SW, RW> QueuePair<T, S, SW, RW> {
    /// # Safety
    /// - `inner` is of transport `T`, in state `S`, and has no other owner.
    pub(super) unsafe fn from_inner(inner: Arc<Inner<SW, RW>>) -> Self {
        Self {
            send: SendQueue {
                inner: Arc::clone(&inner),
                transport: PhantomData,
            },
            receive: ReceiveQueue {
                inner,
                transport: PhantomData,
            },
            state: PhantomData,
        }
    }

    pub(super) fn inner(&self) -> &Arc<Inner<SW, RW>> {
        &self.receive.inner
    }

    pub(super) fn into_inner(self) -> Arc<Inner<SW, RW>> {
        self.receive.inner
    }

    /// The same queue pair, after a transition to another state.
    pub(super) fn with_state<To>(self) -> QueuePair<T, To, SW, RW> {
        QueuePair {
            send: self.send,
            receive: self.receive,
            state: PhantomData,
        }
    }

    pub(super) fn halves_mut(
        &mut self,
    ) -> (&mut SendQueue<T, SW, RW>, &mut ReceiveQueue<T, SW, RW>) {
        (&mut self.send, &mut self.receive)
    }
}

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// The name of this queue pair in this process, carried by its completions. A
    /// [reset](Self::to_reset) assigns another one.
    pub fn id(&self) -> QpId {
        self.send.id()
    }

    /// The number used by the device and the peer for this queue pair.
    pub fn qp_num(&self) -> QpNum {
        self.send.inner.qp_num()
    }

    /// The protection domain of the queue pair.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.send.inner.pd
    }

    /// The send queue.
    pub fn send_queue(&self) -> &SendQueue<T, SW, RW> {
        &self.send
    }

    /// The receive queue.
    pub fn receive_queue(&self) -> &ReceiveQueue<T, SW, RW> {
        &self.receive
    }

    /// Keeps a counter until the queue pair has been destroyed.
    pub(crate) fn keep(&self, counter: CompletionCounter) {
        self.receive.inner.attached.keep(counter);
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_qp {
        self.send.inner.raw.as_ptr()
    }

    /// Returns the work completed by `wc`, from either queue.
    ///
    /// # Errors
    /// The completion belongs to another queue pair, or is stale; the error returns the completion.
    #[inline(always)]
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completed<'p, SW, RW>, WorkCompletion<'p>> {
        let (sending, receiving) = self.send.inner.cells();
        // SAFETY: both halves are this queue pair's (invariant), and `&mut self` excludes every other
        // borrow of the cell.
        let sending = unsafe { &mut *sending };
        // The usual case; the identifier includes the queue.
        if let Some(work) = sending.in_flight.take_next(wc.wr_id()) {
            sending.recorder.completed(&wc);
            return Ok(Completed::Send(Completion::new(work, wc)));
        }
        // SAFETY: as above.
        let receiving = unsafe { &mut *receiving };
        if let Some(work) = receiving.in_flight.take_next(wc.wr_id()) {
            receiving.recorder.completed(&wc);
            return Ok(Completed::Receive(Completion::new(work, wc)));
        }
        if wc.is_receive() {
            self.receive.complete_later(wc).map(Completed::Receive)
        } else {
            self.send.complete_later(wc).map(Completed::Send)
        }
    }

    /// Returns the work of the send queue completed by `wc`. Before, passes each unsignaled work
    /// posted earlier to `earlier`; see [`SendQueue::complete_each`].
    ///
    /// # Errors
    /// As for [`SendQueue::complete`].
    #[inline(always)]
    pub fn complete_each<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
        earlier: impl FnMut(SW),
    ) -> Result<Completion<'p, SW>, WorkCompletion<'p>> {
        self.send.complete_each(wc, earlier)
    }

    /// `ibv_modify_qp(qp, IBV_QPS_ERR)`—Puts the queue pair into the error state: work in flight
    /// and work posted later returns with the status
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// Soft-RoCE since Linux 6.4 may complete the message that is being received at this moment once
    /// for each posted receive, with success; so may a failure of the queue pair. A protocol has to
    /// recognize a message that it has received before, as by a sequence number. There, a receive that is posted later returns at
    /// the next call of this function only, or when the queue pair is destroyed.
    ///
    /// # Errors
    /// The device refused, or is gone.
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_error(&mut self) -> Result<()> {
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE;
        self.modify_raw(attr, mask.0, "ERR")
    }

    /// `ibv_modify_qp`—Changes attributes without leaving the state.
    ///
    /// From [`Rts`], also resumes a queue pair of an unreliable transport after a
    /// [failure](crate::qp::QpState::SQE) of its send queue.
    ///
    /// # Errors
    /// - `EINVAL`: an attribute is wrong, or cannot be changed in this state.
    ///
    /// # Examples
    /// ```
    /// # use verbs::{RemoteAccess, Rts, qp::Attributes};
    /// # let (_peer, mut qp, _cq) = doctest::connected();
    /// qp.modify(&Attributes::<verbs::Rc, Rts>::unchanged().access(RemoteAccess::READ))?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attributes: &Attributes<T, S>) -> Result<()> {
        let (attr, mask) = attributes.as_raw();
        self.modify_raw(*attr, mask, S::NAME)
    }

    fn transition<To: State>(
        mut self,
        attributes: &Attributes<T, To>,
    ) -> Result<QueuePair<T, To, SW, RW>, Refused<Self>> {
        let (attr, mask) = attributes.as_raw();
        let complete = modify::check_target(self.send.inner.pd.context(), mask, To::NAME);
        match complete.and_then(|()| self.modify_raw(*attr, mask, To::NAME)) {
            Ok(()) => Ok(self.with_state()),
            Err(error) => Err(Refused { value: self, error }),
        }
    }

    pub(super) fn modify_raw(
        &mut self,
        attr: ffi::ibv_qp_attr,
        mask: u32,
        to: &'static str,
    ) -> Result<()> {
        let before = self.qp_num();
        // SAFETY: the queue pair exists for as long as `self` lives.
        unsafe { modify::modify::<T, S>(self.pd().context(), self.as_raw(), attr, mask, to) }?;
        self.inner().rename_receiver(before, self.id());
        if mask & ffi::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC.0 != 0 {
            self.send.sending_mut().limits.max_rd_atomic = attr.max_rd_atomic;
        }
        Ok(())
    }
}

impl<T: Transport, SW, RW> QueuePair<T, Reset, SW, RW> {
    /// `ibv_modify_qp`—Brings the queue pair to [`Init`], where receives can be posted.
    ///
    /// # Errors
    /// - `EINVAL`: an attribute is missing, or wrong.
    ///
    /// The error returns the queue pair, unchanged.
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_init(
        self,
        attributes: &Attributes<T, Init>,
    ) -> Result<QueuePair<T, Init, SW, RW>, Refused<Self>> {
        self.transition(attributes)
    }
}

impl<T: Transport, SW, RW> QueuePair<T, Init, SW, RW> {
    /// `ibv_modify_qp`—Brings the queue pair to [`Rtr`], ready to receive.
    ///
    /// # Errors
    /// As for [`to_init`](QueuePair::to_init), and `ETIMEDOUT`, `EHOSTUNREACH`: the peer's address
    /// does not resolve.
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_rtr(
        self,
        attributes: &Attributes<T, Rtr>,
    ) -> Result<QueuePair<T, Rtr, SW, RW>, Refused<Self>> {
        self.transition(attributes)
    }
}

impl<T: Transport, SW, RW> QueuePair<T, Rtr, SW, RW> {
    /// `ibv_modify_qp`—Brings the queue pair to [`Rts`], ready to send.
    ///
    /// # Errors
    /// As for [`to_init`](QueuePair::to_init).
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_rts(
        self,
        attributes: &Attributes<T, Rts>,
    ) -> Result<QueuePair<T, Rts, SW, RW>, Refused<Self>> {
        self.transition(attributes)
    }
}

impl<T: Transport, SW, RW> QueuePair<T, Rts, SW, RW> {
    /// `ibv_modify_qp(qp, IBV_QPS_SQD)`—Stops the send queue: requests in progress are finished,
    /// and later ones wait.
    ///
    /// The queue is drained after the event [`SQ_DRAINED`](crate::event::EventType::SQ_DRAINED), if
    /// [requested](Attributes::notify_when_drained), and once [`query`](Self::query) no longer
    /// reports [draining](crate::qp::QpAttr::sq_draining).
    ///
    /// # Errors
    /// - `EINVAL`, `EOPNOTSUPP`: the device does not support this state.
    ///
    /// The error returns the queue pair, unchanged.
    ///
    /// # Examples
    /// Changing the path to the peer:
    /// ```
    /// # use verbs::{Rts, qp::{Attributes, Sqd}};
    /// # let (peer, qp, _cq) = doctest::connected();
    /// # let vector = &peer.path();
    /// let mut qp = qp.to_sqd(&Attributes::<verbs::Rc, Sqd>::new().notify_when_drained())?;
    /// // Wait for the event, and then:
    /// qp.modify(&Attributes::<verbs::Rc, Sqd>::unchanged().path(vector))?;
    /// let qp = qp.to_rts(&Attributes::<verbs::Rc, Rts>::unchanged())?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_sqd(
        self,
        attributes: &Attributes<T, Sqd>,
    ) -> Result<QueuePair<T, Sqd, SW, RW>, Refused<Self>> {
        self.transition(attributes)
    }
}

impl<T: Transport, SW, RW> QueuePair<T, Sqd, SW, RW> {
    /// `ibv_modify_qp`—Resumes the send queue, in [`Rts`].
    ///
    /// # Errors
    /// - `EINVAL`: an attribute is wrong, or too many.
    ///
    /// The error returns the queue pair, unchanged.
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_rts(
        self,
        attributes: &Attributes<T, Rts>,
    ) -> Result<QueuePair<T, Rts, SW, RW>, Refused<Self>> {
        self.transition(attributes)
    }
}

impl<T: Transport, S: CanPostSend, SW, RW> QueuePair<T, S, SW, RW> {
    /// `ibv_post_send`—Posts a request; see [`SendQueue::post`].
    ///
    /// # Errors
    /// As for [`SendQueue::post`].
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post<R>(&mut self, request: R) -> Result<(), PostError<R>>
    where
        R: SendRequest<T, Work = SW>,
    {
        self.send.post(request)
    }

    /// Takes the error of a failed doorbell; see [`SendQueue::take_doorbell_error`].
    pub fn take_doorbell_error(&mut self) -> Option<Error> {
        self.send.take_doorbell_error()
    }

    /// Begins a batch of requests, to be posted with one doorbell.
    pub fn batch(&mut self) -> Batch<'_, T, SW, RW> {
        self.send.batch()
    }
}

impl<T: Transport, S: CanPostReceive, SW, RW: Scatter> QueuePair<T, S, SW, RW> {
    /// `ibv_post_recv`—Posts memory for one message; see [`ReceiveQueue::post`].
    ///
    /// # Errors
    /// As for [`ReceiveQueue::post`].
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post_recv(&mut self, work: RW) -> Result<(), PostError<RW>> {
        self.receive.post(work)
    }
}

macro_rules! ending_both {
    ($($half:ident)*) => {$(
        impl<T: Transport, SW, RW> $half<T, SW, RW> {
            /// `ibv_modify_qp(qp, IBV_QPS_ERR)`—Puts the whole queue pair into the error state; see
            /// [`QueuePair::to_error`]. The work in flight on the other queue returns, too.
            ///
            /// # Errors
            /// The device refused, or is gone.
            #[doc(alias = "ibv_modify_qp")]
            pub fn to_error(&mut self) -> Result<()> {
                let mut attr = ffi::ibv_qp_attr::zeroed();
                attr.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
                let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE;
                let (ctx, qp) = (self.inner.pd.context(), self.inner.raw.as_ptr());
                // SAFETY: the queue pair exists for as long as `self` lives.
                unsafe { modify::modify::<T, Rts>(ctx, qp, attr, mask.0, "ERR") }
            }

            /// `ibv_query_qp`—Queries the attributes of the queue pair; see [`QueuePair::query`].
            ///
            /// # Errors
            /// As for [`QueuePair::query`].
            #[doc(alias = "ibv_query_qp")]
            pub fn query(&self) -> Result<QpAttr> {
                // SAFETY: the queue pair exists for as long as `self` lives.
                unsafe { query::query(self.inner.raw.as_ptr()) }
            }

            /// The protection domain of the queue pair.
            pub fn pd(&self) -> &ProtectionDomain {
                &self.inner.pd
            }
        }
    )*};
}

ending_both! { SendQueue ReceiveQueue }

impl<T, SW, RW> QueuePair<T, Rts, SW, RW> {
    /// Splits the queue pair, for sending in one thread and receiving in another.
    pub fn split(self) -> (SendQueue<T, SW, RW>, ReceiveQueue<T, SW, RW>) {
        (self.send, self.receive)
    }
}

impl<T: Transport, S: State, SW, RW> fmt::Debug for QueuePair<T, S, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("transport", &T::NAME)
            .field("state", &S::NAME)
            .field("qp_num", &self.qp_num())
            .field("sends_in_flight", &self.send.in_flight())
            .field("receives_in_flight", &self.receive.in_flight())
            .finish_non_exhaustive()
    }
}

impl<SW, RW> Completed<'_, SW, RW> {
    /// The status of the request.
    ///
    /// # Errors
    /// The request failed.
    pub fn ok(&self) -> Result<(), crate::cq::WcError> {
        match self {
            Self::Send(completion) => completion.ok(),
            Self::Receive(completion) => completion.ok(),
        }
    }
}
