//! Completion queues.

use std::{
    fmt,
    mem::{self, MaybeUninit},
    ops::Deref,
    os::fd::{AsFd, BorrowedFd},
    ptr::{self, NonNull},
    slice,
    sync::{Arc, Weak, atomic::AtomicBool},
    time::Duration,
};

use ibverbs_sys as ffi;

use super::{
    account::CqAccount,
    channel::{ChannelHandle, CompletionChannel, CqKey, own_channel},
    completion::WorkCompletion,
    resize::Resizes,
};
use crate::{
    context::Context,
    error::{Result, cvt_count, cvt_ptr},
    hint,
    pd::ProtectionDomain,
    quirk,
    waiting::notifier::{self, Requested},
};

/// Default of the maximum number of completions fetched by one call of `ibv_poll_cq`.
const DEFAULT_BATCH: usize = 16;

/// `ibv_cq`—A completion queue: the device writes the results of posted work there.
///
/// One poller: polling takes `&mut self`, and a [`WorkCompletion`] borrows the queue until handed
/// to its queue pair. Queue pairs keep their own share of the queue, so the value can be dropped at
/// any time.
///
/// The queue cannot overflow. Each queue pair on the queue reserves an entry for every request that
/// can be in flight, and a queue pair is refused if too few are left.
///
/// # Examples
/// ```
/// # let (_peer, mut qp, mut cq) = doctest::connected();
/// # qp.post_recv(qp.pd().alloc_buf(1024)?)?;
/// # qp.post(verbs::op::Send::new(qp.pd().register_buf(*b"hello")?))?;
/// for wc in cq.wait(None)? {
///     println!("{:?}: {:?}", wc.opcode(), wc.status());
///     // The work returns.
///     qp.complete(wc).expect("there is no other queue pair").ok()?;
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_destroy_cq")]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    pub(super) handle: CqHandle,
    pub(super) own_channel: Option<CompletionChannel>,
    /// The event of the own channel.
    pub(super) requested: Requested,
    /// The place of the completions fetched at once. Zero at first: C need not write every field of a completion.
    batch: Box<[ffi::ibv_wc]>,
    // The number of completions to ask for.
    // INVARIANT: the room of the batch, as a C `int`; none, if and only if completions are left
    // over.
    ask: u32,
    // The completions in the batch neither taken nor held by a `Completions`.
    // INVARIANT: `next + left` is at most the length of the batch.
    next: u32,
    unread: u32,
    // INVARIANT: the queue of `handle`, and its provider's poll function, or a replacement that does not touch the queue,
    // if the queue has failed.
    raw: NonNull<ffi::ibv_cq>,
    poll: PollFn,
}

// SAFETY: the pointer's target belongs to `handle`, which is `Send`, as is everything else.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; a shared queue is used through `handle` only.
unsafe impl Sync for CompletionQueue {}

/// The shareable part of a completion queue: everything but polling.
///
/// A [`CompletionQueue`] dereferences to one, so `&cq` is accepted wherever a handle is wanted.
/// Cloning is cheap. The queue is destroyed after the drop of the last handle and of the last queue
/// pair on the queue.
#[derive(Clone)]
pub struct CqHandle {
    pub(super) inner: Arc<CqInner>,
}

pub(super) struct CqInner {
    // INVARIANT: created, and destroyed only in `drop`.
    raw: NonNull<ffi::ibv_cq>,
    is_extended: bool,
    account: CqAccount,
    resizes: Resizes,
    /// Whether the program has armed the queue by itself.
    pub(super) armed_by_program: AtomicBool,
    /// Destroyed after the queue.
    pub(super) channel: Option<Arc<ChannelHandle>>,
    /// The parent domain of the queue, if any.
    _pd: Option<ProtectionDomain>,
    ctx: Context,
}

/// The provider's poll function, which `ibv_poll_cq` looks up at each call.
type PollFn = unsafe extern "C" fn(*mut ffi::ibv_cq, i32, *mut ffi::ibv_wc) -> i32;

/// The one of a device, whose new queue this is.
///
/// libibverbs' stub for a missing function returns an error number. On a new queue, that number
/// cannot be a count; the check is made once, here.
///
/// # Safety
/// - `cq` is a new queue of this context, and there is room for a completion at `wc`.
unsafe fn poll_fn(
    ctx: *mut ffi::ibv_context,
    cq: NonNull<ffi::ibv_cq>,
    wc: *mut ffi::ibv_wc,
) -> PollFn {
    // SAFETY: the context is open, and its provider filled the table before handing the context
    // out.
    let Some(poll) = (unsafe { (*ctx).ops.poll_cq }) else {
        return lacks_poll;
    };
    // SAFETY: the queue is created, and there is room for the one completion that C writes at most.
    let count = unsafe { poll(cq.as_ptr(), 1, wc) };
    if count > 1 { lacks_poll } else { poll }
}

/// Replacement for a function missing in the provider.
unsafe extern "C" fn lacks_poll(_: *mut ffi::ibv_cq, _: i32, _: *mut ffi::ibv_wc) -> i32 {
    -libc::EOPNOTSUPP
}

/// Replacement for the provider's function after a failed resize.
unsafe extern "C" fn fails_poll(_: *mut ffi::ibv_cq, _: i32, _: *mut ffi::ibv_wc) -> i32 {
    -libc::EPIPE
}

// SAFETY: the queue is polled through its one `CompletionQueue`, and by `discard_completions`.
// Assumption: calls of libibverbs may be made from any thread, and several at once.
unsafe impl Send for CqInner {}
// SAFETY: see `Send`.
unsafe impl Sync for CqInner {}

/// Builder of a [`CompletionQueue`].
#[derive(Debug)]
#[must_use = "call `create` to make the queue"]
pub struct CompletionQueueBuilder<'a> {
    ctx: &'a Context,
    cqe: u32,
    batch: usize,
    vector: u32,
    channel: ChannelChoice<'a>,
}

#[derive(Debug)]
enum ChannelChoice<'a> {
    None,
    Own,
    Shared(&'a CompletionChannel, CqKey),
}

impl Context {
    /// `ibv_create_cq(ctx, cqe, …)`—Creates a completion queue with at least `cqe` entries.
    ///
    /// # Errors
    /// As for [`CompletionQueueBuilder::create`].
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, cqe: u32) -> Result<CompletionQueue> {
        self.cq_builder(cqe).create()
    }

    /// Returns the builder of a completion queue with at least `cqe` entries.
    pub fn cq_builder(&self, cqe: u32) -> CompletionQueueBuilder<'_> {
        CompletionQueueBuilder {
            ctx: self,
            cqe,
            batch: DEFAULT_BATCH,
            vector: 0,
            channel: ChannelChoice::None,
        }
    }
}

impl<'a> CompletionQueueBuilder<'a> {
    /// Maximum number of completions fetched at once; 16 if not set, at least 1, and at most the number of entries.
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// The completion vector (interrupt) of the device for events; 0 if not set.
    pub fn comp_vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Sends notifications to a channel, possibly shared with other queues, under the name `key`.
    pub fn channel(mut self, channel: &'a CompletionChannel, key: CqKey) -> Self {
        self.channel = ChannelChoice::Shared(channel, key);
        self
    }

    /// Gives the queue a channel of its own, for [`CompletionQueue::wait`].
    pub fn waitable(mut self) -> Self {
        self.channel = ChannelChoice::Own;
        self
    }

    /// `ibv_create_cq(ctx, cqe, …)`—Creates the queue. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the channel is of another device.
    /// - `EINVAL`: no entries at all, more than the device allows, or a nonexistent completion
    ///   vector.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_cq(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq.3.html)
    #[doc(alias = "ibv_create_cq")]
    pub fn create(self) -> Result<CompletionQueue> {
        self.ctx.check_process("ibv_create_cq")?;
        let as_int = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
        if let ChannelChoice::Shared(channel, _) = self.channel {
            channel.check_device("ibv_create_cq", self.ctx)?;
        }
        let own_channel = match self.channel {
            ChannelChoice::Own => Some(self.ctx.create_comp_channel()?),
            _ => None,
        };
        let (channel, key) = match (&own_channel, &self.channel) {
            (Some(channel), _) => (Some(channel), CqKey::default()),
            (None, ChannelChoice::Shared(shared, key)) => (Some(*shared), *key),
            (None, _) => (None, CqKey::default()),
        };
        let raw_channel = channel.map_or(ptr::null_mut(), CompletionChannel::as_raw);
        // SAFETY: the context is open for as long as `self.ctx` lives; the channel exists for as
        // long as `handle` holds it. The key is a number, only returned with events, as a pointer
        // never dereferenced.
        let raw = unsafe {
            ffi::ibv_create_cq(
                self.ctx.as_raw(),
                as_int(self.cqe),
                ptr::without_provenance_mut(key.0),
                raw_channel,
                as_int(self.vector),
            )
        };
        let raw = cvt_ptr("ibv_create_cq", raw).map_err(|err| {
            let err = err.detail(format!("{} entries, vector {}", self.cqe, self.vector));
            hint::limits::cq(err, self.ctx, self.cqe, self.vector)
        })?;
        let channel = channel.map(CompletionChannel::handle);
        // SAFETY: the queue has just been created, on this channel.
        let handle = unsafe { CqHandle::new(raw, false, channel, None, self.ctx.clone()) };
        let batch_len = u32::try_from(self.batch).unwrap_or(u32::MAX);
        let batch_len = batch_len
            .min(as_int(handle.capacity()).unsigned_abs())
            .max(1);
        let mut batch = vec![ffi::ibv_wc::zeroed(); batch_len as usize].into_boxed_slice();
        // SAFETY: the context is the queue's, and the batch has room for one completion.
        let poll = unsafe { poll_fn(self.ctx.as_raw(), raw, batch.as_mut_ptr()) };
        Ok(CompletionQueue {
            raw,
            poll,
            handle,
            own_channel,
            requested: Requested::default(),
            batch,
            ask: batch_len,
            next: 0,
            unread: 0,
        })
    }
}

impl CompletionQueue {
    /// `ibv_poll_cq`—Fetches completions, without waiting and without entering the kernel.
    ///
    /// Hand each to its queue pair, which returns the work. The next call returns the completions
    /// left in the iterator.
    ///
    /// # Errors
    /// The queue is broken: the device has reported an overrun, or is gone, or a
    /// [resize](Self::resize) has failed (`BrokenPipe`). A failed call completes nothing; dropping
    /// the queue pairs drops their work.
    ///
    /// # References
    /// [ibv_poll_cq(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html)
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&mut self) -> Result<Completions<'_>> {
        if self.ask == 0 {
            return Ok(self.rest());
        }
        let ret = self.fetch_raw();
        match fetched(ret) {
            Some(count) => Ok(self.completions(0, count)),
            None => self.poll_nothing(ret),
        }
    }

    /// The rest of the last poll. Out of line, so that a loop around `poll` is compiled for batches
    /// from their first completion.
    #[cold]
    #[inline(never)]
    fn rest(&mut self) -> Completions<'_> {
        let (next, unread) = (self.next, mem::take(&mut self.unread));
        self.ask = self.batch_len();
        self.completions(next, unread)
    }

    /// The result of a poll that has found nothing at first.
    #[cold]
    #[inline(never)]
    fn poll_nothing(&mut self, ret: i32) -> Result<Completions<'_>> {
        self.fetch_after(ret)?;
        Ok(self.rest())
    }

    /// Fetches completions. If there are none, arms the queue, so that the descriptor of its
    /// channel becomes readable at the next completion, and returns `None`. Never blocks.
    ///
    /// One step of an event loop: call until the result is `None`, sleep until
    /// [`notify_fd`](Self::notify_fd) is readable, and repeat. No completion is missed between
    /// polling and sleeping. The loop may be level-triggered or edge-triggered, may wake up
    /// spuriously, and may stop waiting at any time.
    ///
    /// A queue of a [shared channel](CompletionQueueBuilder::channel) is used in the same way,
    /// after an event of the channel with the queue's key.
    ///
    /// # Errors
    /// - As for [`poll`](Self::poll).
    /// - `Unsupported`: there are no completions, and the queue has no channel for notifications.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use std::os::fd::BorrowedFd;
    /// # fn sleep(fd: BorrowedFd<'_>) {}
    /// let mut cq = ctx.cq_builder(16).waitable().create()?;
    /// loop {
    ///     while let Some(completions) = cq.poll_or_arm()? {
    ///         completions.for_each(|wc| println!("{:?}", wc.status()));
    ///     }
    ///     let fd: BorrowedFd<'_> = cq.notify_fd().expect("it is waitable");
    ///     sleep(fd); // together with others: `poll`, `epoll_wait`, a crate such as `mio`
    /// #   break;
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn poll_or_arm(&mut self) -> Result<Option<Completions<'_>>> {
        Ok(if notifier::ready(self)? {
            Some(self.rest())
        } else {
            None
        })
    }

    /// The descriptor to watch after [`poll_or_arm`](Self::poll_or_arm), if the queue is
    /// [`waitable`](CompletionQueueBuilder::waitable). A shared channel has its own.
    ///
    /// For registration with an event loop only: see [`NotifyFd`](crate::fd::NotifyFd).
    pub fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.own_channel.as_ref().map(CompletionChannel::as_fd)
    }

    /// Fetches completions. If there are none, blocks until there are some, for at most `timeout`
    /// (`None`: without limit). The iterator is empty only after the timeout. No completion is
    /// missed between polling and waiting; see [`poll_or_arm`](Self::poll_or_arm).
    ///
    /// # Errors
    /// - As for [`poll`](Self::poll) and [`req_notify`](CqHandle::req_notify).
    /// - `Unsupported`: the queue was not made [`waitable`](CompletionQueueBuilder::waitable).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Completions<'_>> {
        if !self.fill()? {
            let channel = self.own_channel("CompletionQueue::wait")?;
            channel.wait_until(timeout, || notifier::ready(self))?;
        }
        Ok(self.rest())
    }

    /// The queue's own channel, or an error of `call`.
    pub(crate) fn own_channel(&self, call: &'static str) -> Result<Arc<ChannelHandle>> {
        own_channel(self.own_channel.as_ref(), call)
    }

    /// The shareable part of the queue, for creating queue pairs while another thread polls.
    pub fn handle(&self) -> &CqHandle {
        &self.handle
    }

    /// Fills the batch unless completions are left in it; returns whether there are any.
    pub(super) fn fill(&mut self) -> Result<bool> {
        if self.unread == 0 {
            let ret = self.fetch_raw();
            self.fetch_after(ret)?;
        }
        Ok(self.unread > 0)
    }

    /// Fills the batch anew. The batch must be empty.
    #[inline]
    fn fetch_raw(&mut self) -> i32 {
        let batch = self.batch.as_mut_ptr();
        // SAFETY: the queue is created (invariant of `CqInner`) and has not failed, or `poll` does not
        // touch the queue (invariant). The batch has room for `ask` completions (invariant); C
        // writes there only before the return.
        unsafe { (self.poll)(self.raw.as_ptr(), self.ask as i32, batch) }
    }

    /// Continues after C's result `ret`. If the queue was found empty, but a destroyed queue pair
    /// may have left completions after the poll, polls again.
    fn fetch_after(&mut self, ret: i32) -> Result<()> {
        self.check_failure("ibv_poll_cq")?;
        let mut ret = ret;
        if ret == 0 {
            let stale = self.handle.inner.account.stale();
            if stale == 0 {
                return Ok(());
            }
            ret = self.fetch_raw();
            if ret == 0 {
                self.handle.inner.account.forget_stale(stale);
                return Ok(());
            }
        }
        match fetched(ret) {
            Some(count) => {
                self.leave(self.batch.as_ptr(), count);
                Ok(())
            }
            None => cvt_count("ibv_poll_cq", ret).map(|_| ()),
        }
    }

    /// Leaves completions of the batch to the next poll: those from `first`, one of the batch or
    /// its end, up to `end`.
    ///
    /// Their number is computed here: otherwise a loop over completions would have to count.
    #[cold]
    #[inline(never)]
    fn leave(&mut self, first: *const ffi::ibv_wc, end: u32) {
        let before = first.addr() - self.batch.as_ptr().addr();
        #[expect(clippy::cast_possible_truncation, reason = "a part of the batch")]
        let next = (before / size_of::<ffi::ibv_wc>()) as u32;
        self.next = next;
        self.unread = end - next;
        self.ask = 0;
    }

    /// Lets later polls fail without a call of the provider.
    pub(super) fn refuse_polls(&mut self) {
        self.poll = fails_poll;
    }

    /// The number of completions that fit in the batch.
    fn batch_len(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "C can count them")]
        let batch_len = self.batch.len() as u32;
        batch_len
    }

    /// These completions of the batch; the caller knows both numbers, so they need not be read again.
    #[inline]
    fn completions(&mut self, next: u32, unread: u32) -> Completions<'_> {
        let first = self.batch.as_ptr().wrapping_add(next as usize);
        // SAFETY: left over in the batch, or just written by C, and so inside of the batch. The borrow includes `self`,
        // and a `Completions` does not touch them through `self`, so nothing writes meanwhile.
        let list = unsafe { slice::from_raw_parts(first, unread as usize) };
        Completions {
            unread: list,
            end: next + unread,
            cq: self,
        }
    }
}

/// The number of completions now in the batch, from C's result; `None` for zero or an error. C
/// returns no more than the number written.
#[inline]
fn fetched(ret: i32) -> Option<u32> {
    (ret > 0).then_some(ret.unsigned_abs())
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("capacity", &self.capacity())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

impl Deref for CompletionQueue {
    type Target = CqHandle;

    fn deref(&self) -> &CqHandle {
        &self.handle
    }
}

impl CqHandle {
    /// # Safety
    /// - `raw` is a new queue with no other user, made on this channel, in this domain.
    pub(super) unsafe fn new(
        raw: NonNull<ffi::ibv_cq>,
        is_extended: bool,
        channel: Option<Arc<ChannelHandle>>,
        pd: Option<ProtectionDomain>,
        ctx: Context,
    ) -> Self {
        // SAFETY: the queue is created, and `cqe` was set at creation.
        let cqe = unsafe { (*raw.as_ptr()).cqe };
        let inner = CqInner {
            raw,
            is_extended,
            account: CqAccount::new(u32::try_from(cqe).unwrap_or(0)),
            resizes: Resizes::default(),
            armed_by_program: AtomicBool::new(false),
            channel,
            _pd: pd,
            ctx,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    #[inline]
    pub(super) fn account(&self) -> &CqAccount {
        &self.inner.account
    }

    #[inline]
    pub(super) fn resizes(&self) -> &Resizes {
        &self.inner.resizes
    }

    pub(super) fn share(&self) -> Arc<CqInner> {
        Arc::clone(&self.inner)
    }

    /// The number of entries, as granted by the device: at least the requested number.
    pub fn capacity(&self) -> u32 {
        self.inner.account.capacity()
    }

    /// The number of entries not reserved by queue pairs.
    pub fn available(&self) -> u32 {
        self.inner.account.available()
    }

    /// The device this queue belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    ///
    /// A completion polled directly from the C object is lost to this crate: its work returns only
    /// with a later completion of the same queue (not on iWARP), or when the queue pair is dropped.
    pub fn as_raw(&self) -> *mut ffi::ibv_cq {
        self.inner.raw.as_ptr()
    }
}

impl fmt::Debug for CqHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqHandle")
            .field("capacity", &self.capacity())
            .field("available", &self.available())
            .finish_non_exhaustive()
    }
}

impl CqInner {
    #[inline]
    pub(super) fn account(&self) -> &CqAccount {
        &self.account
    }

    /// Fetches and discards all completions of the queue. Returns whether the queue is empty. A queue that is polled
    /// without a lock is left as it is: its poller may be in a call.
    pub(super) fn discard_completions(&self) -> bool {
        if quirk::polls_without_lock(&self.ctx) {
            return false;
        }
        let resizing = self.resizes.start();
        if resizing.has_failed() {
            return false;
        }
        // No more than the queue has entries, since the device adds none.
        for _ in 0..=self.account.capacity() {
            let count = if self.is_extended {
                self.discard_extended()
            } else {
                self.discard_plain()
            };
            if count <= 0 {
                return count == 0;
            }
        }
        false
    }

    /// Fetches one completion. Returns how many there were, or less than 0 if the queue is broken.
    fn discard_plain(&self) -> i32 {
        let mut wc = MaybeUninit::uninit();
        // SAFETY: the queue is created (invariant) and has not failed, and there is room for one
        // completion. Its poller may be in a call. Assumption: providers lock a completion queue
        // while it is polled.
        unsafe { ffi::ibv_poll_cq(self.raw.as_ptr(), 1, wc.as_mut_ptr()) }
    }

    /// As [`discard_plain`](Self::discard_plain), of an extended queue.
    fn discard_extended(&self) -> i32 {
        let raw: *mut ffi::ibv_cq_ex = self.raw.as_ptr().cast();
        let mut attr = ffi::ibv_poll_cq_attr::zeroed();
        // SAFETY: the queue is created (invariant), has not failed, and is an extended one. A
        // poller's own poll begins and ends in one call, so the poller may be in a call. Assumption:
        // providers lock a completion queue while it is polled.
        match unsafe { ffi::ibv_start_poll(raw, &raw mut attr) } {
            0 => {
                // SAFETY: the poll was started above.
                unsafe { ffi::ibv_end_poll(raw) };
                1
            }
            libc::ENOENT => 0,
            _ => -1,
        }
    }
}

/// A weak reference to a completion queue.
#[derive(Debug)]
pub(crate) struct Queue(Weak<CqInner>);

impl Queue {
    pub(super) fn of(queue: &Arc<CqInner>) -> Self {
        Self(Arc::downgrade(queue))
    }

    /// After the removal of a device, fetches and discards all completions of the queue, so that
    /// the device's library copies no more messages. Returns whether the queue is empty; a
    /// destroyed queue is.
    pub(crate) fn discard_completions(&self) -> bool {
        self.0
            .upgrade()
            .is_none_or(|queue| queue.discard_completions())
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let _: i32 = self.ctx.destroy(|| {
            // SAFETY: the queue exists and is destroyed once, here; queue pairs on the queue hold an
            // `Arc` of `self`. Every event is acknowledged when taken, so this does not block. A queue
            // pair that could not be destroyed makes this fail with `EBUSY`: the queue is then leaked
            // as well. A resize may have failed. Assumption: a queue whose resize has failed can be
            // destroyed.
            unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) }
        });
    }
}

/// The completions of one [`CompletionQueue::poll`].
///
/// After a drop, the next call returns the unread completions. After a `mem::forget`, they count as
/// dropped completions.
pub struct Completions<'p> {
    // INVARIANT: of the batch of `cq`, not touched through `cq`; the last is before `end`.
    unread: &'p [ffi::ibv_wc],
    end: u32,
    cq: &'p mut CompletionQueue,
}

impl<'p> Iterator for Completions<'p> {
    type Item = WorkCompletion<'p>;

    #[inline]
    fn next(&mut self) -> Option<WorkCompletion<'p>> {
        let (wc, unread) = self.unread.split_first()?;
        self.unread = unread;
        Some(WorkCompletion::new(wc))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.unread.len(), Some(self.unread.len()))
    }
}

impl ExactSizeIterator for Completions<'_> {}

impl Drop for Completions<'_> {
    /// Leaves the completions not taken to the next poll.
    #[inline]
    fn drop(&mut self) {
        if !self.unread.is_empty() {
            self.cq.leave(self.unread.as_ptr(), self.end);
        }
    }
}

impl fmt::Debug for Completions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions")
            .field("left", &self.len())
            .finish()
    }
}

impl fmt::Debug for CqInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CqInner")
            .field("room", &self.account)
            .finish_non_exhaustive()
    }
}
