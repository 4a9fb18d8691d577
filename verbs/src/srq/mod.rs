//! Shared receive queues: receives for many queue pairs.
//!
//! | item | is |
//! |---|---|
//! | [`SharedReceiveQueue`] | the queue; [`SrqBatch`] receives posted together |
//! | [`SrqHandle`] | its shareable part |
//! | [`SrqAttr`], [`SrqNum`] | its size and limit; its number, for extended reliable connections |
//! | [`TagMatchingQueue`], [`TagMatchingCapacity`] | a queue whose device matches tags; its size |
//! | [`TagPattern`], [`TagEntry`] | the tags of a buffer; a buffer in the list |
//! | [`TagHeader`], [`TagOperation`], [`RendezvousHeader`] | headers of messages with tags |
//! | [`TagCompletion`], [`TagEvent`] | completions of a tag matching queue |
//!
//! # References
//! [ibv_create_srq(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html),
//! [ibv_create_srq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html),
//! [ibv_post_srq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html),
//! [ibv_post_srq_ops(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_ops.3.html)

mod batch;
mod create;
mod entries;
mod handle;
mod receivers;
mod slab;
mod tags;

use std::{
    any::Any,
    fmt, io,
    mem::{self, MaybeUninit},
    ops::Deref,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use self::{entries::Books, receivers::Receivers, slab::Slab};
use crate::{
    bad_wr::{self, BadWr, Effect, QueueKind},
    cq::{CqHandle, WorkCompletion},
    error::{Error, PostError, Result},
    hint,
    mr::Buf,
    pd::ProtectionDomain,
    qp::Completion,
    quirk::{self, keeps_size},
    recv_limits::RecvLimits,
    recv_list::RecvList,
    work::{Scatter, SgeList},
    wr_id::{MAX_IN_FLIGHT, OwnedQpId, QueueId},
    xrcd::XrcDomain,
};

pub use crate::bounded::SrqNum;

pub use self::{
    batch::SrqBatch,
    handle::SrqHandle,
    tags::{
        RendezvousHeader, TagCompletion, TagEntry, TagEvent, TagHeader, TagMatchingCapacity,
        TagMatchingQueue, TagOperation, TagPattern,
    },
};

pub(crate) use self::entries::Entries;

/// `ibv_srq`—A shared receive queue, with receives for every queue pair made [on
/// it](crate::qp::QueuePairBuilder::srq).
///
/// Receives complete in the order of message arrival, over all those queue pairs. Their completions
/// carry the [id](SrqHandle::id) of this queue, and the number of the receiving queue pair, by which
/// [`receiver`](SrqHandle::receiver) finds its identity. Hand the completions to [`complete`](Self::complete).
///
/// A queue pair that fails can consume receives that then never complete. Their work is leaked when
/// the queue is dropped, and kept until the last queue pair on the queue has been destroyed.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// # let pd = ctx.alloc_pd()?;
/// let cq = ctx.create_cq(64)?;
/// let mut srq = pd.create_srq(32, 1)?;
/// let first = pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq).create()?;
/// let second = pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq).create()?;
/// srq.post(pd.alloc_buf(1024)?)?; // for a message to either queue pair
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_create_srq(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html)
#[doc(alias = "ibv_destroy_srq")]
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue<RW: Send + 'static = Buf> {
    handle: SrqHandle,
    // INVARIANT: holds the work of every receive posted and not returned, and has no free slot if a
    // resize has failed. Parked in `inner` when this is dropped.
    posted: Slab<RW>,
    /// The receives of a batch, whose work is in `posted`.
    staging: RecvList,
}

/// The part shared with queue pairs.
pub(crate) struct SrqInner {
    // INVARIANT: created, and destroyed only in `drop`.
    raw: NonNull<ffi::ibv_srq>,
    queue: QueueId,
    id: OwnedQpId,
    limits: RecvLimits,
    /// The work in flight, after the drop of its owner.
    parked: Mutex<Vec<Box<dyn Any + Send>>>,
    /// The reserved entries for receives.
    books: Mutex<Books>,
    /// The queue pairs on the queue, by number.
    receivers: Receivers,
    kind: Kind,
    pd: ProtectionDomain,
}

/// The purpose of the queue.
pub(crate) enum Kind {
    Basic,
    /// With its XRC domain.
    Xrc {
        _domain: XrcDomain,
    },
    TagMatching,
}

// SAFETY: mutable parts are behind locks. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for SrqInner {}
// SAFETY: see `Send`.
unsafe impl Sync for SrqInner {}

/// `ibv_srq_attr`—The limits of a shared receive queue.
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Maximum number of receives in flight.
    pub max_wr: u32,
    /// Maximum number of elements of a receive.
    pub max_sge: u32,
    /// Number of receives below which an event is sent; 0 for no event.
    pub limit: u32,
}

impl<RW: Send + 'static> SharedReceiveQueue<RW> {
    /// The number of receives posted and not returned.
    pub fn in_flight(&self) -> usize {
        self.posted.len()
    }

    /// Maximum number of receives in flight.
    pub fn capacity(&self) -> usize {
        self.posted.limit() as usize
    }

    /// Returns the work completed by `wc`.
    ///
    /// # Errors
    /// The completion belongs to another queue; the error returns the completion.
    #[inline]
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completion<'p, RW>, WorkCompletion<'p>> {
        let id = wc.wr_id();
        if id.queue() != self.handle.inner.queue {
            return Err(wc);
        }
        match self.posted.take(id.sequence()) {
            Some(work) => Ok(Completion::new(work, wc)),
            None => Err(wc),
        }
    }

    /// `ibv_modify_srq(srq, IBV_SRQ_MAX_WR)`—Changes the maximum number of receives in flight. Enters the
    /// kernel, and allocates.
    ///
    /// # Errors
    /// - `InvalidInput`: more are in flight; or a completion queue has too few entries left for
    ///   more.
    /// - `EINVAL`: `max_wr` is more than the device allows.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device does not resize shared receive queues.
    ///
    /// The queue is unchanged then. After any other error, such as `ENOMEM`, the device may have
    /// begun to resize the queue, and the queue has failed: receives in flight still complete, and
    /// every later post, query, change, and queue pair on the queue is refused with `BrokenPipe`.
    /// Drop the queue and its queue pairs, and create new ones.
    ///
    /// # References
    /// [ibv_modify_srq(3)](https://man7.org/linux/man-pages/man3/ibv_modify_srq.3.html)
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    #[doc(alias = "ibv_modify_srq")]
    pub fn resize(&mut self, max_wr: u32) -> Result<()> {
        let detail = || format!("{max_wr} receives");
        let refuse = |reason: String| {
            let kind = io::ErrorKind::InvalidInput;
            Err(Error::refused("ibv_modify_srq", kind, reason).detail(detail()))
        };
        if max_wr > MAX_IN_FLIGHT {
            return refuse(format!("at most {MAX_IN_FLIGHT}"));
        }
        if (max_wr as usize) < self.in_flight() {
            return refuse(format!("{} are in flight", self.in_flight()));
        }
        let mut books = self.handle.inner.books();
        books.check_failure("ibv_modify_srq")?;
        let more = books.reserve_for(max_wr)?;
        let mut attr = ffi::ibv_srq_attr::zeroed();
        attr.max_wr = max_wr;
        let modified = self.modify(attr, ffi::ibv_srq_attr_mask::IBV_SRQ_MAX_WR);
        match &modified {
            Ok(()) => {
                books.resized(max_wr, more);
                self.posted.set_limit(max_wr);
            }
            Err(err) if err.raw_os_error().is_some_and(|errno| !keeps_size(errno)) => {
                books.fail();
                self.posted.close();
            }
            Err(_) => {}
        }
        drop(books);
        modified
            .map_err(|err| hint::limits::srq(err.detail(detail()), self.pd().context(), max_wr, 0))
    }

    /// The shareable part of the queue, for creating queue pairs while another thread posts receives.
    pub fn handle(&self) -> &SrqHandle {
        &self.handle
    }
}

impl<RW: Scatter + Send + 'static> SharedReceiveQueue<RW> {
    /// `ibv_post_srq_recv`—Posts memory for one message. The memory belongs to the queue until
    /// returned by its completion.
    ///
    /// Does not block, enter the kernel (on most devices) or allocate.
    ///
    /// # Errors
    /// The error returns the work:
    /// - `WouldBlock`: as many receives are in flight as the queue can hold.
    /// - `BrokenPipe`: a [resize](Self::resize) of the queue has failed.
    /// - `InvalidInput`: the work has more elements than the queue was made for, an element of 2 GiB
    ///   or more, or more than 2 GiB.
    /// - `EINVAL`, `ENOMEM`: the device refused the request.
    ///
    /// After a failure without a proof that the device does not have the receive, as for
    /// [`SendQueue::post`](crate::qp::SendQueue::post), the error returns no work, which stays in flight.
    ///
    /// # References
    /// [ibv_post_srq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html)
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub fn post(&mut self, work: RW) -> Result<(), PostError<RW>> {
        self.post_gathered::<false>(work)
    }

    /// Posts work, with all elements if `ALL`, else with those of the [usual case](SgeList::pass).
    #[inline(always)]
    fn post_gathered<const ALL: bool>(&mut self, work: RW) -> Result<(), PostError<RW>> {
        let mut sges = SgeList::pass(ALL);
        work.gather(&mut sges);
        if !sges.finish() {
            return self.post_all(work);
        }
        let slot = match self.slot_for(&sges) {
            Ok(slot) => slot,
            Err(error) => return Err(PostError::refused(work, error)),
        };
        let (mut single, num_sge) = (MaybeUninit::uninit(), sges.count());
        let mut wr = ffi::ibv_recv_wr {
            wr_id: self.handle.inner.queue.wr_id(slot).0,
            next: ptr::null_mut(),
            sg_list: sges.lay_out(&mut single),
            num_sge,
        };
        let mut bad = BadWr::new();
        // SAFETY: the queue is created (invariant of `SrqInner`) and has not failed, since it has a
        // slot, and `wr` is one complete request. Assumption: C reads requests and their elements
        // only before a post returns. The described memory stays as `Scatter` promises until `work`
        // is dropped, and so until the queue is destroyed or the completion has come.
        let errno = unsafe { ffi::ibv_post_srq_recv(self.as_raw(), &raw mut wr, bad.as_out()) };
        let effect = match errno {
            0 => Effect::Posted(1),
            _ => bad.effect(self.pd().context(), QueueKind::SharedReceive, &raw const wr),
        };
        if effect == Effect::Posted(0) {
            let error = bad_wr::failure(CALL, errno, effect, QueueKind::SharedReceive);
            let error = bad_wr::explain_receive(error, &work);
            return Err(PostError::refused(work, error));
        }
        self.posted.put(slot, work);
        bad_wr::result_of_posted(CALL, errno, effect, QueueKind::SharedReceive)
    }

    #[cold]
    #[inline(never)]
    fn post_all(&mut self, work: RW) -> Result<(), PostError<RW>> {
        self.post_gathered::<true>(work)
    }
}

const CALL: &str = "ibv_post_srq_recv";

impl<RW: Send + 'static> SharedReceiveQueue<RW> {
    /// The slot for the work of these elements.
    #[inline]
    fn slot_for(&self, sges: &SgeList) -> Result<u32> {
        if let Some(error) = self.handle.inner.limits.refusal(CALL, sges) {
            return Err(error);
        }
        self.posted.free().ok_or_else(|| self.no_slot())
    }

    /// Why there is no slot.
    #[cold]
    fn no_slot(&self) -> Error {
        if let Err(failed) = self.handle.inner.books().check_failure(CALL) {
            return failed;
        }
        let reason =
            "every receive that the queue can hold is in flight; poll its completion queue";
        Error::would_block(CALL, reason)
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
        self.handle.inner.park(Box::new(posted));
    }
}

impl<RW: Send + 'static> Deref for SharedReceiveQueue<RW> {
    type Target = SrqHandle;

    fn deref(&self) -> &SrqHandle {
        &self.handle
    }
}

impl SrqInner {
    pub(crate) fn as_raw(&self) -> *mut ffi::ibv_srq {
        self.raw.as_ptr()
    }

    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    pub(crate) fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    /// Keeps work in flight until the queue is destroyed.
    fn park(&self, work: Box<dyn Any + Send>) {
        let mut parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        parked.push(work);
    }

    /// Whether a queue whose destruction failed is gone all the same, and nothing writes to its
    /// receives any more.
    fn is_removed(&self, errno: i32) -> bool {
        let ctx = self.pd.context();
        ctx.is_removed(errno)
            && (!quirk::copies_messages(ctx) || self.books().discard_completions())
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves entries of a completion queue for the receives of this queue: once, for all queue
    /// pairs that use the two together.
    pub(crate) fn reserve_on(&self, call: &'static str, cq: &CqHandle) -> Result<Arc<Entries>> {
        self.books().reserve_on(call, cq)
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        let errno = self.pd.context().destroy(|| {
            // SAFETY: the queue exists and is destroyed once, here; queue pairs on the queue hold an
            // `Arc` of `self`, so none is left. The domain is allocated, since its field is dropped
            // later. A resize may have failed. Assumption: a queue whose resize has failed can be
            // destroyed.
            unsafe { ffi::ibv_destroy_srq(self.raw.as_ptr()) }
        });
        if errno != 0 && !self.is_removed(errno) {
            // The device may still write to memory in flight, so the works are leaked.
            let parked = self
                .parked
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            #[expect(clippy::mem_forget, reason = "the device may still have it")]
            mem::forget(mem::take(parked));
            let books = self.books.get_mut();
            books.unwrap_or_else(PoisonError::into_inner).give_up();
        }
    }
}
