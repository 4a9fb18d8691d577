//! Several requests with one doorbell.

use std::{fmt, mem::ManuallyDrop, ptr};

use ibverbs_sys as ffi;

use super::{
    queues::{POST_SEND, SendQueue, Sending},
    refusal,
    transport::Transport,
};
use crate::{
    error::{Refused, Result},
    op::SendRequest,
    work::SgeList,
};

/// Requests that will be posted together: one call into the device for all of them.
///
/// Their work moves into the queue as they are [added](Self::push). A batch that is dropped posts
/// nothing, and drops it.
///
/// # Examples
/// ```no_run
/// # fn f(qp: &mut verbs::QueuePair<verbs::Rc, verbs::Rts>, bufs: Vec<verbs::Buf>) -> verbs::Result<()> {
/// use verbs::op::Send;
/// let mut batch = qp.batch();
/// for buf in bufs {
///     batch.push(Send::new(buf).unsignaled())?;
/// }
/// batch.post()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a batch that is dropped posts nothing"]
pub struct Batch<'q, T: Transport, SW, RW> {
    queue: &'q mut SendQueue<T, SW, RW>,
    /// How many requests since the last signaled one, as it was before the batch.
    unsignaled: u32,
}

impl<T: Transport, SW, RW> SendQueue<T, SW, RW> {
    /// Begins a batch of requests.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, T, SW, RW> {
        let sending = self.sending_mut();
        let unsignaled = sending.signaling.unsignaled;
        sending.staging.begin(sending.in_flight.limit() as usize);
        Batch {
            queue: self,
            unsignaled,
        }
    }
}

impl<'q, T: Transport, SW, RW> Batch<'q, T, SW, RW> {
    /// Adds a request. What it borrows, such as [inline](crate::op::Inline) data, stays borrowed
    /// until the batch is posted, which copies it.
    ///
    /// # Errors
    /// The request is given back, and the batch is as it was; see [`SendQueue::post`].
    #[inline(always)]
    pub fn push<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: SendRequest<T, Work = SW> + 'q,
    {
        let sending = self.queue.sending_mut();
        let mut sges = SgeList::new();
        request.gather(&mut sges);
        let request = ManuallyDrop::new(request);
        let refuse = |request, error| {
            let value = ManuallyDrop::into_inner(request);
            Err(Refused { value, error })
        };
        if let Some(error) = sending.refusal(POST_SEND, &sges, R::INLINE, request.segments()) {
            return refuse(request, error);
        }
        let (flags, unsignaled) = sending.signaling.next(request.flags());
        let Some(vacancy) = sending.in_flight.vacancy() else {
            return refuse(request, refusal::full(POST_SEND));
        };
        // SAFETY: there is room for as many requests as can be in flight. Each that was added since
        // the batch began has its place among those, and there is a vacancy.
        let place = unsafe { sending.staging.add(vacancy.id(), &sges, flags) };
        let Some(mut place) = place else {
            // Not reached: `refusal` has looked at the elements.
            let (found, limit) = (sges.len(), sending.max_sge.get());
            return refuse(request, refusal::elements(POST_SEND, found, limit));
        };
        request.describe(place.wr());
        place.take();
        sending.signaling.unsignaled = unsignaled;
        vacancy.fill(ManuallyDrop::into_inner(request).into_work());
        Ok(())
    }

    /// The number of requests added.
    pub fn len(&self) -> usize {
        self.queue.sending().staging.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `ibv_post_send`—Posts the requests, in the order in which they were added.
    ///
    /// # Errors
    /// The device refused one of them; the error says which. Those before it are posted. The work
    /// of that one and of those after it is given back, in order.
    ///
    /// # References
    /// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post(self) -> Result<(), Refused<Vec<SW>>> {
        let (inner, sending) = self.queue.parts();
        let Some(first) = sending.staging.list() else {
            return Ok(());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is created (invariant of `Inner`), and `first` is a list of
        // complete requests inside of the staging area, which lies still during the call. C reads
        // them and their elements before it returns. What the elements describe stays as `Gather`
        // promises while the work is in flight.
        let errno = unsafe { (inner.table.post_send)(inner.raw.as_ptr(), first, &raw mut bad) };
        sending.staging.relink();
        if errno != 0 {
            return Err(sending.take_unposted(errno, bad, self.unsignaled));
        }
        sending.staging.clear();
        Ok(())
    }
}

impl<SW> Sending<SW> {
    /// Takes back what of a batch has not been posted, beginning with the request `bad`. Before the
    /// batch, so many requests had not been signaled.
    #[cold]
    #[inline(never)]
    fn take_unposted(
        &mut self,
        errno: i32,
        bad: *mut ffi::ibv_send_wr,
        unsignaled: u32,
    ) -> Refused<Vec<SW>> {
        let staged = self.staging.len();
        let posted = self.staging.position(bad);
        // One that was to be signaled, and was not posted, does not count.
        self.signaling.unsignaled = self.staging.unsignaled(unsignaled, posted);
        self.staging.clear();
        let unposted = (posted..staged).filter_map(|_| self.in_flight.unpush());
        let mut value: Vec<SW> = unposted.collect();
        value.reverse();
        let error = refusal::device(POST_SEND, errno)
            .detail(format!("request {posted} of {staged}, counting from 0"));
        Refused { value, error }
    }
}

impl<T: Transport, SW, RW> Drop for Batch<'_, T, SW, RW> {
    fn drop(&mut self) {
        let unsignaled = self.unsignaled;
        let sending = self.queue.sending_mut();
        let staged = sending.staging.len();
        if staged == 0 {
            // Posted, or empty.
            return;
        }
        sending.staging.clear();
        sending.signaling.unsignaled = unsignaled;
        for _ in 0..staged {
            drop(sending.in_flight.unpush());
        }
    }
}

impl<T: Transport, SW, RW> fmt::Debug for Batch<'_, T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish()
    }
}
