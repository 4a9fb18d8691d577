//! Tag matching: shared receive queues with receives for messages with a tag.

mod completion;
mod header;

use std::{fmt, io, mem, sync::Arc};

use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_ops_wr_opcode as op, ibv_srq_init_attr_mask as has};

use super::{
    Kind, SharedReceiveQueue, SrqAttr, SrqBatch, SrqInner,
    create::{adopt, check, detail},
    entries::Books,
    slab::Slab,
};
use crate::{
    attr::TagMatchingCaps,
    bad_wr::{self, BadWr, Effect, QueueKind},
    cq::CqHandle,
    error::{Error, PostError, Result, cvt_ptr},
    mr::Buf,
    pd::ProtectionDomain,
    recv_limits::RecvLimits,
    work::{MAX_SGE, Scatter, SgeList},
    wr_id::{MAX_IN_FLIGHT, OwnedQpId, QueueId},
};

pub use self::{
    completion::{TagCompletion, TagEvent},
    header::{RendezvousHeader, TagHeader, TagOperation},
};

const CREATE: &str = "ibv_create_srq_ex";
const POST: &str = "ibv_post_srq_ops";

/// `IBV_SRQT_TM`—A shared receive queue whose device puts messages into buffers by their tags.
///
/// The queue has two kinds of memory. A *tagged* buffer is [added](Self::add) to a list, and
/// receives the first message with a matching tag. An untagged receive is [posted](Self::post), and
/// receives a message without a match, with its [header](TagHeader): an *unexpected* message.
///
/// After an unexpected message, the device matches no newly added tags until notified that the
/// program has seen the message; otherwise a later message could overtake it. This queue counts the
/// unexpected messages handed to [`complete`](Self::complete), and every operation reports the
/// count to the device. So search the unexpected messages for a match before adding a tag. Where a
/// completion [requests a sync](TagCompletion::sync_requested), and there is nothing else to post,
/// call [`sync`](Self::sync).
///
/// The queue pairs are reliable connections that [receive by the
/// queue](crate::qp::QueuePairBuilder::tag_matching). They cannot send: the device uses their send
/// queues to read the data of a rendezvous.
///
/// A tagged buffer belongs to the queue until its message is complete, or the buffer has been
/// removed or has failed. If a completion is dropped instead of handed to `complete`, the buffer
/// stays with the queue until the queue and its last queue pair have been destroyed.
///
/// # Examples
/// ```no_run
/// # fn f(pd: &verbs::ProtectionDomain, cq: &mut verbs::CompletionQueue) -> verbs::Result<()> {
/// use verbs::{Buf, srq::{TagEvent, TagMatchingQueue, TagMatchingCapacity, TagPattern}};
/// let capacity = TagMatchingCapacity { max_wr: 16, max_sge: 1, max_num_tags: 16, max_ops: 4 };
/// let mut queue: TagMatchingQueue = pd.create_tag_matching(cq, capacity)?;
/// queue.post(pd.alloc_buf(4096)?)?; // for unexpected messages
/// queue.add(TagPattern::exact(7), pd.alloc_buf(4096)?)?;
/// for wc in cq.poll()? {
///     let len = wc.byte_len();
///     match queue.complete(wc).expect("only this queue completes here").event {
///         TagEvent::Received { work, .. } => println!("tag 7: {:?}", &work[..len]),
///         TagEvent::Unexpected(work) => println!("another: {:?}", &work[..len]),
///         event => println!("{event:?}"),
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_create_srq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html),
/// [ibv_post_srq_ops(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_ops.3.html)
#[doc(alias = "IBV_SRQT_TM")]
pub struct TagMatchingQueue<RW: Send + 'static = Buf> {
    srq: SharedReceiveQueue<RW>,
    /// Names the tagged buffers, as receives, and the operations on their list, as sends.
    id: OwnedQpId,
    // INVARIANT: holds the work of every tagged buffer still open to the device's writes. Parked in
    // the shared part of `srq` when this is dropped.
    entries: Slab<TagListEntry<RW>>,
    /// The operations in flight.
    operations: Slab<PendingOperation>,
    /// The number of the next entry.
    next: u64,
    unexpected: u32,
    tagged: RecvLimits,
}

/// The limits of a [`TagMatchingQueue`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMatchingCapacity {
    /// Maximum number of untagged receives in flight.
    pub max_wr: u32,
    /// Maximum number of elements in a receive. A tagged buffer's elements are limited by the
    /// [device](TagMatchingCaps::max_sge).
    pub max_sge: u32,
    /// Maximum number of tagged buffers.
    pub max_num_tags: u32,
    /// Maximum number of list operations in flight.
    pub max_ops: u32,
}

/// The tags matched by a tagged buffer: those `t` with `t & mask == tag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagPattern {
    /// The required values of the bits in the mask. All others are zero.
    pub tag: u64,
    /// The bits to compare.
    pub mask: u64,
}

/// A tagged buffer on the list of a [`TagMatchingQueue`]: its name there, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagEntry {
    slot: u32,
    number: u64,
}

/// The state of a tagged buffer.
struct TagListEntry<RW> {
    // INVARIANT: present as long as the device may write to the buffer.
    work: Option<RW>,
    number: u64,
    /// C's name for the buffer.
    handle: u32,
    /// The number of operations on the buffer in flight. Until their completion, C must not reuse
    /// the handle, and this slot stays.
    outstanding: u32,
    /// A removal is in progress.
    removing: bool,
    /// A rendezvous has matched that the device leaves to the program.
    incomplete: bool,
}

/// A buffer added in this slot.
struct Added {
    slot: u32,
    posted: Posted,
    /// C's name for the buffer, unless only assumed.
    handle: u32,
}

/// An operation that counts as posted.
enum Posted {
    Known,
    /// The post has failed, and the device may have the operation. Then a handle is unknown, so its
    /// buffer cannot be removed.
    Assumed(Error),
}

#[derive(Clone, Copy)]
enum PendingOperation {
    Add(u32),
    Remove(u32),
    Sync,
}

impl Posted {
    fn into_result(self) -> Result<()> {
        match self {
            Self::Known => Ok(()),
            Self::Assumed(error) => Err(error),
        }
    }
}

impl TagPattern {
    /// The pattern that matches only this tag.
    pub const fn exact(tag: u64) -> Self {
        Self {
            tag,
            mask: u64::MAX,
        }
    }
}

impl ProtectionDomain {
    /// `ibv_create_srq_ex(ctx, IBV_SRQT_TM)`—Creates a shared receive queue with tag matching.
    /// All requests complete in `cq`; tags are reported there if `cq` is an
    /// [`ExtendedCq`](crate::cq::ExtendedCq) with [`TM_INFO`](crate::cq::WcFields::TM_INFO). Enters
    /// the kernel.
    ///
    /// # Errors
    /// - `Unsupported`: the device does not match tags, or has no extended attributes to report so.
    /// - `InvalidInput`: the completion queue has too few entries left, or is of another device; or
    ///   a number is beyond this crate's limits.
    /// - `EINVAL`: a number is more than the [device](crate::attr::DeviceAttr::tm_caps) allows.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_srq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html)
    #[doc(alias = "IBV_SRQT_TM")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TM")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_tag_matching<RW: Send + 'static>(
        &self,
        cq: &CqHandle,
        capacity: TagMatchingCapacity,
    ) -> Result<TagMatchingQueue<RW>> {
        let TagMatchingCapacity {
            max_wr,
            max_sge,
            max_num_tags,
            max_ops,
        } = capacity;
        check(CREATE, max_wr, max_sge)?;
        let refuse = |kind, reason: String| {
            let err = Error::refused(CREATE, kind, reason);
            Err(err.detail(format!("{max_num_tags} tags, {max_ops} operations")))
        };
        if max_num_tags > MAX_IN_FLIGHT || max_ops > MAX_IN_FLIGHT {
            let reason = format!("at most {MAX_IN_FLIGHT} of each");
            return refuse(io::ErrorKind::InvalidInput, reason);
        }
        let ctx = self.context();
        ctx.check_same(CREATE, "the completion queue", cq.context())?;
        let caps: TagMatchingCaps = self.context().query_device()?.tm_caps();
        if caps.max_num_tags == 0 {
            let reason = format!("{} does not match tags", self.context().name());
            return refuse(io::ErrorKind::Unsupported, reason);
        }
        // Each operation has a completion, and each buffer up to two: for its match, and for the
        // complete message.
        let extra = max_num_tags.saturating_mul(2).saturating_add(max_ops);
        let books = Books::on(CREATE, cq, max_wr, extra)?;
        let mask = has::IBV_SRQ_INIT_ATTR_TYPE | has::IBV_SRQ_INIT_ATTR_PD;
        let mask = mask | has::IBV_SRQ_INIT_ATTR_CQ | has::IBV_SRQ_INIT_ATTR_TM;
        let mut attr = ffi::ibv_srq_init_attr_ex::zeroed();
        attr.attr.max_wr = max_wr;
        attr.attr.max_sge = max_sge;
        attr.comp_mask = mask.0;
        attr.srq_type = ffi::ibv_srq_type::IBV_SRQT_TM;
        attr.pd = self.as_raw();
        attr.cq = cq.as_raw();
        attr.tm_cap.max_num_tags = max_num_tags;
        attr.tm_cap.max_ops = max_ops;
        // SAFETY: the context and the objects exist for as long as they are borrowed, and then for
        // as long as the queue has its shares; C writes only `attr`. Assumption: C keeps no pointer
        // to the attributes.
        let raw = unsafe { ffi::ibv_create_srq_ex(self.context().as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CREATE, raw).map_err(|err| {
            let receives = detail(max_wr, max_sge);
            err.detail(format!(
                "{receives}, {max_num_tags} tags, {max_ops} operations"
            ))
        })?;
        // SAFETY: just created, with these.
        let srq = unsafe { adopt(raw, max_wr, max_sge, books, Kind::TagMatching, self) };
        Ok(TagMatchingQueue {
            srq,
            id: OwnedQpId::new(),
            entries: Slab::new(max_num_tags),
            operations: Slab::new(max_ops),
            next: 0,
            unexpected: 0,
            tagged: RecvLimits::shared(
                self,
                caps.max_sge.min(u32::try_from(MAX_SGE).unwrap_or(u32::MAX)),
            ),
        })
    }
}

impl<RW: Scatter + Send + 'static> TagMatchingQueue<RW> {
    /// `ibv_post_srq_recv`—Posts an untagged receive, for a message without a match.
    ///
    /// # Errors
    /// As for [`SharedReceiveQueue::post`].
    ///
    /// # References
    /// [ibv_post_srq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html)
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post(&mut self, work: RW) -> Result<(), PostError<RW>> {
        self.srq.post(work)
    }

    /// `ibv_post_srq_ops`, `IBV_WR_TAG_ADD`—Adds a tagged buffer to the list. The work belongs to
    /// the queue until its message is complete, or the buffer is removed.
    ///
    /// Does not block or enter the kernel. Completes with [`TagEvent::Added`], possibly after the
    /// message.
    ///
    /// # Errors
    /// The error returns the work:
    /// - `WouldBlock`: the maximum number of tagged buffers, or of operations in flight, is
    ///   reached.
    /// - `InvalidInput`: no tag can fit the pattern; or the work has more elements than the device
    ///   allows.
    /// - `ENOMEM`, `EINVAL`: the device refused the operation.
    ///
    /// After a failure without a proof that the device does not have the buffer, as for
    /// [`SendQueue::post`](crate::qp::SendQueue::post), the error returns no work. The buffer cannot be
    /// removed then, but returns with its message.
    ///
    /// # References
    /// [ibv_post_srq_ops(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_ops.3.html)
    #[doc(alias = "ibv_post_srq_ops")]
    #[doc(alias = "IBV_WR_TAG_ADD")]
    pub fn add(&mut self, pattern: TagPattern, work: RW) -> Result<TagEntry, PostError<RW>> {
        let mut sges = SgeList::of(&work);
        match self.try_add(pattern, &mut sges) {
            Ok(Added {
                slot,
                posted,
                handle,
            }) => {
                let number = self.next;
                self.next += 1;
                let entry = TagListEntry {
                    work: Some(work),
                    number,
                    handle,
                    outstanding: 1,
                    removing: matches!(posted, Posted::Assumed(_)),
                    incomplete: false,
                };
                self.entries.put(slot, entry);
                match posted {
                    Posted::Known => Ok(TagEntry { slot, number }),
                    Posted::Assumed(error) => Err(PostError { value: None, error }),
                }
            }
            Err(error) => Err(PostError::refused(work, error)),
        }
    }

    /// Adds memory to the list. The described memory must then stay as `Scatter` promises for as
    /// long as the device may write there.
    fn try_add(&mut self, pattern: TagPattern, sges: &mut SgeList) -> Result<Added> {
        let TagPattern { tag, mask } = pattern;
        let refuse = |kind, reason: String| Err(Error::refused(POST, kind, reason));
        if tag & !mask != 0 {
            let reason = format!("no tag can be {tag:#x} in the bits {mask:#x}");
            return refuse(io::ErrorKind::InvalidInput, reason);
        }
        if sges.len() > self.tagged.max_sge() as usize {
            let (found, limit) = (sges.len(), self.tagged.max_sge());
            let reason = format!("{found} elements, and a tagged buffer has at most {limit}");
            return refuse(io::ErrorKind::InvalidInput, reason);
        }
        if let Some(error) = self.tagged.refusal(POST, sges) {
            return Err(error);
        }
        let Some(slot) = self.entries.free() else {
            let reason = "there are as many tagged buffers as the queue can hold";
            return Err(Error::would_block(POST, reason));
        };
        let mut wr = ffi::ibv_ops_wr::zeroed();
        wr.opcode = op::IBV_WR_TAG_ADD;
        wr.tm.add.recv_wr_id = QueueId::receive(self.id.id()).wr_id(slot).0;
        wr.tm.add.sg_list = sges.as_mut_ptr();
        wr.tm.add.num_sge = sges.count();
        wr.tm.add.tag = tag;
        wr.tm.add.mask = mask;
        // SAFETY: the elements are `sges`', which outlives the call. The described memory stays as
        // `Scatter` promises until the work is dropped, and so until the queue is destroyed or the
        // device is done with the memory.
        let posted = unsafe { self.execute(&mut wr, PendingOperation::Add(slot)) }?;
        let handle = wr.tm.handle;
        Ok(Added {
            slot,
            posted,
            handle,
        })
    }
}

impl<RW: Send + 'static> TagMatchingQueue<RW> {
    /// Begins a batch of untagged receives.
    pub fn batch(&mut self) -> SrqBatch<'_, RW> {
        self.srq.batch()
    }

    /// `ibv_post_srq_ops`, `IBV_WR_TAG_DEL`—Requests the removal of a tagged buffer from the list.
    ///
    /// Does not block or enter the kernel. Completes with [`TagEvent::Removed`], which returns the
    /// work, or, if a message has arrived before, with [`TagEvent::NotRemoved`].
    ///
    /// # Errors
    /// - `InvalidInput`: the buffer is not on the list any more, or is being removed.
    /// - `WouldBlock`: the maximum number of operations in flight is reached.
    /// - `ENOMEM`, `EINVAL`: the device refused the operation.
    ///
    /// # References
    /// [ibv_post_srq_ops(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_ops.3.html)
    #[doc(alias = "ibv_post_srq_ops")]
    #[doc(alias = "IBV_WR_TAG_DEL")]
    pub fn remove(&mut self, entry: TagEntry) -> Result<()> {
        let TagEntry { slot, number } = entry;
        let found = self.entries.get_mut(slot);
        let found =
            found.filter(|found| found.number == number && found.work.is_some() && !found.removing);
        let Some(handle) = found.map(|found| found.handle) else {
            let reason = "the buffer is not on the list any more, or is being removed";
            return Err(Error::refused(POST, io::ErrorKind::InvalidInput, reason));
        };
        let mut wr = ffi::ibv_ops_wr::zeroed();
        wr.opcode = op::IBV_WR_TAG_DEL;
        wr.tm.handle = handle;
        // SAFETY: there are no elements. C knows the handle: the entry has operations or a message
        // still to complete, and until then C does not reuse the handle.
        let posted = unsafe { self.execute(&mut wr, PendingOperation::Remove(slot)) }?;
        if let Some(found) = self.entries.get_mut(slot) {
            found.removing = true;
            found.outstanding += 1;
        }
        posted.into_result()
    }

    /// `ibv_post_srq_ops`, `IBV_WR_TAG_SYNC`—Reports the number of unexpected messages seen by the
    /// program to the device, as every other operation does, and nothing else.
    ///
    /// Does not block or enter the kernel. Completes with [`TagEvent::Synced`].
    ///
    /// # Errors
    /// - `WouldBlock`: the maximum number of operations in flight is reached.
    /// - `ENOMEM`, `EINVAL`: the device refused the operation.
    ///
    /// # References
    /// [ibv_post_srq_ops(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_ops.3.html)
    #[doc(alias = "IBV_OPS_TM_SYNC")]
    #[doc(alias = "ibv_post_srq_ops")]
    #[doc(alias = "IBV_WR_TAG_SYNC")]
    pub fn sync(&mut self) -> Result<()> {
        let mut wr = ffi::ibv_ops_wr::zeroed();
        wr.opcode = op::IBV_WR_TAG_SYNC;
        // SAFETY: there are no elements, and no handle.
        unsafe { self.execute(&mut wr, PendingOperation::Sync) }?.into_result()
    }

    /// Posts one operation.
    ///
    /// # Safety
    /// - The elements of `wr` are valid during the call, and the described memory for as long as
    ///   the device may write there; its handle, if needed, is known to C.
    unsafe fn execute(
        &mut self,
        wr: &mut ffi::ibv_ops_wr,
        operation: PendingOperation,
    ) -> Result<Posted> {
        use ffi::ibv_ops_flags as flag;
        const FLAGS: u32 = flag::IBV_OPS_SIGNALED.0 | flag::IBV_OPS_TM_SYNC.0;
        let Some(slot) = self.operations.free() else {
            let reason =
                "every operation that the queue can hold is in flight; poll the completion queue";
            return Err(Error::would_block(POST, reason));
        };
        wr.wr_id = QueueId::send(self.id.id()).wr_id(slot).0;
        wr.flags = FLAGS as i32;
        wr.tm.unexpected_cnt = self.unexpected;
        let mut bad = BadWr::new();
        // SAFETY: the queue is created (invariant of `SrqInner`), and `wr` is one complete
        // operation, with valid elements as the caller promises. C reads them, and sets the handle,
        // only before the return.
        let errno = unsafe { ffi::ibv_post_srq_ops(self.as_raw(), wr, bad.as_out()) };
        if errno == 0 {
            self.operations.put(slot, operation);
            return Ok(Posted::Known);
        }
        let queue = QueueKind::SharedReceive;
        let effect = bad.effect(self.pd().context(), queue, wr);
        if effect == Effect::Posted(0) {
            return Err(bad_wr::failure(POST, errno, effect, queue));
        }
        self.operations.put(slot, operation);
        let error = bad_wr::failure(POST, errno, Effect::Unknown, queue);
        Ok(Posted::Assumed(error))
    }

    /// `ibv_modify_srq(srq, IBV_SRQ_LIMIT)`—Requests one asynchronous event once fewer than `limit`
    /// untagged receives are posted.
    ///
    /// # Errors
    /// As for [`SrqHandle::arm_limit`](super::SrqHandle::arm_limit).
    #[doc(alias = "ibv_modify_srq")]
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.srq.arm_limit(limit)
    }

    /// `ibv_query_srq`—The limits of the queue, without tags. Enters the kernel.
    ///
    /// # Errors
    /// As for [`SrqHandle::query`](super::SrqHandle::query).
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        self.srq.query()
    }

    /// The protection domain of the queue.
    pub fn pd(&self) -> &ProtectionDomain {
        self.srq.pd()
    }

    /// The number of untagged receives posted and not returned.
    pub fn in_flight(&self) -> usize {
        self.srq.in_flight()
    }

    /// The number of tagged buffers in use: not returned, or with operations in flight.
    pub fn tags_in_flight(&self) -> usize {
        self.entries.len()
    }

    /// The number of unexpected messages so far. Wraps after 2³², as the device's count does.
    pub fn unexpected(&self) -> u32 {
        self.unexpected
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_srq {
        self.srq.as_raw()
    }

    pub(crate) fn inner(&self) -> &Arc<SrqInner> {
        self.srq.handle().inner()
    }
}

impl<RW: Send + 'static> fmt::Debug for TagMatchingQueue<RW> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TagMatchingQueue")
            .field("in_flight", &self.in_flight())
            .field("tags_in_flight", &self.tags_in_flight())
            .field("unexpected", &self.unexpected)
            .finish_non_exhaustive()
    }
}

impl<RW: Send + 'static> Drop for TagMatchingQueue<RW> {
    fn drop(&mut self) {
        let entries = mem::replace(&mut self.entries, Slab::new(0));
        self.srq.inner.park(Box::new(entries));
    }
}
