//! Several requests that are built in the device's own memory.

use std::{fmt, io, marker::PhantomData};

use ibverbs_sys as ffi;

use super::{
    bind::Binding, extended::Table, inflight::Vacancy, pair::QueuePair, queues::SendQueue, refusal,
    state::CanPostSend, transport::Transport,
};
use crate::{
    error::{Error, Refused, Result},
    op::{Builder, ExtendedRequest, Parts, SendOps},
    work::SgeList,
};

/// Requests that are built in the device's own memory, and posted together: all of them or none.
///
/// It is the extended way of posting, for queue pairs that were made for it
/// ([`send_ops`](crate::QueuePairBuilder::send_ops)). The requests are those of [`op`](crate::op),
/// the completions are the same, and both ways can be used in turn. Against a [`Batch`](crate::Batch):
/// nothing is staged, inline data are copied as they are added, there are operations that only
/// this way has, and a failure posts nothing.
///
/// From its beginning to its end the device's lock on the send queue may be held, so make it short.
/// It stays in the thread that began it. A batch that is dropped posts nothing, and drops its work;
/// [`abort`](Self::abort) gives the work back. One that is forgotten (`mem::forget`) may leave the
/// send queue locked, as the guard of a mutex does: posting then waits for ever.
///
/// # Examples
/// ```no_run
/// # use verbs::{Buf, CqHandle, ProtectionDomain, RemoteToken, Reset, Result, Rts};
/// # fn f(
/// #     pd: &ProtectionDomain,
/// #     cq: &CqHandle,
/// #     (header, body, token): (Buf, Buf, RemoteToken),
/// #     connect: impl FnOnce(verbs::QueuePair<verbs::Rc, Reset>) -> verbs::QueuePair<verbs::Rc, Rts>,
/// # ) -> Result<()> {
/// use verbs::{QueuePair, Rc, op::{Send, SendOps, Write}};
/// let ops = SendOps::SEND | SendOps::RDMA_WRITE;
/// let qp = pd.qp_builder::<Rc>(cq, cq).max_send_wr(2).send_ops(ops).create()?;
/// let mut qp = connect(qp);
/// let mut batch = qp.extended_batch()?;
/// batch.push(Write::new(body, token).unsignaled())?;
/// batch.push(Send::new(header))?;
/// batch.post()?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_wr_post(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
#[must_use = "a batch that is dropped posts nothing"]
pub struct ExtendedBatch<'q, T: Transport, SW, RW> {
    pub(super) queue: &'q mut SendQueue<T, SW, RW>,
    // INVARIANT: that of the queue.
    pub(super) table: Table,
    /// How many requests since the last signaled one, as it was before the batch.
    unsignaled: u32,
    pub(super) len: usize,
    /// The windows that are bound by it.
    pub(super) bindings: Vec<Binding<'q>>,
    /// The lock that the device may hold is this thread's.
    thread: PhantomData<*mut ()>,
}

impl<T: Transport, SW, RW> SendQueue<T, SW, RW> {
    /// `ibv_wr_start`—Begins a batch of requests that are built in the device's own memory.
    ///
    /// # Errors
    /// - `Unsupported`: the queue pair was not made with
    ///   [`send_ops`](crate::QueuePairBuilder::send_ops).
    /// - `ResourceBusy`: an earlier one was forgotten (`mem::forget`), and so never ended.
    ///
    /// # References
    /// [ibv_wr_start(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[doc(alias = "ibv_wr_start")]
    #[inline]
    pub fn extended_batch(&mut self) -> Result<ExtendedBatch<'_, T, SW, RW>> {
        let sending = self.sending_mut();
        let unsignaled = sending.signaling.unsignaled(sending.in_flight.next());
        let extended = match &mut sending.extended {
            Some(extended) if !extended.building => extended,
            unusable => return Err(unusable_for_batches(unusable.is_some())),
        };
        let table = extended.table;
        // SAFETY: the queue pair exists, and its table has the function (invariant). It is not
        // being built on.
        unsafe { ffi::ibv_wr_start(table.qp.as_ptr()) };
        extended.building = true;
        Ok(ExtendedBatch {
            queue: self,
            table,
            unsignaled,
            len: 0,
            bindings: Vec::new(),
            thread: PhantomData,
        })
    }
}

#[cold]
fn unusable_for_batches(forgotten: bool) -> Error {
    let (kind, reason) = if forgotten {
        let reason = "an earlier extended batch of the queue was forgotten";
        (io::ErrorKind::ResourceBusy, reason)
    } else {
        let reason = "the queue pair was not made for it; build it with `send_ops`";
        (io::ErrorKind::Unsupported, reason)
    };
    Error::refused("ibv_wr_start", kind, reason)
}

impl<T: Transport, S: CanPostSend, SW, RW> QueuePair<T, S, SW, RW> {
    /// `ibv_wr_start`—Begins a batch of requests; see [`SendQueue::extended_batch`].
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
    /// `ibv_wr_send` and the like—Adds a request, whose work belongs to the queue from now on.
    ///
    /// Does not block, enter the kernel or allocate.
    ///
    /// # Errors
    /// The request is given back, and the batch is as it was:
    /// - `Unsupported`: the queue pair was not made for this operation, which the error names.
    /// - Otherwise as for [`SendQueue::post`].
    ///
    /// # References
    /// [ibv_wr_post(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[inline]
    pub fn push<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: ExtendedRequest<T, Work = SW>,
    {
        let wrong_lists = self.table.quirks.wrong_lists;
        let mut op = SendOps::empty();
        request.describe_extended(&mut op);
        let mut sges = SgeList::new();
        request.gather(&mut sges);
        let (mut builder, vacancy) = match self.begin(op, &sges, &request) {
            Ok(begun) => begun,
            Err(error) => {
                return Err(Refused {
                    value: request,
                    error,
                });
            }
        };
        request.describe_extended(&mut builder);
        if R::INLINE {
            // SAFETY: the elements are the data that the request borrows.
            unsafe { builder.inline(&sges, wrong_lists) };
        } else if R::DATA {
            builder.sges(&sges);
        }
        vacancy.fill(request.into_work());
        self.len += 1;
        Ok(())
    }

    /// Begins one more request, if the queue can take it: it must be described, and its work be
    /// filled in.
    #[inline]
    pub(super) fn begin<R: Parts>(
        &mut self,
        op: SendOps,
        sges: &SgeList,
        request: &R,
    ) -> Result<(Builder, Vacancy<'_, SW>)> {
        let sending = self.queue.sending_mut();
        if let Some(error) = self.table.refusal(op, sges, R::INLINE) {
            return Err(error);
        }
        if let Some(error) = sending.limits.refusal(op.call(), sges, request) {
            return Err(error);
        }
        let Some(vacancy) = sending.in_flight.vacancy() else {
            return Err(refusal::full(op.call()));
        };
        let id = vacancy.id();
        let (flags, unsignaled) =
            (sending.signaling).flags(request.flags(), |it| it.unsignaled(id));
        sending.signaling.posted(unsignaled, id.next());
        // SAFETY: the queue pair exists for as long as `self.queue` lives. It was started when
        // `self` was made, and is ended when `self` is, and nobody else gets at the send queue
        // meanwhile. It was made for `op` (just checked).
        let builder = unsafe { Builder::new(self.table.qp, vacancy.id(), flags) };
        Ok((builder, vacancy))
    }

    /// The number of requests added.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `ibv_wr_complete`—Posts the requests, in the order in which they were added.
    ///
    /// Does not enter the kernel (on most devices) or allocate.
    ///
    /// # Errors
    /// - `EINVAL`, `ENOMEM`: the device refused one of the requests; it does not say which.
    ///
    /// Nothing is posted then, and all of the work is given back, in order. On Soft-RoCE it is not,
    /// because it stays posted: the kernel finds it with the next request.
    ///
    /// # References
    /// [ibv_wr_complete(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[doc(alias = "ibv_wr_complete")]
    #[inline]
    pub fn post(mut self) -> Result<(), Refused<Vec<SW>>> {
        if self.len == 0 {
            return Ok(());
        }
        // SAFETY: the queue pair exists for as long as `self.queue` lives, and is being built on.
        let errno = unsafe { ffi::ibv_wr_complete(self.table.qp.as_ptr()) };
        self.ended();
        if errno == 0 || self.table.quirks.fails_posted {
            // Not to be taken back by `drop`.
            self.len = 0;
            self.bindings.clear();
        }
        if errno == 0 {
            return Ok(());
        }
        Err(self.refused(errno))
    }

    #[cold]
    fn refused(&mut self, errno: i32) -> Refused<Vec<SW>> {
        let value = if self.len > 0 {
            self.take_back()
        } else {
            Vec::new()
        };
        let error = refusal::device("ibv_wr_complete", errno);
        Refused { value, error }
    }

    /// `ibv_wr_abort`—Posts nothing, and gives the work back, in order.
    ///
    /// # References
    /// [ibv_wr_abort(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
    #[doc(alias = "ibv_wr_abort")]
    pub fn abort(mut self) -> Vec<SW> {
        self.end();
        self.take_back()
    }

    /// Ends the batch with nothing posted, if it has not been ended.
    fn end(&mut self) {
        let extended = &self.queue.sending().extended;
        if extended.as_ref().is_some_and(|extended| extended.building) {
            // SAFETY: the queue pair exists for as long as `self.queue` lives, and is being built
            // on.
            unsafe { ffi::ibv_wr_abort(self.table.qp.as_ptr()) };
            self.ended();
        }
    }

    /// Notes that C has ended the batch.
    #[inline]
    fn ended(&mut self) {
        if let Some(extended) = &mut self.queue.sending_mut().extended {
            extended.building = false;
        }
    }

    /// Takes what was not posted out of the books, as if it had never been there.
    fn take_back(&mut self) -> Vec<SW> {
        for binding in self.bindings.drain(..).rev() {
            binding.undo();
        }
        let sending = self.queue.sending_mut();
        let taken = (0..std::mem::take(&mut self.len)).filter_map(|_| sending.in_flight.unpush());
        let mut taken: Vec<_> = taken.collect();
        taken.reverse();
        let next = sending.in_flight.next();
        sending.signaling.set(self.unsignaled, next);
        taken
    }
}

impl<T: Transport, SW, RW> Drop for ExtendedBatch<'_, T, SW, RW> {
    fn drop(&mut self) {
        self.end();
        if self.len > 0 {
            drop(self.take_back());
        }
    }
}

impl<T: Transport, SW, RW> fmt::Debug for ExtendedBatch<'_, T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedBatch")
            .field("len", &self.len)
            .field("ops", &self.table.ops)
            .finish_non_exhaustive()
    }
}
