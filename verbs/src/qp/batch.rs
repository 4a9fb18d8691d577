//! Several requests with one doorbell.

use std::{fmt, mem::ManuallyDrop};

use ibverbs_sys as ffi;

use super::{
    inflight::Cursor,
    queues::{POST_SEND, SendQueue, Sending},
    refusal,
    staging::Next,
    transport::Transport,
};
use crate::{
    bad_wr::{self, BadWr, Effect, QueueKind},
    doorbell::ring_again,
    error::{Refused, Result},
    op::SendRequest,
    quirk::FailedPosts,
    work::SgeList,
    wr_id::WrId,
};

/// Requests posted together, by one call into the device.
///
/// [Adding](Self::push) a request moves its work into the queue. Dropping a batch posts nothing,
/// and drops the work.
///
/// # Examples
/// ```
/// # let (_peer, mut qp, _cq) = doctest::connected();
/// # let bufs = vec![qp.pd().alloc_buf(5)?, qp.pd().alloc_buf(6)?];
/// use verbs::op;
/// let mut batch = qp.batch();
/// for buf in bufs {
///     batch.push(op::Send::new(buf).unsignaled())?;
/// }
/// batch.post()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[must_use = "dropping a batch posts nothing"]
pub struct Batch<'q, T: Transport, SW, RW> {
    queue: &'q mut SendQueue<T, SW, RW>,
    // The part of the queue's state changed by posting, in one place, so that it can be in
    // registers.
    // INVARIANT: lent by the ring of `queue`, unchanged since. The works of the added requests are
    // before the cursor, as many as the requests staged before `next`.
    cursor: Cursor<SW>,
    next: Next,
    /// Number of requests since the last signaled one.
    unsignaled: u32,
}

impl<T: Transport, SW, RW> SendQueue<T, SW, RW> {
    /// Begins a batch of requests.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, T, SW, RW> {
        let sending = self.sending_mut();
        let next = sending.staging.begin(sending.in_flight.limit() as usize);
        let cursor = sending.in_flight.lend();
        let unsignaled = sending.signaling.unsignaled(cursor.tail);
        Batch {
            queue: self,
            cursor,
            next,
            unsignaled,
        }
    }
}

impl<'q, T: Transport, SW, RW> Batch<'q, T, SW, RW> {
    /// Adds a request. Data borrowed by the request, such as [inline](crate::op::Inline) data, stay
    /// borrowed until the batch is posted, which copies them.
    ///
    /// # Errors
    /// The error returns the request, and the batch is unchanged; see [`SendQueue::post`].
    #[inline(always)]
    pub fn push<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: SendRequest<T, Work = SW> + 'q,
    {
        self.push_gathered::<R, false>(request)
    }

    /// Adds a request, with elements without bytes if `EMPTY`.
    #[inline(always)]
    fn push_gathered<R, const EMPTY: bool>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: SendRequest<T, Work = SW> + 'q,
    {
        let sending = self.queue.sending_mut();
        if self.cursor.is_stopped() {
            let Some(cursor) = sending.in_flight.moved_on(self.cursor.tail) else {
                return Err(sending.limits.refused(request));
            };
            self.cursor = cursor;
        }
        let mut sges = SgeList::new();
        request.gather(&mut sges);
        if EMPTY {
            sges.omit_empty();
        } else if sges.has_empty() {
            return self.push_with_empty(request);
        }
        let request = ManuallyDrop::new(request);
        let refuse = |request, error| {
            let value = ManuallyDrop::into_inner(request);
            Err(Refused { value, error })
        };
        let refusal = sending.limits.refusal(POST_SEND, &sges, &*request);
        if let Some(error) = refusal {
            return refuse(request, error);
        }
        let (flags, unsignaled) = sending
            .signaling
            .flags(request.flags(), |_| self.unsignaled);
        // SAFETY: `next` is the staging area's, with room for all requests that can be in flight.
        // Each added request has its place among those, and the cursor has not stopped.
        let staged = unsafe {
            sending
                .staging
                .add(self.next, self.cursor.tail, &sges, flags)
        };
        let Some(mut staged) = staged else {
            // Not reached: `refusal` has looked at the elements.
            let (found, limit) = (sges.len(), sending.limits.max_sge.get());
            return refuse(request, refusal::elements(POST_SEND, found, limit));
        };
        request.describe(staged.wr());
        self.next = staged.take();
        (sending.recorder).posted::<R>(self.cursor.tail, sges.bytes(), flags);
        self.unsignaled = unsignaled;
        let work = ManuallyDrop::into_inner(request).into_work();
        // SAFETY: the cursor was lent by the ring, unchanged since (invariant), and has not
        // stopped.
        unsafe { self.cursor.put(self.cursor.tail, work) };
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn push_with_empty<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: SendRequest<T, Work = SW> + 'q,
    {
        self.push_gathered::<R, true>(request)
    }

    /// The number of requests added.
    pub fn len(&self) -> usize {
        self.queue.sending().staging.len(self.next)
    }

    /// Whether no request has been added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `ibv_post_send`—Posts the requests, in their order of addition.
    ///
    /// # Errors
    /// The device refused a request, named by the error. Earlier requests are posted. The error returns
    /// the work of the refused request and of all later ones, in order. If the device names no
    /// request, as after a failed doorbell, or the effect of the failure is not proven, as for
    /// [`SendQueue::post`], all requests count as posted, and the error has no work.
    ///
    /// # References
    /// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(self) -> Result<(), Refused<Vec<SW>>> {
        // Nothing below panics, and the added works are posted, or taken back.
        let mut this = ManuallyDrop::new(self);
        let (cursor, next, unsignaled) = (this.cursor, this.next, this.unsignaled);
        let (inner, sending) = this.queue.parts();
        let before = sending.signaling.unsignaled(sending.in_flight.next());
        sending.in_flight.keep(cursor);
        // SAFETY: `next` is the staging area's.
        let Some(first) = (unsafe { sending.staging.list(next) }) else {
            return Ok(());
        };
        let mut bad = BadWr::new();
        // SAFETY: the queue pair is created (invariant of `Inner`), and `first` is a list of
        // complete requests inside the staging area, which does not move during the call.
        // Assumption: C reads requests and their elements only before a post returns. The described
        // memory stays as `Gather` promises while the work is in flight.
        let mut errno = unsafe { (inner.table.post_send)(inner.raw.as_ptr(), first, bad.as_out()) };
        // SAFETY: as for `list`, which has found a request before `next`.
        unsafe { sending.staging.relink(next) };
        if errno != 0 || bad.is_named() {
            let ctx = inner.pd.context();
            let proven = FailedPosts::of(ctx);
            if proven.null_is_posted && bad.is_null() {
                // SAFETY: the queue pair is created, as above.
                errno = unsafe { ring_again(inner.raw, ctx, errno) };
            }
            if errno != 0 || (bad.is_named() && proven.named_in_success) {
                return Err(sending.take_unposted(proven, errno, &bad, next, before));
            }
        }
        sending.signaling.set(unsignaled, cursor.tail);
        Ok(())
    }
}

impl<SW> Sending<SW> {
    /// Takes back the requests refused by a failed post of a batch. `before` is the number of
    /// unsignaled requests before the batch.
    #[cold]
    #[inline(never)]
    fn take_unposted(
        &mut self,
        proven: FailedPosts,
        errno: i32,
        bad: &BadWr<ffi::ibv_send_wr>,
        next: Next,
        before: u32,
    ) -> Refused<Vec<SW>> {
        // The provider has no error for a request refused with success: the device has no such request.
        let errno = if errno == 0 { libc::EINVAL } else { errno };
        let staged = self.staging.len(next);
        let effect = self.staging.effect(proven, next, bad);
        let posted = match effect {
            Effect::Posted(count) => count,
            Effect::Unknown => staged,
        };
        // SAFETY: `posted` is at most the number of requests.
        let unsignaled = unsafe { self.staging.unsignaled(before, posted) };
        let unposted = (posted..staged).filter_map(|_| self.in_flight.unpush());
        let mut value: Vec<SW> = unposted.collect();
        value.reverse();
        // A signaled request that was not posted does not count.
        self.signaling.set(unsignaled, self.in_flight.next());
        (self.recorder).refused(self.in_flight.next(), value.len(), errno);
        let error = bad_wr::failure(POST_SEND, errno, effect, QueueKind::Send);
        let error = error.detail(bad_wr::of_batch("request", posted, staged));
        Refused { value, error }
    }

    /// Takes back the work of an unposted batch of `staged` requests, the last one first: all of it before any is
    /// dropped, because a drop of the program's may panic.
    #[cold]
    #[inline(never)]
    pub(super) fn take_staged(&mut self, tail: WrId, staged: usize) -> Vec<SW> {
        self.in_flight.keep(Cursor::stopped(tail));
        let unposted = (0..staged)
            .filter_map(|_| self.in_flight.unpush())
            .collect();
        (self.recorder).dropped(self.in_flight.next(), staged);
        unposted
    }
}

impl<T: Transport, SW, RW> Drop for Batch<'_, T, SW, RW> {
    #[inline]
    fn drop(&mut self) {
        let (tail, staged) = (self.cursor.tail, self.len());
        drop(self.queue.sending_mut().take_staged(tail, staged));
    }
}

impl<T: Transport, SW, RW> fmt::Debug for Batch<'_, T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish()
    }
}
