//! Receive work queues: receive queues without a queue pair, for spreading packets.

use std::{
    any::Any,
    fmt, io, mem,
    ptr::{self, NonNull},
    sync::{Arc, Mutex, PoisonError},
};

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_wq_attr_mask, ibv_wq_flags, ibv_wq_init_attr_mask, ibv_wq_state};

use crate::{
    bad_wr::{self, BadWr, Effect, QueueKind},
    cq::{CqHandle, Reservation, WorkCompletion},
    error::{Error, PostError, Result, cvt_errno, cvt_ptr},
    hint,
    mr::Buf,
    pd::ProtectionDomain,
    qp::{Completion, inflight::InFlight, refusal, unordered::Order},
    quirk,
    recv_limits::RecvLimits,
    work::{MAX_SGE, Scatter, SgeList},
    wr_id::{MAX_IN_FLIGHT, OwnedQpId, QpId, QueueId},
};

bitflags! {
    /// `ibv_wq_flags`—Options for a work queue's handling of packets. Unknown bits reach no device.
    #[doc(alias = "ibv_wq_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WqFlags: u32 {
        /// Strips the VLAN tag from packets.
        #[doc(alias = "IBV_WQ_FLAGS_CVLAN_STRIPPING")]
        const CVLAN_STRIPPING = ibv_wq_flags::IBV_WQ_FLAGS_CVLAN_STRIPPING.0;
        /// Keeps the frame check sequence.
        #[doc(alias = "IBV_WQ_FLAGS_SCATTER_FCS")]
        const SCATTER_FCS = ibv_wq_flags::IBV_WQ_FLAGS_SCATTER_FCS.0;
        /// Without a receive, waits for a while before dropping a packet.
        #[doc(alias = "IBV_WQ_FLAGS_DELAY_DROP")]
        const DELAY_DROP = ibv_wq_flags::IBV_WQ_FLAGS_DELAY_DROP.0;
    }
}

/// `ibv_wq`—A receive work queue: a receive queue without a queue pair.
///
/// Packets reach the queue through an [`IndirectionTable`](crate::rss::IndirectionTable). Posted
/// work belongs to the queue until returned by a completion, as with a queue pair; the completions
/// carry the queue's [id](Self::id).
///
/// # Examples
/// ```no_run
/// # fn f(pd: &verbs::ProtectionDomain, cq: &verbs::cq::CqHandle) -> verbs::Result<()> {
/// let mut wq = pd.wq_builder(cq).max_wr(16).create()?;
/// wq.to_ready()?;
/// wq.post(pd.alloc_buf(2048)?)?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_create_wq(3)](https://man7.org/linux/man-pages/man3/ibv_create_wq.3.html)
#[doc(alias = "ibv_destroy_wq")]
#[doc(alias = "ibv_wq")]
pub struct WorkQueue<RW: Send + 'static = Buf> {
    inner: Arc<WqInner>,
    // INVARIANT: holds the work of every receive posted and not returned. Parked in `inner` when
    // this is dropped.
    in_flight: InFlight<RW>,
    limits: RecvLimits,
    id: OwnedQpId,
}

/// The part shared with indirection tables.
pub(super) struct WqInner {
    // INVARIANT: created, and destroyed only in `drop`.
    pub(crate) raw: NonNull<ffi::ibv_wq>,
    /// The work in flight after the drop of their owner, and their number.
    parked: Mutex<(Option<Box<dyn Any + Send>>, u32)>,
    reservation: Mutex<Option<Reservation>>,
    pub(crate) pd: ProtectionDomain,
}

// SAFETY: mutable parts are behind locks. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for WqInner {}
// SAFETY: see `Send`.
unsafe impl Sync for WqInner {}

/// Builder of a [`WorkQueue`].
#[derive(Debug)]
#[must_use = "call `create` to make the queue"]
pub struct WorkQueueBuilder<'a> {
    pd: &'a ProtectionDomain,
    cq: &'a CqHandle,
    max_wr: u32,
    max_sge: u32,
    flags: WqFlags,
}

impl ProtectionDomain {
    /// Returns the builder of a receive work queue in this domain, with completions on `cq`.
    pub fn wq_builder<'a>(&'a self, cq: &'a CqHandle) -> WorkQueueBuilder<'a> {
        WorkQueueBuilder {
            pd: self,
            cq,
            max_wr: 1,
            max_sge: 1,
            flags: WqFlags::empty(),
        }
    }
}

impl WorkQueueBuilder<'_> {
    /// Maximum number of receives in flight; 1 if not set.
    pub fn max_wr(mut self, receives: u32) -> Self {
        self.max_wr = receives;
        self
    }

    /// Maximum number of elements of a receive; 1 if not set, and at most [`MAX_SGE`].
    pub fn max_sge(mut self, elements: u32) -> Self {
        self.max_sge = elements;
        self
    }

    /// Options for the handling of packets.
    #[doc(alias = "IBV_WQ_INIT_ATTR_FLAGS")]
    pub fn flags(mut self, flags: WqFlags) -> Self {
        self.flags |= flags.intersection(WqFlags::all());
        self
    }

    /// `IBV_WQ_FLAGS_PCI_WRITE_END_PADDING`—Lets the device pad the end of a packet in memory to a cache line, which
    /// makes the write faster on some machines.
    ///
    /// # Safety
    /// - The memory of each receive ends at the end of a cache line, or is followed by bytes of the line that the
    ///   device may overwrite.
    #[doc(alias = "IBV_WQ_FLAGS_PCI_WRITE_END_PADDING")]
    pub unsafe fn pci_write_end_padding(mut self) -> Self {
        let padding = ibv_wq_flags::IBV_WQ_FLAGS_PCI_WRITE_END_PADDING;
        self.flags |= WqFlags::from_bits_retain(padding.0);
        self
    }

    /// `ibv_create_wq(ctx, …)`—Creates the queue, for work of one [`Buf`] each. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has no work queues, or not with these flags.
    /// - `InvalidInput`: the completion queue has too few entries left, or belongs to another
    ///   device; or a number is beyond this crate's limits.
    /// - `EINVAL`: a number is more than the device allows.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_wq(3)](https://man7.org/linux/man-pages/man3/ibv_create_wq.3.html)
    #[doc(alias = "IBV_WQT_RQ")]
    #[doc(alias = "ibv_create_wq")]
    pub fn create(self) -> Result<WorkQueue> {
        self.create_for()
    }

    /// `ibv_create_wq(ctx, …)`—Creates the queue as [`create`](Self::create) does, for work of the
    /// caller's own type.
    ///
    /// # Errors
    /// As for [`create`](Self::create).
    #[doc(alias = "ibv_create_wq")]
    pub fn create_for<RW: Send + 'static>(self) -> Result<WorkQueue<RW>> {
        const CALL: &str = "ibv_create_wq";
        let ctx = self.pd.context();
        let detail = format!("{} receives of {} elements", self.max_wr, self.max_sge);
        let refuse = |reason: String| {
            let kind = io::ErrorKind::InvalidInput;
            Err(Error::refused(CALL, kind, reason).detail(detail.clone()))
        };
        if self.max_wr > MAX_IN_FLIGHT || self.max_sge as usize > MAX_SGE {
            let reason = format!("at most {MAX_IN_FLIGHT} receives of {MAX_SGE} elements");
            return refuse(reason);
        }
        ctx.check_same(CALL, "the completion queue", self.cq.context())?;
        let reservation = self.cq.reserve(CALL, self.max_wr)?;
        let mut attr = ffi::ibv_wq_init_attr::zeroed();
        attr.wq_type = ffi::ibv_wq_type::IBV_WQT_RQ;
        attr.max_wr = self.max_wr;
        attr.max_sge = self.max_sge;
        attr.pd = self.pd.as_raw();
        attr.cq = self.cq.as_raw();
        if !self.flags.is_empty() {
            attr.comp_mask = ibv_wq_init_attr_mask::IBV_WQ_INIT_ATTR_FLAGS.0;
            attr.create_flags = self.flags.bits();
        }
        // SAFETY: the context is open, and the domain and the completion queue exist, for as long
        // as `self` borrows them, and then for as long as `WqInner` holds them. C writes only
        // `attr`. Assumption: C keeps no pointer to the attributes.
        let raw = unsafe { ffi::ibv_create_wq(ctx.as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw).map_err(|err| {
            hint::limits::work_queue(err.detail(detail), ctx, self.max_wr, self.max_sge)
        })?;
        let id = OwnedQpId::new();
        let inner = WqInner {
            raw,
            parked: Mutex::default(),
            reservation: Mutex::new(Some(reservation)),
            pd: self.pd.clone(),
        };
        Ok(WorkQueue {
            inner: Arc::new(inner),
            in_flight: InFlight::new(
                QueueId::receive(id.id()),
                self.max_wr,
                Order::of_receives(self.pd.context()),
            ),
            limits: RecvLimits::new(self.pd, self.max_sge),
            id,
        })
    }
}

impl<RW: Send + 'static> WorkQueue<RW> {
    /// The name of this queue in this process, carried by its completions as if it were a queue
    /// pair's. A [reset](Self::to_reset) assigns another one.
    pub fn id(&self) -> QpId {
        self.in_flight.next().qp()
    }

    /// The number of the queue in events.
    pub fn wq_num(&self) -> u32 {
        // SAFETY: the queue is created (invariant), and its number never changes.
        unsafe { (*self.as_raw()).wq_num }
    }

    /// The number of receives posted and not returned.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() as usize
    }

    /// Maximum number of receives in flight.
    pub fn capacity(&self) -> usize {
        self.in_flight.limit() as usize
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_wq {
        self.inner.raw.as_ptr()
    }

    pub(super) fn share(&self) -> Arc<WqInner> {
        Arc::clone(&self.inner)
    }

    /// Returns the work completed by `wc`.
    ///
    /// # Errors
    /// The completion belongs to another queue, or is stale; the error returns the completion.
    pub fn complete<'p>(
        &mut self,
        wc: WorkCompletion<'p>,
    ) -> Result<Completion<'p, RW>, WorkCompletion<'p>> {
        match self.in_flight.take(wc.wr_id(), drop) {
            Some(work) => Ok(Completion::new(work, wc)),
            None => Err(wc),
        }
    }

    /// `ibv_modify_wq(wq, IBV_WQS_RDY)`—Makes the queue ready: packets fill posted receives.
    ///
    /// # Errors
    /// - `EINVAL`: the queue has failed. Reset it first.
    ///
    /// # References
    /// [ibv_modify_wq(3)](https://man7.org/linux/man-pages/man3/ibv_modify_wq.3.html)
    #[doc(alias = "IBV_WQS_RDY")]
    #[doc(alias = "ibv_modify_wq")]
    pub fn to_ready(&mut self) -> Result<()> {
        self.modify(ibv_wq_state::IBV_WQS_RDY)
    }

    /// `ibv_modify_wq(wq, IBV_WQS_ERR)`—Puts the queue into the error state: work in flight returns
    /// with the status [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// # Errors
    /// The device refused, or is gone.
    ///
    /// # References
    /// [ibv_modify_wq(3)](https://man7.org/linux/man-pages/man3/ibv_modify_wq.3.html)
    #[doc(alias = "IBV_WQS_ERR")]
    #[doc(alias = "ibv_modify_wq")]
    pub fn to_error(&mut self) -> Result<()> {
        self.modify(ibv_wq_state::IBV_WQS_ERR)
    }

    /// `ibv_modify_wq(wq, IBV_WQS_RESET)`—Resets the queue, and returns the work in flight, in
    /// posting order.
    ///
    /// # Errors
    /// - `InvalidInput`: the completion queue has no room for old completions, not polled yet,
    ///   beside new ones.
    /// - Any error of the device.
    ///
    /// # References
    /// [ibv_modify_wq(3)](https://man7.org/linux/man-pages/man3/ibv_modify_wq.3.html)
    #[doc(alias = "IBV_WQS_RESET")]
    #[doc(alias = "ibv_modify_wq")]
    pub fn to_reset(&mut self) -> Result<Vec<RW>> {
        let in_flight = self.in_flight.len();
        let reservation = self.inner.reservation.lock();
        let reservation = reservation.unwrap_or_else(PoisonError::into_inner);
        let stale = reservation
            .as_ref()
            .map(|reservation| reservation.more_for_stale("ibv_modify_wq", in_flight));
        drop(reservation);
        let stale = stale.transpose()?;
        self.modify(ibv_wq_state::IBV_WQS_RESET)?;
        if let Some(stale) = stale {
            stale.keep();
        }
        // The device has not used the works since the reset. Old completions, not polled yet or
        // held, carry the former id.
        self.id = OwnedQpId::new();
        Ok(self.in_flight.restart(QueueId::receive(self.id.id())))
    }

    fn modify(&mut self, state: ibv_wq_state) -> Result<()> {
        self.inner.pd.context().check_process("ibv_modify_wq")?;
        let mut attr = ffi::ibv_wq_attr::zeroed();
        attr.attr_mask = ibv_wq_attr_mask::IBV_WQ_ATTR_STATE.0;
        attr.wq_state = state;
        // SAFETY: the queue is created (invariant). Assumption: C keeps no pointer to the
        // attributes.
        let errno = unsafe { ffi::ibv_modify_wq(self.as_raw(), &raw mut attr) };
        cvt_errno("ibv_modify_wq", errno).map_err(|err| err.detail(format!("to {state:?}")))
    }
}

impl<RW: Scatter + Send + 'static> WorkQueue<RW> {
    /// `ibv_post_wq_recv`—Posts memory for one packet. The memory belongs to the queue until
    /// returned by its completion.
    ///
    /// Does not block, enter the kernel (on most devices) or allocate.
    ///
    /// # Errors
    /// - `WouldBlock`: the queue is full.
    /// - `InvalidInput`: more elements than the queue was made for, an element of 2 GiB or more, or
    ///   more than 2 GiB.
    /// - `EINVAL`: the queue is not ready.
    ///
    /// The error returns the work, except after a failure without a proof that the device does not have
    /// it, as for [`SendQueue::post`](crate::qp::SendQueue::post): then the work stays in flight.
    ///
    /// # References
    /// [ibv_post_wq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_wq_recv.3.html)
    #[doc(alias = "ibv_post_wq_recv")]
    pub fn post(&mut self, work: RW) -> Result<(), PostError<RW>> {
        const CALL: &str = "ibv_post_wq_recv";
        let mut sges = SgeList::of(&work);
        if let Some(error) = self.limits.refusal(CALL, &sges) {
            return Err(PostError::refused(work, error));
        }
        let raw = self.as_raw();
        let Some(vacancy) = self.in_flight.vacancy() else {
            return Err(PostError::refused(work, refusal::full(CALL)));
        };
        let mut wr = ffi::ibv_recv_wr {
            wr_id: vacancy.id().0,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.count(),
        };
        let mut bad = BadWr::new();
        // SAFETY: the queue is created (invariant), and `wr` is one complete request. Assumption: C
        // reads requests and their elements only before a post returns. The described memory stays
        // as `Scatter` promises until `work` is dropped, and so until the queue is destroyed or the
        // completion has come.
        let errno = unsafe { ffi::ibv_post_wq_recv(raw, &raw mut wr, bad.as_out()) };
        let effect = match errno {
            0 => Effect::Posted(1),
            _ => bad.effect(self.inner.pd.context(), QueueKind::Work, &raw const wr),
        };
        if effect == Effect::Posted(0) {
            let error = bad_wr::failure(CALL, errno, effect, QueueKind::Work);
            return Err(PostError::refused(work, error));
        }
        vacancy.fill(work);
        bad_wr::result_of_posted(CALL, errno, effect, QueueKind::Work)
    }
}

impl<RW: Send + 'static> Drop for WorkQueue<RW> {
    fn drop(&mut self) {
        let unreaped = self.in_flight.len();
        let empty = InFlight::new(QueueId::receive(self.id()), 0, Order::Posted);
        let in_flight = mem::replace(&mut self.in_flight, empty);
        let parked = self.inner.parked.lock();
        *parked.unwrap_or_else(PoisonError::into_inner) = (Some(Box::new(in_flight)), unreaped);
    }
}

impl Drop for WqInner {
    fn drop(&mut self) {
        let errno = self.pd.context().destroy(|| {
            // SAFETY: the queue exists and is destroyed once, here; tables with this queue hold an
            // `Arc` of `self`, so none is left. The domain and the completion queue exist, since their
            // fields are dropped later.
            unsafe { ffi::ibv_destroy_wq(self.raw.as_ptr()) }
        });
        let parked = self.parked.get_mut();
        let (parked, unreaped) = parked.unwrap_or_else(PoisonError::into_inner);
        let reservation = self.reservation.get_mut();
        let reservation = reservation.unwrap_or_else(PoisonError::into_inner);
        let ctx = self.pd.context();
        let discarded = || {
            let reservation = reservation.as_ref();
            reservation.is_none_or(Reservation::discard_completions)
        };
        let removed = ctx.is_removed(errno) && (!quirk::copies_messages(ctx) || discarded());
        if errno == 0 || removed {
            if let Some(reservation) = reservation {
                reservation.unreaped = *unreaped;
            }
        } else {
            // The device may still write to memory in flight, and complete it: works and entries
            // are leaked.
            #[expect(clippy::mem_forget, reason = "the device may still have it")]
            mem::forget((parked.take(), reservation.take()));
        }
    }
}

impl<RW: Send + 'static> fmt::Debug for WorkQueue<RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkQueue")
            .field("wq_num", &self.wq_num())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
