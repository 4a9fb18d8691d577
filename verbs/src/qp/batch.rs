//! Several requests with one doorbell.

use std::{fmt, ptr};

use ibverbs_sys as ffi;

use super::{
    queues::{POST_SEND, SendQueue},
    refusal,
    transport::Transport,
};
use crate::{
    error::{Error, Refused, Result},
    op::{SendRequest, SendWr},
    work::SgeList,
};

/// Room for the requests of a batch. It is allocated for the first batch of a queue, and kept.
#[derive(Default)]
pub(super) struct Staging {
    wrs: Vec<SendWr>,
    sges: Vec<ffi::ibv_sge>,
    /// For each request, what else is to be known of it.
    staged: Vec<Staged>,
}

struct Staged {
    /// Where the request's elements begin in `sges`.
    start: usize,
    /// How many requests have not been signaled after it.
    unsignaled: u32,
}

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
    pub fn batch(&mut self) -> Batch<'_, T, SW, RW> {
        let sending = self.sending_mut();
        let unsignaled = sending.signaling.unsignaled;
        sending.staging.prepare(
            sending.in_flight.limit() as usize,
            sending.max_sge.get() as usize,
        );
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
    #[inline]
    pub fn push<R>(&mut self, request: R) -> Result<(), Refused<R>>
    where
        R: SendRequest<T, Work = SW> + 'q,
    {
        let sending = self.queue.sending_mut();
        let mut sges = SgeList::new();
        request.gather(&mut sges);
        if let Some(error) = sending.refusal(POST_SEND, &sges, R::INLINE, request.segments()) {
            return Err(Refused {
                value: request,
                error,
            });
        }
        let Some(vacancy) = sending.in_flight.vacancy() else {
            let error = refusal::full(POST_SEND);
            return Err(Refused {
                value: request,
                error,
            });
        };
        let (flags, unsignaled) = sending.signaling.next(request.flags());
        let mut wr = SendWr::unwritten();
        wr.begin(vacancy.id(), &mut sges, flags);
        request.describe(&mut wr);
        sending.staging.add(wr, sges.elements(), unsignaled);
        sending.signaling.unsignaled = unsignaled;
        vacancy.fill(request.into_work());
        Ok(())
    }

    /// The number of requests added.
    pub fn len(&self) -> usize {
        self.queue.sending().staging.wrs.len()
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
    pub fn post(self) -> Result<(), Refused<Vec<SW>>> {
        let qp = self.queue.inner.raw;
        let sending = self.queue.sending_mut();
        let staged = sending.staging.wrs.len();
        let Some(first) = sending.staging.chain() else {
            return Ok(());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is created (invariant of `Inner`), and `first` is a list of
        // complete requests inside of the staging area, which lies still during the call. C reads
        // them and their elements before it returns. What the elements describe stays as `Gather`
        // promises while the work is in flight.
        let errno = unsafe { ffi::ibv_post_send(qp.as_ptr(), first, &raw mut bad) };
        let posted = if errno == 0 {
            staged
        } else {
            sending.staging.position(bad)
        };
        let returned = (posted..staged)
            .filter_map(|_| sending.in_flight.unpush())
            .collect();
        // One that was to be signaled, and was not posted, does not count.
        let unsignaled = sending.staging.unsignaled_after(posted);
        sending.signaling.unsignaled = unsignaled.unwrap_or(self.unsignaled);
        sending.staging.clear();
        if errno == 0 {
            return Ok(());
        }
        let mut returned: Vec<SW> = returned;
        returned.reverse();
        let error = Error::from_errno("ibv_post_send", errno.saturating_abs())
            .detail(format!("request {posted} of {staged}, counting from 0"));
        Err(Refused {
            value: returned,
            error,
        })
    }
}

impl<T: Transport, SW, RW> Drop for Batch<'_, T, SW, RW> {
    fn drop(&mut self) {
        let unsignaled = self.unsignaled;
        let sending = self.queue.sending_mut();
        let staged = sending.staging.wrs.len();
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

impl Staging {
    fn prepare(&mut self, requests: usize, elements: usize) {
        // A batch that was forgotten has left its requests behind: their work comes back with later
        // work.
        self.clear();
        self.wrs.reserve(requests);
        self.staged.reserve(requests);
        self.sges.reserve(requests * elements);
    }

    fn clear(&mut self) {
        self.wrs.clear();
        self.staged.clear();
        self.sges.clear();
    }

    #[inline]
    fn add(&mut self, wr: SendWr, sges: &[ffi::ibv_sge], unsignaled: u32) {
        let start = self.sges.len();
        self.staged.push(Staged { start, unsignaled });
        self.wrs.push(wr);
        self.sges.extend_from_slice(sges);
    }

    /// Links the requests to a list, and returns the first.
    fn chain(&mut self) -> Option<*mut ffi::ibv_send_wr> {
        let sges = self.sges.as_mut_ptr();
        let mut next = ptr::null_mut();
        for (wr, staged) in self.wrs.iter_mut().zip(&self.staged).rev() {
            // In bounds or one past the end, where a request has no elements.
            wr.relocate(sges.wrapping_add(staged.start));
            wr.link(next);
            next = wr.as_mut_ptr();
        }
        (!next.is_null()).then_some(next)
    }

    /// How many requests have not been signaled after so many of these; `None` if that is none of
    /// them.
    fn unsignaled_after(&self, requests: usize) -> Option<u32> {
        let last = self.staged.get(requests.checked_sub(1)?)?;
        Some(last.unsignaled)
    }

    /// The index of the request that C has named as the first it did not post. If it has named
    /// none, nobody knows, so every request counts as posted: the device may have any of them.
    fn position(&mut self, bad: *mut ffi::ibv_send_wr) -> usize {
        let named = self
            .wrs
            .iter_mut()
            .position(|wr| ptr::eq(wr.as_mut_ptr(), bad));
        named.unwrap_or(self.wrs.len())
    }
}

impl<T: Transport, SW, RW> fmt::Debug for Batch<'_, T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish()
    }
}
