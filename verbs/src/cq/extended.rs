//! Extended completion queues: completions read field by field, with timestamps and other fields.

use std::{
    fmt, mem,
    ops::Deref,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::Arc,
    time::Duration,
};

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::ibv_create_cq_wc_flags as with;

use super::{
    channel::{ChannelHandle, CompletionChannel, CqKey, own_channel},
    extended_wc::{Entry, ExtendedCompletion},
    queue::CqHandle,
};
use crate::{
    addr::Gid,
    context::Context,
    error::{Error, Result, cvt_errno, cvt_ptr},
    hint,
    pd::ProtectionDomain,
    quirk::cq_ex_advances_twice,
    waiting::notifier::{self, NotifySource, Requested},
};

bitflags! {
    /// `ibv_create_cq_wc_flags`—The completion fields of an [`ExtendedCq`].
    ///
    /// # References
    /// [ibv_create_cq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)
    #[doc(alias = "ibv_create_cq_wc_flags")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct WcFields: u64 {
        /// The number of bytes.
        #[doc(alias = "IBV_WC_EX_WITH_BYTE_LEN")]
        const BYTE_LEN = with::IBV_WC_EX_WITH_BYTE_LEN.0 as u64;
        /// Immediate data.
        #[doc(alias = "IBV_WC_EX_WITH_IMM")]
        const IMM = with::IBV_WC_EX_WITH_IMM.0 as u64;
        /// The number of the local queue pair.
        #[doc(alias = "IBV_WC_EX_WITH_QP_NUM")]
        const QP_NUM = with::IBV_WC_EX_WITH_QP_NUM.0 as u64;
        /// The number of the peer's queue pair.
        #[doc(alias = "IBV_WC_EX_WITH_SRC_QP")]
        const SRC_QP = with::IBV_WC_EX_WITH_SRC_QP.0 as u64;
        /// The peer's local identifier.
        #[doc(alias = "IBV_WC_EX_WITH_SLID")]
        const SLID = with::IBV_WC_EX_WITH_SLID.0 as u64;
        /// The service level.
        #[doc(alias = "IBV_WC_EX_WITH_SL")]
        const SL = with::IBV_WC_EX_WITH_SL.0 as u64;
        /// The path bits of the destination.
        #[doc(alias = "IBV_WC_EX_WITH_DLID_PATH_BITS")]
        const DLID_PATH_BITS = with::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;
        /// The time, on the device's clock.
        #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
        const COMPLETION_TIMESTAMP = with::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64;
        /// The VLAN tag.
        #[doc(alias = "IBV_WC_EX_WITH_CVLAN")]
        const CVLAN = with::IBV_WC_EX_WITH_CVLAN.0 as u64;
        /// The tag of the flow matched by a packet.
        #[doc(alias = "IBV_WC_EX_WITH_FLOW_TAG")]
        const FLOW_TAG = with::IBV_WC_EX_WITH_FLOW_TAG.0 as u64;
        /// The result of tag matching.
        #[doc(alias = "IBV_WC_EX_WITH_TM_INFO")]
        const TM_INFO = with::IBV_WC_EX_WITH_TM_INFO.0 as u64;
        /// The time, in nanoseconds since 1970.
        #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")]
        const COMPLETION_TIMESTAMP_WALLCLOCK =
            with::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;
        /// The fields of a plain completion: the default.
        const STANDARD = ffi::IBV_WC_STANDARD_FLAGS;
        /// The fields of a datagram, and of its sender's address.
        const OF_DATAGRAM = Self::SRC_QP.bits()
            | Self::SLID.bits()
            | Self::SL.bits()
            | Self::DLID_PATH_BITS.bits();
    }
}

/// `ibv_cq_ex`—A completion queue with completions read field by field, where the device supports
/// extended queues.
///
/// Use one in place of a [`CompletionQueue`](crate::CompletionQueue), for example for completion
/// timestamps. Like that queue, an extended queue has one poller, and cannot overflow.
///
/// # Examples
/// ```
/// # let (_peer, mut qp, _cq) = doctest::connected();
/// # let ctx = qp.pd().context().clone();
/// use verbs::cq::WcFields;
/// let mut cq = ctx.cq_ex_builder(16).with(WcFields::COMPLETION_TIMESTAMP).create()?;
/// if let Some(mut polled) = cq.poll()? {
///     while let Some(wc) = polled.next()? {
///         println!("{:?} at {}", wc.status(), wc.completion_ts()?);
///         qp.complete(wc.into_work_completion()).expect("there is no other queue pair");
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_create_cq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)
#[doc(alias = "ibv_cq_ex")]
pub struct ExtendedCq {
    handle: CqHandle,
    own_channel: Option<CompletionChannel>,
    /// The event of the own channel.
    requested: Requested,
    fields: WcFields,
    source: Option<ReadSource>,
    /// Whether a poll of C's can give one completion only.
    one_by_one: bool,
    /// The completions read by the last C poll.
    batch: Box<[Entry]>,
    // The completions of the batch not taken yet.
    // INVARIANT: `next + left` is at most the length of the batch.
    next: u32,
    unread: u32,
    /// The error number at the end of the last C poll, after the completions in the batch; 0 if
    /// none.
    failed: i32,
}

/// A vendor's call that reads the sender of a received message.
type ReadSource = unsafe fn(*mut ffi::ibv_cq_ex) -> Option<Gid>;

/// Default of the maximum number of completions read by one C poll.
const DEFAULT_BATCH: u32 = 16;

/// Builder of an [`ExtendedCq`].
#[derive(Debug)]
#[must_use = "call `create` to make the queue"]
pub struct ExtendedCqBuilder<'a> {
    ctx: &'a Context,
    cqe: u32,
    batch: u32,
    vector: u32,
    fields: WcFields,
    channel: Option<(&'a CompletionChannel, CqKey)>,
    waitable: bool,
    single_threaded: bool,
    pd: Option<&'a ProtectionDomain>,
}

impl Context {
    /// Returns the builder of an extended completion queue with at least `cqe` entries.
    pub fn cq_ex_builder(&self, cqe: u32) -> ExtendedCqBuilder<'_> {
        ExtendedCqBuilder {
            ctx: self,
            cqe,
            batch: DEFAULT_BATCH,
            vector: 0,
            fields: WcFields::STANDARD,
            channel: None,
            waitable: false,
            single_threaded: false,
            pd: None,
        }
    }
}

impl<'a> ExtendedCqBuilder<'a> {
    /// Maximum number of completions read at once, under the provider's lock; 16 if not set, at
    /// least 1, and at most the number of entries.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Adds fields to the [standard](WcFields::STANDARD) ones, or to those chosen by [`only`](Self::only).
    pub fn with(mut self, fields: WcFields) -> Self {
        self.fields |= fields;
        self
    }

    /// Asks for these fields only, in place of the [standard](WcFields::STANDARD) ones. Each field costs a call for each
    /// completion; a stream of messages needs only [`BYTE_LEN`](WcFields::BYTE_LEN).
    ///
    /// A [`WorkCompletion`](crate::WorkCompletion) of the queue has 0 for a field that the queue was made without.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::cq::WcFields;
    /// let fields = WcFields::BYTE_LEN | WcFields::COMPLETION_TIMESTAMP;
    /// let cq = ctx.cq_ex_builder(16).only(fields).create()?;
    /// assert_eq!(cq.fields(), fields);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn only(mut self, fields: WcFields) -> Self {
        self.fields = fields;
        self
    }

    /// The completion vector (interrupt) of the device for events; 0 if not set.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Sends notifications to a channel, possibly shared with other queues, under the name `key`.
    pub fn channel(mut self, channel: &'a CompletionChannel, key: CqKey) -> Self {
        self.channel = Some((channel, key));
        self
    }

    /// Gives the queue a channel of its own, for [`ExtendedCq::wait`].
    pub fn waitable(mut self) -> Self {
        self.waitable = true;
        self
    }

    /// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`—Promises that only one thread at a time uses the queue
    /// and the objects that complete there, so that the provider can omit locks.
    ///
    /// # Safety
    /// - No two threads use the queue, or a queue pair or a shared receive queue on it, at the same
    ///   time.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_SINGLE_THREADED")]
    pub unsafe fn single_threaded(mut self) -> Self {
        self.single_threaded = true;
        self
    }

    /// `IBV_CQ_INIT_ATTR_MASK_PD`—Creates the queue in a parent domain, with the domain's allocator
    /// and thread domain.
    #[doc(alias = "IBV_CQ_INIT_ATTR_MASK_PD")]
    pub fn parent_domain(mut self, pd: &'a ProtectionDomain) -> Self {
        self.pd = Some(pd);
        self
    }

    /// `ibv_create_cq_ex(ctx, …)`—Creates the queue. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the parent domain or the channel is of another device.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has no extended queues, or not all of the fields.
    /// - `EINVAL`: no entries at all, more than the device allows, or a nonexistent completion
    ///   vector.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_cq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn create(self) -> Result<ExtendedCq> {
        // SAFETY: the context is open, since `self` borrows it, and the channel and the domain exist.
        // Assumption: C keeps no pointer to the attributes.
        let create = |ctx, attr: &mut _| unsafe { ffi::ibv_create_cq_ex(ctx, attr) };
        // SAFETY: `create` makes a queue of the attributes, or none.
        unsafe { self.make("ibv_create_cq_ex", create, None) }
    }

    /// Creates the queue by a vendor's call in place of `ibv_create_cq_ex`, such as `efadv_create_cq`. `call` is its name, for
    /// errors. `source` reads the sender of a received message, for [`ExtendedCompletion::source`].
    ///
    /// # Safety
    /// - `create` returns null, with `errno` set, or an extended queue of the context with these attributes, and no other owner. It keeps no
    ///   pointer to the attributes.
    /// - `source` may be called for the queue while it is polled, positioned on a receive that succeeded. It does not unwind, and
    ///   calls nothing but the provider.
    ///
    /// # Errors
    /// As for [`create`](Self::create), and the errors of the call.
    #[doc(alias = "efadv_create_cq")]
    pub unsafe fn create_with(
        self,
        call: &'static str,
        create: impl FnOnce(*mut ffi::ibv_context, &mut ffi::ibv_cq_init_attr_ex) -> *mut ffi::ibv_cq_ex,
        source: unsafe fn(*mut ffi::ibv_cq_ex) -> Option<Gid>,
    ) -> Result<ExtendedCq> {
        // SAFETY: the caller's promise.
        unsafe { self.make(call, create, Some(source)) }
    }

    /// # Safety
    /// - As for [`create_with`](Self::create_with).
    unsafe fn make(
        self,
        call: &'static str,
        create: impl FnOnce(*mut ffi::ibv_context, &mut ffi::ibv_cq_init_attr_ex) -> *mut ffi::ibv_cq_ex,
        source: Option<ReadSource>,
    ) -> Result<ExtendedCq> {
        if let Some(pd) = self.pd {
            self.ctx
                .check_same(call, "the parent domain", pd.context())?;
        }
        self.ctx.check_process(call)?;
        if let Some((channel, _)) = self.channel {
            channel.check_device(call, self.ctx)?;
        }
        let own_channel = match self.waitable {
            true => Some(self.ctx.create_comp_channel()?),
            false => None,
        };
        let (channel, key) = match (&own_channel, self.channel) {
            (Some(channel), _) => (Some(channel), CqKey::default()),
            (None, Some((shared, key))) => (Some(shared), key),
            (None, None) => (None, CqKey::default()),
        };
        let mut attr = self.init_attr(channel, key);
        let raw = create(self.ctx.as_raw(), &mut attr);
        let raw = cvt_ptr(call, raw).map_err(|err| {
            let (cqe, vector, fields) = (self.cqe, self.vector, self.fields);
            let err = err.detail(format!("{cqe} entries, vector {vector}, with {fields:?}"));
            hint::limits::cq(err, self.ctx, cqe, vector)
        })?;
        let channel = channel.map(CompletionChannel::handle);
        // SAFETY: the queue has just been created, with these; the C struct begins with a plain
        // one.
        let handle = unsafe {
            CqHandle::new(
                raw.cast(),
                true,
                channel,
                self.pd.cloned(),
                self.ctx.clone(),
            )
        };
        let batch = self.batch.min(handle.capacity()).max(1);
        Ok(ExtendedCq {
            one_by_one: cq_ex_advances_twice(self.ctx)?,
            handle,
            own_channel,
            requested: Requested::default(),
            fields: self.fields,
            source,
            batch: vec![Entry::empty(); batch as usize].into_boxed_slice(),
            next: 0,
            unread: 0,
            failed: 0,
        })
    }
}

impl ExtendedCqBuilder<'_> {
    /// The attributes in C. The key is a number, only returned with events.
    fn init_attr(
        &self,
        channel: Option<&CompletionChannel>,
        key: CqKey,
    ) -> ffi::ibv_cq_init_attr_ex {
        let mut attr = ffi::ibv_cq_init_attr_ex::zeroed();
        attr.cqe = self.cqe;
        attr.cq_context = ptr::without_provenance_mut(key.0);
        attr.channel = channel.map_or(ptr::null_mut(), CompletionChannel::as_raw);
        attr.comp_vector = self.vector;
        attr.wc_flags = self.fields.bits();
        if self.single_threaded {
            attr.comp_mask |= ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
            attr.flags = ffi::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
        }
        if let Some(pd) = self.pd {
            attr.comp_mask |= ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
            attr.parent_domain = pd.as_raw();
        }
        attr
    }
}

impl ExtendedCq {
    /// `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`—Reads the completions in the queue; `None`
    /// if there are none. Does not wait or enter the kernel.
    ///
    /// A provider may lock the queue during its poll, and destroying a queue pair, or posting to
    /// one whose queue is nearly full, takes the same lock. So the C poll has ended when this
    /// returns: the call copies a [batch](ExtendedCqBuilder::batch) of completions. While an
    /// [`ExtendedPoll`] exists, any call is allowed, from any thread, and forgetting one loses
    /// nothing.
    ///
    /// # Errors
    /// The queue is broken: the device has reported an overrun, or is gone.
    ///
    /// # References
    /// [ibv_start_poll(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)
    #[doc(alias = "ibv_start_poll")]
    #[inline]
    pub fn poll(&mut self) -> Result<Option<ExtendedPoll<'_>>> {
        Ok(if self.fill()? {
            Some(self.pending_poll())
        } else {
            None
        })
    }

    /// Reads completions. If there are none, arms the queue, and the result is `None`;
    /// see [`CompletionQueue::poll_or_arm`](crate::CompletionQueue::poll_or_arm). Never blocks.
    ///
    /// # Errors
    /// - As for [`poll`](Self::poll).
    /// - `Unsupported`: there are no completions, and the queue has no channel for notifications.
    pub fn poll_or_arm(&mut self) -> Result<Option<ExtendedPoll<'_>>> {
        Ok(if self.begin_or_arm()? {
            Some(self.pending_poll())
        } else {
            None
        })
    }

    /// Reads completions, for [`begun`](Self::begun), or arms the queue.
    pub(crate) fn begin_or_arm(&mut self) -> Result<bool> {
        notifier::ready(self)
    }

    /// The completions read before.
    #[inline]
    pub(crate) fn pending_poll(&mut self) -> ExtendedPoll<'_> {
        debug_assert!(self.unread > 0);
        ExtendedPoll {
            cq: self,
            ended: false,
        }
    }

    /// The queue's own channel, or an error of `call`.
    pub(crate) fn own_channel(&self, call: &'static str) -> Result<Arc<ChannelHandle>> {
        own_channel(self.own_channel.as_ref(), call)
    }

    /// The descriptor to watch after [`poll_or_arm`](Self::poll_or_arm), if the queue is
    /// [`waitable`](ExtendedCqBuilder::waitable). A shared channel has its own.
    pub fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.own_channel.as_ref().map(CompletionChannel::as_fd)
    }

    /// Reads completions. If there are none, blocks until there are some, for at most `timeout`
    /// (`None`: without limit). The result is `None` only after the timeout. No completion is missed
    /// between polling and waiting.
    ///
    /// # Errors
    /// - As for [`poll`](Self::poll) and [`req_notify`](CqHandle::req_notify).
    /// - `Unsupported`: the queue was not made [`waitable`](ExtendedCqBuilder::waitable).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<ExtendedPoll<'_>>> {
        let mut pending_poll = self.fill()?;
        if !pending_poll {
            let channel = self.own_channel("ExtendedCq::wait")?;
            pending_poll = channel.wait_until(timeout, || self.begin_or_arm())?;
        }
        Ok(if pending_poll {
            Some(self.pending_poll())
        } else {
            None
        })
    }

    /// `ibv_resize_cq(cq, cqe)`—Makes the queue larger or smaller; see
    /// [`CompletionQueue::resize`](crate::CompletionQueue::resize).
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, cqe: u32) -> Result<()> {
        // A provider may forget the request.
        self.requested = Requested::default();
        // SAFETY: `self` is borrowed exclusively, and nothing but this resizes the queue.
        unsafe { self.handle.resize(cqe) }
    }

    /// The shareable part of the queue, for creating queue pairs.
    pub fn handle(&self) -> &CqHandle {
        &self.handle
    }

    /// The fields of completions.
    pub fn fields(&self) -> WcFields {
        self.fields
    }

    /// The C object, in the type of the extended calls.
    #[inline]
    fn as_raw_ex(&self) -> NonNull<ffi::ibv_cq_ex> {
        // SAFETY: an existing queue is not null.
        unsafe { NonNull::new_unchecked(self.handle.as_raw().cast()) }
    }

    /// Reads completions unless some are unread; returns whether there are any.
    #[inline]
    fn fill(&mut self) -> Result<bool> {
        if self.unread > 0 {
            return Ok(true);
        }
        if self.failed != 0 {
            return Err(self.take_failure());
        }
        self.check_failure("ibv_start_poll")?;
        let stale = self.handle.account().stale();
        let mut attr = ffi::ibv_poll_cq_attr::zeroed();
        // SAFETY: the queue exists, has not failed, is an extended one, and is not being polled: each
        // poll ends in the call that started it. Assumption: C keeps no pointer to the attributes.
        let errno = unsafe { ffi::ibv_start_poll(self.as_raw_ex().as_ptr(), &raw mut attr) };
        if errno != 0 {
            return self.start_failed(errno, stale);
        }
        self.read_batch();
        // SAFETY: the queue exists, and its poll was started above.
        unsafe { ffi::ibv_end_poll(self.as_raw_ex().as_ptr()) };
        Ok(true)
    }

    /// The error at the end of the last C poll.
    #[cold]
    #[inline(never)]
    fn take_failure(&mut self) -> Error {
        Error::from_errno(
            "ibv_next_poll",
            mem::take(&mut self.failed).saturating_abs(),
        )
    }

    /// Ends a poll that found no completion, begun with `stale` stale entries.
    #[cold]
    #[inline(never)]
    fn start_failed(&self, errno: i32, stale: u32) -> Result<bool> {
        if errno == libc::ENOENT {
            if stale > 0 {
                self.handle.account().forget_stale(stale);
            }
            return Ok(false);
        }
        cvt_errno("ibv_start_poll", errno)?;
        Ok(false)
    }

    /// Copies completions of a started poll, positioned on the first. Does not panic, and calls
    /// only the provider, which may have locked the queue.
    #[inline]
    fn read_batch(&mut self) {
        let (cq, fields, one_by_one) = (self.as_raw_ex(), self.fields, self.one_by_one);
        let source = self.source;
        let batch_len = self.batch.len();
        self.next = 0;
        for entry in &mut self.batch {
            // SAFETY: the queue is on a completion, and was made with these fields.
            unsafe { entry.read(cq, fields) };
            if let Some(source) = source {
                // SAFETY: the queue is on a completion, and was made with the call.
                unsafe { entry.read_source(cq, source) };
            }
            self.unread += 1;
            if one_by_one || self.unread as usize == batch_len {
                return;
            }
            // SAFETY: the queue exists, and is being polled.
            let errno = unsafe { ffi::ibv_next_poll(cq.as_ptr()) };
            if errno != 0 {
                if errno != libc::ENOENT {
                    self.failed = errno;
                }
                return;
            }
        }
    }
}

impl Deref for ExtendedCq {
    type Target = CqHandle;

    fn deref(&self) -> &CqHandle {
        &self.handle
    }
}

impl NotifySource for ExtendedCq {
    type Error = Error;

    fn has_completions(&mut self) -> Result<bool> {
        self.fill()
    }

    fn request(&mut self) -> Result<bool> {
        (self.handle).request(&mut self.requested, self.own_channel.as_ref())
    }
}

impl fmt::Debug for ExtendedCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtendedCq")
            .field("fields", &self.fields)
            .field("capacity", &self.capacity())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

/// The completions of one [`ExtendedCq::poll`], read one after the other, until the queue is empty.
///
/// The provider holds no lock in the meantime. The next poll returns the unread completions, also
/// if this value is forgotten (`mem::forget`).
#[doc(alias = "ibv_end_poll")]
#[derive(Debug)]
pub struct ExtendedPoll<'p> {
    cq: &'p mut ExtendedCq,
    /// Whether the queue was found empty.
    ended: bool,
}

impl ExtendedPoll<'_> {
    /// `ibv_next_poll`—The next completion; `None` if there is no other now.
    ///
    /// # Errors
    /// The queue is broken. A failed call completes nothing.
    ///
    /// # References
    /// [ibv_next_poll(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)
    #[doc(alias = "ibv_next_poll")]
    #[expect(
        clippy::should_implement_trait,
        reason = "what it gives borrows from it, so it cannot be an `Iterator`"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<ExtendedCompletion<'_>>> {
        if self.ended {
            return Ok(None);
        }
        // Set for good unless there is another completion.
        self.ended = true;
        if !self.cq.fill()? {
            return Ok(None);
        }
        self.ended = false;
        let index = self.cq.next as usize;
        self.cq.next += 1;
        self.cq.unread -= 1;
        let fields = self.cq.fields;
        let entry = self.cq.batch.get(index);
        Ok(entry.map(|entry| ExtendedCompletion::new(entry, fields)))
    }
}
