//! Batches of requests posted by `ibv_wr_*`.

use std::{
    fmt, io,
    mem::{self, ManuallyDrop},
};

use ibverbs_sys as ffi;

use super::{
    bind::UnpostedBind,
    extended::WrTable,
    inflight::Cursor,
    pair::QueuePair,
    queues::{SendQueue, Sending},
    refusal,
    state::CanPostSend,
    transport::Transport,
};
use crate::{
    bad_wr::{self, Effect, QueueKind},
    doorbell::ring_again,
    error::{Error, Refused, Result},
    op::{Deferred, ExtendedRequest, Parts, Recording, SendOps, Vendor, VendorRequest},
    quirk::FailedPosts,
    work::SgeList,
};

/// Requests written directly into the device's send queue, and posted together.
///
/// The extended API of posting, for queue pairs created with
/// [`send_ops`](crate::qp::QueuePairBuilder::send_ops). The requests are those of
/// [`op`](crate::op), the completions are the same, and both APIs can be used alternately. Differences
/// from a [`Batch`](crate::qp::Batch): inline data are copied when added, some operations exist
/// only here, and a failure names no request.
///
/// The requests are kept as data until the batch is posted, and only then the device's lock on the
/// send queue is taken. While the batch is open, any other call is allowed, from any thread.
/// Dropping a batch posts nothing, and drops the work; [`abort`](Self::abort) returns the work. A
/// forgotten batch (`mem::forget`) posts nothing, and leaks the work.
///
/// # Examples
/// ```
/// # let peer = doctest::peer();
/// # let connect = |qp| peer.connect(qp);
/// # let ctx = verbs::devices()?.first()?.open()?;
/// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(16)?);
/// # let (header, body, token) = (pd.alloc_buf(8)?, pd.alloc_buf(64)?, peer.token());
/// use verbs::op::{self, SendOps};
/// let ops = SendOps::SEND | SendOps::RDMA_WRITE;
/// let qp = pd.qp_builder::<verbs::Rc>(cq, cq).max_send_wr(2).send_ops(ops).create()?;
/// let mut qp = connect(qp);
/// let mut batch = qp.extended_batch()?;
/// batch.push(op::Write::new(body, token).unsignaled())?;
/// batch.push(op::Send::new(header))?;
/// batch.post()?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_wr_post(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
#[must_use = "dropping a batch posts nothing"]
#[doc(alias = "ibv_qp_to_qp_ex")]
#[doc(alias = "ibv_wr_set_sge")]
#[doc(alias = "ibv_wr_set_sge_list")]
pub struct ExtendedBatch<'q, T: Transport, SW, RW> {
    pub(super) queue: &'q mut SendQueue<T, SW, RW>,
    // INVARIANT: the queue's table.
    table: WrTable,
    // INVARIANT: the requests of the works before the cursor, if there are any.
    deferred: Option<Box<Deferred>>,
    // INVARIANT: lent by the ring of `queue`, unchanged since.
    cursor: Cursor<SW>,
    /// Number of requests since the last signaled one.
    unsignaled: u32,
    /// The windows bound by the batch.
    // INVARIANT: the windows in `deferred`.
    pub(super) bindings: Vec<UnpostedBind<'q>>,
}

/// The flags of an admitted request, and the number of unsignaled requests after this one.
pub(super) struct Admitted {
    flags: ffi::ibv_send_flags,
    unsignaled: u32,
}

impl<T: Transport, SW, RW> SendQueue<T, SW, RW> {
    /// Begins a batch of requests, written into the device's send queue when posted.
    ///
    /// # Errors
    /// - `Unsupported`: the queue pair was not made with
    ///   [`send_ops`](crate::qp::QueuePairBuilder::send_ops).
    ///
    /// # References
    /// [ibv_wr_start(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn extended_batch(&mut self) -> Result<ExtendedBatch<'_, T, SW, RW>> {
        let sending = self.sending_mut();
        let Some(extended) = &mut sending.extended else {
            return Err(unusable_for_batches());
        };
        let (table, deferred) = (extended.table, extended.deferred.take());
        let cursor = sending.in_flight.lend();
        let unsignaled = sending.signaling.unsignaled(cursor.tail);
        Ok(ExtendedBatch {
            queue: self,
            table,
            deferred,
            cursor,
            unsignaled,
            bindings: Vec::new(),
        })
    }
}

#[cold]
fn unusable_for_batches() -> Error {
    let reason = "the queue pair was not made for it; build it with `send_ops`";
    Error::refused("ibv_wr_start", io::ErrorKind::Unsupported, reason)
}

impl<T: Transport, S: CanPostSend, SW, RW> QueuePair<T, S, SW, RW> {
    /// Begins a batch of requests; see [`SendQueue::extended_batch`].
    ///
    /// # Errors
    /// As for [`SendQueue::extended_batch`].
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn extended_batch(&mut self) -> Result<ExtendedBatch<'_, T, SW, RW>> {
        self.halves_mut().0.extended_batch()
    }
}

impl<T: Transport, SW, RW> ExtendedBatch<'_, T, SW, RW> {
    /// Adds a request, whose work belongs to the queue from now on.
    ///
    /// Does not block or enter the kernel. Allocates only if every earlier batch of the queue was
    /// shorter, or had fewer elements or bytes.
    ///
    /// # Errors
    /// The error returns the request, and the batch is unchanged:
    /// - `Unsupported`: the queue pair was not made for this operation, named in the error.
    /// - Otherwise as for [`SendQueue::post`].
    ///
    /// # References
    /// [ibv_wr_post(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[inline(always)]
    pub fn push<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: ExtendedRequest<T, Work = SW>,
    {
        self.push_gathered::<R, false>(request)
    }

    /// Adds a request of a vendor's, as [`push`](Self::push) adds one of this crate's.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn push_vendor<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: VendorRequest<Transport = T, Work = SW>,
    {
        self.push(Vendor(request)).map_err(|refused| Refused {
            value: refused.value.0,
            error: refused.error,
        })
    }

    /// Adds a request, with all elements if `ALL`, else with those of the [usual case](SgeList::pass).
    #[inline(always)]
    fn push_gathered<R, const ALL: bool>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: ExtendedRequest<T, Work = SW>,
    {
        let mut op = SendOps::empty();
        request.describe_extended(&mut op);
        let mut sges = SgeList::pass(ALL);
        request.gather(&mut sges);
        if !sges.finish() {
            return self.push_all(request);
        }
        let admitted = match self.admit(op, &sges, &request) {
            Ok(admitted) => admitted,
            Err(error) => {
                return Err(Refused {
                    value: request,
                    error,
                });
            }
        };
        let mut recording = self.record(&admitted);
        request.describe_extended(&mut recording);
        if R::INLINE {
            // SAFETY: the elements are data borrowed by the request.
            unsafe { recording.inline(&sges) };
        } else if R::DATA {
            recording.sges(&sges);
        }
        recording.keep();
        // SAFETY: admitted above.
        unsafe { self.put(admitted, request.into_work()) };
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn push_all<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: ExtendedRequest<T, Work = SW>,
    {
        self.push_gathered::<R, true>(request)
    }

    /// Checks that the queue has room for one more request.
    #[inline(always)]
    pub(super) fn admit<R: Parts>(
        &mut self,
        op: SendOps,
        sges: &SgeList,
        request: &R,
    ) -> Result<Admitted> {
        let sending = self.queue.sending_mut();
        if let Some(error) = self.table.refusal(op, sges, R::INLINE) {
            return Err(error);
        }
        if let Some(error) = sending.limits.refusal(op.call(), sges, request) {
            return Err(error);
        }
        if self.cursor.is_stopped() {
            let Some(cursor) = sending.in_flight.moved_on(self.cursor.tail) else {
                return Err(refusal::full(op.call()));
            };
            self.cursor = cursor;
        }
        let (flags, unsignaled) = (sending.signaling).flags(request.flags(), |_| self.unsignaled);
        (sending.recorder).posted::<R>(self.cursor.tail, sges.bytes(), flags);
        Ok(Admitted { flags, unsignaled })
    }

    /// Begins to record a request.
    #[inline(always)]
    pub(super) fn record(&mut self, admitted: &Admitted) -> Recording<'_> {
        let deferred = self.deferred.get_or_insert_default();
        deferred.begin(self.cursor.tail, admitted.flags)
    }

    /// Stores the work of a recorded request.
    ///
    /// # Safety
    /// - The request was [admitted](Self::admit) after the last `put`.
    #[inline]
    pub(super) unsafe fn put(&mut self, admitted: Admitted, work: SW) {
        self.unsignaled = admitted.unsignaled;
        // SAFETY: the cursor was lent by the ring, unchanged since (invariant), and has not
        // stopped, as checked by `admit`.
        unsafe { self.cursor.put(self.cursor.tail, work) };
    }

    /// The number of requests added.
    pub fn len(&self) -> usize {
        self.deferred.as_ref().map_or(0, |requests| requests.len())
    }

    /// Whether no request has been added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `ibv_wr_start`, `ibv_wr_send` and the like, `ibv_wr_complete`—Writes the requests into the
    /// device's send queue and posts them, in their order of addition.
    ///
    /// Does not enter the kernel (on most devices) or allocate.
    ///
    /// # Errors
    /// - `EINVAL`, `ENOMEM`: the device refused one of the requests, without naming one.
    ///
    /// The error returns all of the work, in order, if the source of the device's library proves that
    /// nothing is posted then: of mlx5, efa, hns, `bnxt_re` and ionic. Otherwise the requests count as
    /// posted, and the error has no work. On Soft-RoCE only the doorbell may have failed, and the
    /// kernel finds the requests with the next one.
    ///
    /// # References
    /// [ibv_wr_complete(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn post(self) -> Result<(), Refused<Vec<SW>>> {
        // Nothing panics until the added works are posted, or taken back.
        let mut this = ManuallyDrop::new(self);
        let (table, cursor, unsignaled) = (this.table, this.cursor, this.unsignaled);
        let bindings = mem::take(&mut this.bindings);
        let len = this.len();
        let sending = this.queue.sending_mut();
        let before = sending.signaling.unsignaled(sending.in_flight.next());
        sending.in_flight.keep(cursor);
        let Some(requests) = this.deferred.as_ref().filter(|_| len > 0) else {
            this.give_back_memory();
            return Ok(());
        };
        // SAFETY: the queue pair exists for as long as the queue lives, borrowed exclusively. The
        // queue pair was made for the operations (`admit`). The works keep the address handles, and
        // `bindings` keep the windows and their regions.
        let mut errno = unsafe { requests.post(table.qp) };
        this.give_back_memory();
        if errno != 0 {
            let inner = &this.queue.inner;
            // SAFETY: the queue pair exists, as above. Providers that ring by a system call fail so after all requests.
            errno = unsafe { ring_again(inner.raw, inner.pd.context(), errno) };
        }
        if errno == 0 {
            let sending = this.queue.sending_mut();
            sending.signaling.set(unsignaled, cursor.tail);
            return Ok(());
        }
        let proven = FailedPosts::of(this.queue.inner.pd.context());
        let sending = this.queue.sending_mut();
        let mut value = Vec::new();
        let effect = if proven.complete_is_all_or_none {
            undo(bindings);
            value = sending.take_unposted_all(len, before);
            (sending.recorder).refused(sending.in_flight.next(), len, errno);
            Effect::Posted(0)
        } else {
            sending.signaling.set(unsignaled, cursor.tail);
            Effect::Unknown
        };
        let error = bad_wr::failure("ibv_wr_complete", errno, effect, QueueKind::Send);
        Err(Refused { value, error })
    }

    /// `ibv_wr_abort`—Posts nothing, and returns the work, in order.
    ///
    /// # References
    /// [ibv_wr_abort(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(self) -> Vec<SW> {
        let mut this = ManuallyDrop::new(self);
        undo(mem::take(&mut this.bindings));
        let len = this.len();
        this.give_back_memory();
        let cursor = Cursor::stopped(this.cursor.tail);
        let sending = this.queue.sending_mut();
        let before = sending.signaling.unsignaled(sending.in_flight.next());
        sending.in_flight.keep(cursor);
        let unposted = sending.take_unposted_all(len, before);
        (sending.recorder).dropped(sending.in_flight.next(), len);
        unposted
    }

    /// Leaves the memory for requests to the next batch.
    fn give_back_memory(&mut self) {
        let mut deferred = self.deferred.take();
        if let Some(requests) = &mut deferred {
            requests.clear();
        }
        if let Some(extended) = &mut self.queue.sending_mut().extended {
            extended.deferred = deferred;
        }
    }
}

impl<SW> Sending<SW> {
    /// Takes back the last `len` requests, as if never added. `unsignaled` is the number of
    /// unsignaled requests before.
    fn take_unposted_all(&mut self, len: usize, unsignaled: u32) -> Vec<SW> {
        let mut unposted: Vec<SW> = (0..len).filter_map(|_| self.in_flight.unpush()).collect();
        unposted.reverse();
        self.signaling.set(unsignaled, self.in_flight.next());
        unposted
    }
}

/// Restores the windows' state before their bindings, the last one first.
fn undo(bindings: Vec<UnpostedBind<'_>>) {
    for binding in bindings.into_iter().rev() {
        binding.undo();
    }
}

impl<T: Transport, SW, RW> Drop for ExtendedBatch<'_, T, SW, RW> {
    fn drop(&mut self) {
        let len = self.len();
        self.give_back_memory();
        let tail = self.cursor.tail;
        let bindings = mem::take(&mut self.bindings);
        let unposted = self.queue.sending_mut().take_staged(tail, len);
        undo(bindings);
        drop(unposted);
    }
}

impl<T: Transport, SW, RW> fmt::Debug for ExtendedBatch<'_, T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedBatch")
            .field("len", &self.len())
            .field("ops", &self.table.ops)
            .finish_non_exhaustive()
    }
}
