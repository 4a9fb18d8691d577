//! Shared receive queues: one stock of receives for many queue pairs.

use std::{
    any::Any,
    fmt, io, mem,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use ibverbs_sys as ffi;

use crate::{
    cq::{CqHandle, Reservation, WorkCompletion},
    error::{Error, Refused, Result, cvt_errno, cvt_ptr},
    mr::Buf,
    pd::ProtectionDomain,
    qp::Completion,
    work::{MAX_SGE, Scatter, SgeList},
    wr_id::{MAX_IN_FLIGHT, QpId, QueueId},
};

/// `ibv_srq`—A shared receive queue, whose receives serve every queue pair that is made
/// [on it](crate::QueuePairBuilder::srq).
///
/// Its receives complete in the order in which messages arrive, over all those queue pairs. Their
/// completions carry the
/// [id](Self::id) of this queue, and the number of the queue pair that the message came to. Give them back
/// to [`complete`](Self::complete).
///
/// A queue pair that fails can take receives with it: they complete never. They are given up when
/// the queue is dropped, which keeps them until the last queue pair on it is gone.
///
/// # References
/// [ibv_create_srq(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html)
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue<RW: Send + 'static = Buf> {
    inner: Arc<SrqInner>,
    // INVARIANT: holds the work of every receive that is posted and has not come back. Parked in
    // `inner` when this is dropped.
    posted: Slab<RW>,
}

/// The part that queue pairs share.
pub(crate) struct SrqInner {
    // INVARIANT: created, and destroyed only in `drop`.
    raw: NonNull<ffi::ibv_srq>,
    queue: QueueId,
    id: QpId,
    max_wr: u32,
    max_sge: u32,
    /// The work in flight, when its owner is gone.
    parked: Mutex<Option<Box<dyn Any + Send>>>,
    /// The entries reserved on each completion queue in use, by its address.
    reservations: Mutex<Vec<(usize, Weak<Reservation>)>>,
    pd: ProtectionDomain,
}

// SAFETY: libibverbs documents its calls as thread-safe on one shared receive queue. What is
// mutable is behind locks.
unsafe impl Send for SrqInner {}
// SAFETY: see `Send`.
unsafe impl Sync for SrqInner {}

/// `ibv_srq_attr`—What a shared receive queue has room for.
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// The most receives in flight.
    pub max_wr: u32,
    /// The most elements of a receive.
    pub max_sge: u32,
    /// Below so many receives an event comes; 0 if none will.
    pub limit: u32,
}

impl ProtectionDomain {
    /// `ibv_create_srq(pd, …)`—Creates a shared receive queue for `max_wr` receives of `max_sge`
    /// elements. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: a number is beyond what this crate can keep.
    /// - `EINVAL`: a number is more than the device allows.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_srq(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html)
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq<RW: Send + 'static>(
        &self,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue<RW>> {
        let detail = || format!("{max_wr} receives of {max_sge} elements");
        if max_wr > MAX_IN_FLIGHT || max_sge as usize > MAX_SGE {
            let reason = format!("at most {MAX_IN_FLIGHT} receives of {MAX_SGE} elements");
            return Err(
                Error::refused("ibv_create_srq", io::ErrorKind::InvalidInput, reason)
                    .detail(detail()),
            );
        }
        let mut attr = ffi::ibv_srq_init_attr::zeroed();
        attr.attr.max_wr = max_wr;
        attr.attr.max_sge = max_sge;
        // SAFETY: the domain is allocated for as long as `self` lives; C writes only `attr`, and
        // keeps no pointer to it.
        let raw = unsafe { ffi::ibv_create_srq(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr("ibv_create_srq", raw).map_err(|err| err.detail(detail()))?;
        let id = QpId::next();
        let inner = SrqInner {
            raw,
            queue: QueueId::receive(id),
            id,
            max_wr,
            max_sge,
            parked: Mutex::default(),
            reservations: Mutex::default(),
            pd: self.clone(),
        };
        Ok(SharedReceiveQueue {
            inner: Arc::new(inner),
            posted: Slab::new(max_wr),
        })
    }
}

impl<RW: Send + 'static> SharedReceiveQueue<RW> {
    /// The name of this queue in this process. The completions of its receives carry it, as if it
    /// were a queue pair.
    pub fn id(&self) -> QpId {
        self.inner.id
    }

    /// The domain it was made in.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.inner.pd
    }

    /// The number of receives that have been posted and not come back.
    pub fn in_flight(&self) -> usize {
        self.posted.len()
    }

    /// The most receives that can be in flight.
    pub fn capacity(&self) -> usize {
        self.inner.max_wr as usize
    }

    /// The C object, for calls that this crate does not wrap. It exists for as long as `self`
    /// lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_srq {
        self.inner.raw.as_ptr()
    }

    /// Takes back the work that `wc` completes.
    ///
    /// # Errors
    /// The completion is not one of this queue; it is given back.
    #[inline]
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completion<'p, RW>, WorkCompletion<'p>> {
        let id = wc.wr_id();
        if id.queue() != self.inner.queue {
            return Err(wc);
        }
        match self.posted.take(id.sequence()) {
            Some(work) => Ok(Completion::new(work, wc)),
            None => Err(wc),
        }
    }

    /// `ibv_modify_srq(srq, IBV_SRQ_LIMIT)`—Asks for one asynchronous event when fewer than `limit`
    /// receives are left.
    ///
    /// # Errors
    /// - `EINVAL`: the limit is more than the queue can hold.
    ///
    /// # References
    /// [ibv_modify_srq(3)](https://man7.org/linux/man-pages/man3/ibv_modify_srq.3.html)
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        let mut attr = ffi::ibv_srq_attr::zeroed();
        attr.srq_limit = limit;
        let mask = ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as i32;
        // SAFETY: the queue is created (invariant); C keeps no pointer to the attributes.
        let errno = unsafe { ffi::ibv_modify_srq(self.as_raw(), &raw mut attr, mask) };
        cvt_errno("ibv_modify_srq", errno).map_err(|err| err.detail(format!("limit {limit}")))
    }

    /// `ibv_query_srq`—What the queue has room for. Enters the kernel.
    ///
    /// # Errors
    /// The device is gone.
    ///
    /// # References
    /// [ibv_query_srq(3)](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html)
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        let mut attr = ffi::ibv_srq_attr::zeroed();
        // SAFETY: the queue is created (invariant), and `attr` is a valid place for the result.
        let errno = unsafe { ffi::ibv_query_srq(self.as_raw(), &raw mut attr) };
        cvt_errno("ibv_query_srq", errno)?;
        Ok(SrqAttr {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
        })
    }

    pub(crate) fn inner(&self) -> &Arc<SrqInner> {
        &self.inner
    }
}

impl<RW: Scatter + Send + 'static> SharedReceiveQueue<RW> {
    /// `ibv_post_srq_recv`—Posts memory for one message to arrive in. It belongs to the queue until
    /// its completion gives it back.
    ///
    /// Does not block, enter the kernel (on most devices) or allocate.
    ///
    /// # Errors
    /// The work is given back, unharmed:
    /// - `WouldBlock`: as many receives are in flight as the queue can hold.
    /// - `InvalidInput`: the work has more elements than the queue was made for.
    /// - `EINVAL`, `ENOMEM`: the device refused the request.
    ///
    /// # References
    /// [ibv_post_srq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html)
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post(&mut self, work: RW) -> Result<(), Refused<RW>> {
        const CALL: &str = "ibv_post_srq_recv";
        let mut sges = SgeList::of(&work);
        if sges.len() > self.inner.max_sge as usize {
            let limit = self.inner.max_sge;
            let reason = format!(
                "{} elements, and the queue was made for {limit}",
                sges.len()
            );
            let error = Error::refused(CALL, io::ErrorKind::InvalidInput, reason);
            return Err(Refused { value: work, error });
        }
        let Some(slot) = self.posted.free() else {
            let reason = "every receive that the queue can hold is in flight";
            let error = Error::refused(CALL, io::ErrorKind::WouldBlock, reason);
            return Err(Refused { value: work, error });
        };
        let mut wr = ffi::ibv_recv_wr {
            wr_id: self.inner.queue.wr_id(slot).0,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.count(),
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue is created (invariant of `SrqInner`), and `wr` is one complete request.
        // C reads it and the elements before it returns. What the elements describe stays as
        // `Scatter` promises until `work` is dropped, and so until the queue is destroyed or the
        // completion has come.
        let errno = unsafe { ffi::ibv_post_srq_recv(self.as_raw(), &raw mut wr, &raw mut bad) };
        if let Err(error) = cvt_errno(CALL, errno) {
            return Err(Refused { value: work, error });
        }
        self.posted.put(slot, work);
        Ok(())
    }
}

impl<RW: Send + 'static> fmt::Debug for SharedReceiveQueue<RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("id", &self.id())
            .field("in_flight", &self.in_flight())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl<RW: Send + 'static> Drop for SharedReceiveQueue<RW> {
    fn drop(&mut self) {
        let posted = mem::replace(&mut self.posted, Slab::new(0));
        let mut parked = self
            .inner
            .parked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *parked = Some(Box::new(posted));
    }
}

impl SrqInner {
    pub(crate) fn as_raw(&self) -> *mut ffi::ibv_srq {
        self.raw.as_ptr()
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Reserves entries of a completion queue for the receives of this queue: once, for all the
    /// queue pairs that use the two together.
    pub(crate) fn reserve_on(&self, cq: &CqHandle) -> Result<Arc<Reservation>> {
        let address = cq.as_raw().addr();
        let mut known = self
            .reservations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, reservation)| reservation.strong_count() > 0);
        let found = known
            .iter()
            .find(|(other, _)| *other == address)
            .and_then(|(_, reservation)| reservation.upgrade());
        if let Some(found) = found {
            return Ok(found);
        }
        let mut reservation = cq.reserve(self.max_wr)?;
        // When the last queue pair goes, any of them may have left completions behind.
        reservation.unreaped = self.max_wr;
        let reservation = Arc::new(reservation);
        known.push((address, Arc::downgrade(&reservation)));
        Ok(reservation)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // SAFETY: the queue exists and is destroyed once, here; queue pairs that use it hold an
        // `Arc` of `self`, so they are gone. Its domain is allocated, since that is dropped after
        // this.
        let errno = unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) };
        if errno != 0 {
            // The device may still write to what is in flight: it is given up.
            let parked = self
                .parked
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            #[expect(clippy::mem_forget, reason = "the device may still have it")]
            mem::forget(parked.take());
        }
    }
}

/// Works by slot, each of which is given out again when its work has been taken.
struct Slab<W> {
    slots: Vec<Option<W>>,
    /// The empty slots. INVARIANT: below the length of `slots`.
    empty: Vec<u32>,
}

impl<W> Slab<W> {
    fn new(slots: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| None).collect(),
            empty: (0..slots).rev().collect(),
        }
    }

    fn len(&self) -> usize {
        self.slots.len() - self.empty.len()
    }

    /// The slot that the next work goes to.
    #[inline]
    fn free(&self) -> Option<u32> {
        self.empty.last().copied()
    }

    /// Puts a work where [`free`](Self::free) has said.
    #[inline]
    fn put(&mut self, slot: u32, work: W) {
        debug_assert_eq!(self.free(), Some(slot));
        self.empty.pop();
        self.slots[slot as usize] = Some(work);
    }

    /// Takes the work of a slot, if there is any.
    #[inline]
    fn take(&mut self, slot: u32) -> Option<W> {
        let work = self.slots.get_mut(slot as usize)?.take()?;
        self.empty.push(slot);
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back_in_any_order_and_only_once() {
        let mut slab = Slab::new(3);
        let mut slots = Vec::new();
        while let Some(slot) = slab.free() {
            slab.put(slot, slot * 10);
            slots.push(slot);
        }
        assert_eq!((slab.len(), slots.len()), (3, 3));
        assert_eq!(slab.take(1), Some(10));
        assert_eq!(slab.take(1), None, "taken twice");
        assert_eq!(slab.take(7), None, "no such slot");
        assert_eq!(slab.free(), Some(1));
        slab.put(1, 77);
        assert_eq!(
            (slab.take(0), slab.take(2), slab.take(1)),
            (Some(0), Some(20), Some(77))
        );
        assert_eq!(slab.len(), 0);
    }
}
