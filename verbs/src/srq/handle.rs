//! The shareable part of a shared receive queue.

use std::{fmt, sync::Arc};

use ibverbs_sys as ffi;

use super::{SrqAttr, SrqInner};
use crate::{
    bounded::SrqNum,
    cq::WorkCompletion,
    error::{Result, cvt_errno},
    pd::ProtectionDomain,
    wr_id::QpId,
};

/// The shareable part of a shared receive queue: everything but posting receives and taking completions.
///
/// A [`SharedReceiveQueue`](super::SharedReceiveQueue) dereferences to one, so `&srq` is accepted wherever a handle is
/// expected. Cloning is cheap. The queue is destroyed after the drop of the last handle and of the last queue pair on the
/// queue.
#[derive(Clone)]
pub struct SrqHandle {
    pub(super) inner: Arc<SrqInner>,
}

impl SrqHandle {
    pub(crate) fn inner(&self) -> &Arc<SrqInner> {
        &self.inner
    }

    /// The name of this queue in this process. Completions of its receives carry the name, as if it
    /// were a queue pair's.
    pub fn id(&self) -> QpId {
        self.inner.id.id()
    }

    /// The protection domain of the queue.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The queue pair that has received the message of a completion of this queue, which has the queue pair's number. For
    /// a completion of a queue pair's own queue, that queue pair.
    ///
    /// A few reads of a table by the number, without a hash. `None` for a queue pair that lives no more, and for one of another
    /// program ([`XrcReceiver`](crate::qp::XrcReceiver)).
    ///
    /// Soft-iWARP gives a new queue pair the number of a destroyed one at once: there, poll the completion queue until it is
    /// empty before a queue pair is created after the destruction of another.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// # let pd = ctx.alloc_pd()?;
    /// # let mut cq = ctx.create_cq(64)?;
    /// # let mut srq = pd.create_srq::<verbs::Buf>(32, 1)?;
    /// use verbs::qp::{QpId, QpKey};
    /// let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq).key(QpKey(7)).create()?;
    /// for wc in cq.poll()? {
    ///     let key = srq.receiver(&wc).and_then(QpId::key);
    ///     if let Ok(message) = srq.complete(wc) {
    ///         println!("{:?} has received {:?}", key, message.received()?);
    ///     }
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[inline]
    pub fn receiver(&self, wc: &WorkCompletion<'_>) -> Option<QpId> {
        if wc.wr_id().queue() == self.inner.queue {
            self.inner.receivers.find(wc.qp_num())
        } else {
            Some(wc.qp_id())
        }
    }

    /// Maximum number of elements of a receive.
    pub fn max_sge(&self) -> usize {
        self.inner.limits.max_sge() as usize
    }

    /// `ibv_get_srq_num`—The number used by XRC senders to [name](crate::op::ToSrq) the queue.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `ENOSYS`, `EINVAL`: not an XRC queue.
    ///
    /// # References
    /// [ibv_get_srq_num(3)](https://man7.org/linux/man-pages/man3/ibv_get_srq_num.3.html)
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srq_num(&self) -> Result<SrqNum> {
        let mut number = 0;
        // SAFETY: the queue is created (invariant), and `number` is a valid place for the result.
        let errno = unsafe { ffi::ibv_get_srq_num(self.as_raw(), &raw mut number) };
        cvt_errno("ibv_get_srq_num", errno)?;
        Ok(SrqNum::from_low_bits(number))
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_srq {
        self.inner.raw.as_ptr()
    }

    /// `ibv_modify_srq(srq, IBV_SRQ_LIMIT)`—Requests one asynchronous event once fewer than `limit`
    /// receives are posted.
    ///
    /// # Errors
    /// - `EINVAL`: the limit is more than the queue can hold.
    ///
    /// # References
    /// [ibv_modify_srq(3)](https://man7.org/linux/man-pages/man3/ibv_modify_srq.3.html)
    #[doc(alias = "IBV_SRQ_LIMIT")]
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        // Locked during the call, so that no resize fails meanwhile.
        let books = self.inner.books();
        books.check_failure("ibv_modify_srq")?;
        let mut attr = ffi::ibv_srq_attr::zeroed();
        attr.srq_limit = limit;
        let modified = self.modify(attr, ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT);
        drop(books);
        modified.map_err(|err| err.detail(format!("limit {limit}")))
    }

    /// The caller holds the lock of the books, and has checked for a failed resize.
    pub(super) fn modify(
        &self,
        mut attr: ffi::ibv_srq_attr,
        mask: ffi::ibv_srq_attr_mask,
    ) -> Result<()> {
        self.pd().context().check_process("ibv_modify_srq")?;
        // SAFETY: the queue is created (invariant), and no resize has failed, as the callers have checked
        // under the lock of the books.
        // Assumption: C keeps no pointer to the attributes. After a failed resize, no call but the
        // destruction uses the queue, unless the error is one of `keeps_size`.
        let errno = unsafe { ffi::ibv_modify_srq(self.as_raw(), &raw mut attr, mask.0 as i32) };
        cvt_errno("ibv_modify_srq", errno)
    }

    /// `ibv_query_srq`—The limits of the queue. Enters the kernel.
    ///
    /// # Errors
    /// The device is gone.
    ///
    /// # References
    /// [ibv_query_srq(3)](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html)
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        // As for `arm_limit`.
        let books = self.inner.books();
        books.check_failure("ibv_query_srq")?;
        let mut attr = ffi::ibv_srq_attr::zeroed();
        // SAFETY: the queue is created (invariant), and `attr` is a valid place for the result.
        let errno = unsafe { ffi::ibv_query_srq(self.as_raw(), &raw mut attr) };
        drop(books);
        cvt_errno("ibv_query_srq", errno)?;
        Ok(SrqAttr {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
        })
    }
}

impl fmt::Debug for SrqHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SrqHandle")
            .field("id", &self.id())
            .field("max_sge", &self.max_sge())
            .finish_non_exhaustive()
    }
}
