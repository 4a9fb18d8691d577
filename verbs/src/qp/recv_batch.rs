//! Several receives with one call.

use std::fmt;

use ibverbs_sys as ffi;

use super::{
    pair::QueuePair, queues::ReceiveQueue, refusal, state::CanPostReceive, transport::Transport,
};
use crate::{
    bad_wr::{self, BadWr, Effect, QueueKind},
    error::{Refused, Result},
    quirk::FailedPosts,
    work::{Scatter, SgeList},
};

const CALL: &str = "ibv_post_recv";

/// Receives posted together, by one call into the device.
///
/// [Adding](Self::push) moves its work into the queue. Dropping a batch posts nothing, and drops the
/// work.
///
/// # Examples
/// ```
/// # let (_peer, mut qp, _cq) = doctest::connected();
/// # let pd = qp.pd().clone();
/// let mut batch = qp.recv_batch();
/// for _ in 0..16 {
///     batch.push(pd.alloc_buf(1024)?)?;
/// }
/// batch.post()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[must_use = "dropping a batch posts nothing"]
pub struct RecvBatch<'q, T: Transport, SW, RW> {
    queue: &'q mut ReceiveQueue<T, SW, RW>,
}

impl<T: Transport, SW, RW> ReceiveQueue<T, SW, RW> {
    /// Begins a batch of receives.
    pub fn batch(&mut self) -> RecvBatch<'_, T, SW, RW> {
        // A forgotten batch has left its receives behind: their works return with later work.
        self.receiving_mut().staging.clear();
        RecvBatch { queue: self }
    }
}

impl<T: Transport, S: CanPostReceive, SW, RW> QueuePair<T, S, SW, RW> {
    /// Begins a batch of receives, to be posted with one call.
    pub fn recv_batch(&mut self) -> RecvBatch<'_, T, SW, RW> {
        self.halves_mut().1.batch()
    }
}

impl<T: Transport, SW, RW: Scatter> RecvBatch<'_, T, SW, RW> {
    /// Adds memory for one message.
    ///
    /// # Errors
    /// The error returns the work, and the batch is unchanged; see [`ReceiveQueue::post`].
    #[inline]
    pub fn push(&mut self, work: RW) -> Result<(), Refused<RW>> {
        let receiving = self.queue.receiving_mut();
        let sges = SgeList::of(&work);
        if let Some(error) = receiving.limits.refusal(CALL, &sges) {
            return Err(Refused { value: work, error });
        }
        let Some(vacancy) = receiving.in_flight.vacancy() else {
            let error = refusal::full(CALL);
            return Err(Refused { value: work, error });
        };
        receiving.staging.add(vacancy.id(), &sges);
        receiving.recorder.received(vacancy.id(), sges.bytes());
        vacancy.fill(work);
        Ok(())
    }
}

impl<T: Transport, SW, RW> RecvBatch<'_, T, SW, RW> {
    /// The number of receives added.
    pub fn len(&self) -> usize {
        self.queue.receiving().staging.len()
    }

    /// Whether no receive has been added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `ibv_post_recv`—Posts the receives, in their order of addition.
    ///
    /// # Errors
    /// The device refused a receive, named by the error. Earlier receives are posted. The error returns
    /// the work of the refused receive and of all later ones, in order. If the device names no
    /// receive, or the effect of the failure is not proven, as for [`SendQueue::post`], all receives
    /// count as posted, and the error has no work.
    ///
    /// [`SendQueue::post`]: crate::qp::SendQueue::post
    ///
    /// # References
    /// [ibv_post_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html)
    #[doc(alias = "ibv_post_recv")]
    pub fn post(self) -> Result<(), Refused<Vec<RW>>> {
        let (qp, pd) = (self.queue.inner.raw, self.queue.inner.pd.clone());
        let receiving = self.queue.receiving_mut();
        let staged = receiving.staging.len();
        let Some(first) = receiving.staging.chain() else {
            return Ok(());
        };
        let mut bad = BadWr::new();
        // SAFETY: the queue pair is created (invariant of `Inner`), and `first` is a list of
        // complete requests inside the staging area, which does not move during the call.
        // Assumption: C reads requests and their elements only before a post returns. The described
        // memory stays as `Scatter` promises while the work is in flight.
        let errno = unsafe { ffi::ibv_post_recv(qp.as_ptr(), first, bad.as_out()) };
        if errno == 0 {
            receiving.staging.clear();
            return Ok(());
        }
        let proven = FailedPosts::of(pd.context());
        let effect = receiving.staging.effect(proven, QueueKind::Receive, &bad);
        let posted = match effect {
            Effect::Posted(count) => count,
            Effect::Unknown => staged,
        };
        receiving.staging.clear();
        let unposted = (posted..staged).filter_map(|_| receiving.in_flight.unpush());
        let mut value: Vec<RW> = unposted.collect();
        value.reverse();
        (receiving.recorder).refused(receiving.in_flight.next(), value.len(), errno);
        let error = bad_wr::failure(CALL, errno, effect, QueueKind::Receive);
        let error = error.detail(bad_wr::of_batch("receive", posted, staged));
        Err(Refused { value, error })
    }
}

impl<T: Transport, SW, RW> Drop for RecvBatch<'_, T, SW, RW> {
    fn drop(&mut self) {
        let receiving = self.queue.receiving_mut();
        let staged = receiving.staging.len();
        receiving.staging.clear();
        // All before the first drop, which may panic.
        let unposted = (0..staged).filter_map(|_| receiving.in_flight.unpush());
        let unposted: Vec<RW> = unposted.collect();
        (receiving.recorder).dropped(receiving.in_flight.next(), staged);
        drop(unposted);
    }
}

impl<T: Transport, SW, RW> fmt::Debug for RecvBatch<'_, T, SW, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("len", &self.len())
            .finish()
    }
}
