//! Several receives with one call.

use std::fmt;

use ibverbs_sys as ffi;

use super::{CALL, SharedReceiveQueue};
use crate::{
    bad_wr::{self, BadWr, Effect, QueueKind},
    error::{Refused, Result},
    mr::Buf,
    quirk::FailedPosts,
    work::{Scatter, SgeList},
};

/// Receives for a shared queue, posted together by one call into the device.
///
/// [Adding](Self::push) moves its work into the queue. Dropping a batch posts nothing, and drops the
/// work.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// # let pd = ctx.alloc_pd()?;
/// # let mut srq = pd.create_srq(16, 1)?;
/// let mut batch = srq.batch();
/// for _ in 0..16 {
///     batch.push(pd.alloc_buf(1024)?)?;
/// }
/// batch.post()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[must_use = "dropping a batch posts nothing"]
pub struct SrqBatch<'q, RW: Send + 'static = Buf> {
    srq: &'q mut SharedReceiveQueue<RW>,
}

impl<RW: Send + 'static> SharedReceiveQueue<RW> {
    /// Begins a batch of receives.
    pub fn batch(&mut self) -> SrqBatch<'_, RW> {
        // A forgotten batch has left its receives behind: their work is leaked until the queue is
        // dropped.
        self.staging.clear();
        SrqBatch { srq: self }
    }
}

impl<RW: Scatter + Send + 'static> SrqBatch<'_, RW> {
    /// Adds memory for one message.
    ///
    /// # Errors
    /// The error returns the work, and the batch is unchanged; see [`SharedReceiveQueue::post`].
    #[inline]
    pub fn push(&mut self, work: RW) -> Result<(), Refused<RW>> {
        let sges = SgeList::of(&work);
        let slot = match self.srq.slot_for(&sges) {
            Ok(slot) => slot,
            Err(error) => return Err(Refused { value: work, error }),
        };
        self.srq
            .staging
            .add(self.srq.handle.inner.queue.wr_id(slot), &sges);
        self.srq.posted.put(slot, work);
        Ok(())
    }
}

impl<RW: Send + 'static> SrqBatch<'_, RW> {
    /// The number of receives added.
    pub fn len(&self) -> usize {
        self.srq.staging.len()
    }

    /// Whether no receive has been added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `ibv_post_srq_recv`—Posts the receives, in their order of addition.
    ///
    /// # Errors
    /// The device refused a receive, named by the error. Earlier receives are posted. The error returns
    /// the work of the refused receive and of all later ones, in order. If the device names no
    /// receive, or the effect of the failure is not proven, as for [`SharedReceiveQueue::post`], all
    /// receives count as posted, and the error has no work.
    ///
    /// # References
    /// [ibv_post_srq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html)
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(self) -> Result<(), Refused<Vec<RW>>> {
        let staged = self.len();
        let Some(first) = self.srq.staging.chain() else {
            return Ok(());
        };
        let mut bad = BadWr::new();
        // SAFETY: the queue is created (invariant of `SrqInner`), and `first` is a list of complete
        // requests inside the staging area, which does not move during the call. Assumption: C
        // reads requests and their elements only before a post returns. The described memory stays
        // as `Scatter` promises while the work is in flight.
        let errno = unsafe { ffi::ibv_post_srq_recv(self.srq.as_raw(), first, bad.as_out()) };
        if errno == 0 {
            self.srq.staging.clear();
            return Ok(());
        }
        let proven = FailedPosts::of(self.srq.pd().context());
        let queue = QueueKind::SharedReceive;
        let effect = self.srq.staging.effect(proven, queue, &bad);
        let posted = match effect {
            Effect::Posted(count) => count,
            Effect::Unknown => staged,
        };
        let value = self.srq.unstage(posted).collect();
        self.srq.staging.clear();
        let error = bad_wr::failure(CALL, errno, effect, queue);
        let error = error.detail(bad_wr::of_batch("receive", posted, staged));
        Err(Refused { value, error })
    }
}

impl<RW: Send + 'static> SharedReceiveQueue<RW> {
    /// Takes back the work of a batch, from index `from` on.
    fn unstage(&mut self, from: usize) -> impl Iterator<Item = RW> {
        let (staging, posted) = (&self.staging, &mut self.posted);
        (from..staging.len()).filter_map(|index| {
            let id = staging.id(index)?;
            posted.take(id.sequence())
        })
    }
}

impl<RW: Send + 'static> Drop for SrqBatch<'_, RW> {
    fn drop(&mut self) {
        // All before the first drop, which may panic.
        let unposted: Vec<RW> = self.srq.unstage(0).collect();
        self.srq.staging.clear();
        drop(unposted);
    }
}

impl<RW: Send + 'static> fmt::Debug for SrqBatch<'_, RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqBatch")
            .field("len", &self.len())
            .finish()
    }
}
