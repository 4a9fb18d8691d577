//! Completion channels: file descriptors that become readable when a queue has completions.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::{Arc, OnceLock},
    time::Duration,
};

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Error, Result, cvt_neg, cvt_ptr},
    fd::{Members, NotifyFd, above_standard, set_made_by_c, set_nonblocking, wait_for},
    waiting::EventFd,
};

/// `ibv_comp_channel`—Notifies of completions in completion queues.
///
/// Any number of queues can share a channel; an event names its queue by the [`CqKey`] given when
/// the queue was created. An event is acknowledged when taken, so destroying a queue never waits
/// for an acknowledgement.
///
/// The channel can be waited for with `poll` or `epoll` through [`AsFd`], whose descriptor can be
/// registered and does nothing else; see [`NotifyFd`].
///
/// # Examples
/// One channel, one queue:
/// ```
/// # let peer = doctest::peer();
/// # let ctx = verbs::devices()?.first()?.open()?;
/// # let pd = ctx.alloc_pd()?;
/// use verbs::cq::{CqKey, Notify};
/// let channel = ctx.create_comp_channel()?;
/// let mut cq = ctx.cq_builder(16).channel(&channel, CqKey(7)).create()?;
/// # let mut qp = peer.connect(pd.qp_builder::<verbs::Rc>(&cq, &cq).create()?);
/// loop {
///     cq.req_notify(Notify::Next)?;
///     for wc in cq.poll()? {
///         println!("{:?}", wc.status());
///     }
/// #   qp.post(verbs::op::Send::new(pd.alloc_buf(5)?))?;
///     assert_eq!(channel.wait()?, CqKey(7));
/// #   break;
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_create_comp_channel(3)](https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html)
#[doc(alias = "ibv_destroy_comp_channel")]
#[doc(alias = "ibv_comp_channel")]
pub struct CompletionChannel {
    inner: Arc<ChannelHandle>,
}

/// The shared part of a channel. Queues hold a reference too, so the channel is destroyed after its
/// queues.
pub(crate) struct ChannelHandle {
    raw: OwnedChannel,
    /// In place of the channel's own descriptor, which is not handed out: an event read from
    /// there directly would never be acknowledged, and `ibv_destroy_cq` waits for the
    /// acknowledgement. Created by the first use; `None` in place of a failure.
    notify: OnceLock<Option<NotifyFd>>,
    reserve: &'static Reserve,
}

/// The descriptor of every channel without one of its own: readable while one of these has an
/// event. Created with the first channel of the process, before descriptors are used up.
#[derive(Debug)]
struct Reserve {
    notify: NotifyFd,
    /// A member, readable once a channel could not be added: then the descriptor is always readable.
    incomplete: EventFd,
}

// INVARIANT: created, and destroyed only in `drop`.
struct OwnedChannel(NonNull<ffi::ibv_comp_channel>, Context);

// SAFETY: a channel is a file descriptor and a reference count; libibverbs guards the count by a
// lock.
unsafe impl Send for OwnedChannel {}
// SAFETY: see `Send`; the kernel allows reading one descriptor from several threads.
unsafe impl Sync for OwnedChannel {}

/// The caller's name for a completion queue, carried by the queue's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CqKey(
    /// Any number.
    pub usize,
);

impl Context {
    /// `ibv_create_comp_channel(ctx)`—Creates a completion channel. Enters the kernel.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open files.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_comp_channel(3)](https://man7.org/linux/man-pages/man3/ibv_create_comp_channel.3.html)
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompletionChannel> {
        self.check_process("ibv_create_comp_channel")?;
        let reserve = Reserve::get()?;
        // SAFETY: the context is open for as long as `self` lives.
        let create = || unsafe { ffi::ibv_create_comp_channel(self.as_raw()) };
        let raw = above_standard(create);
        let raw = OwnedChannel(cvt_ptr("ibv_create_comp_channel", raw)?, self.clone());
        set_made_by_c(raw.event_fd().as_raw_fd(), true);
        set_nonblocking(raw.event_fd(), true)?;
        let inner = ChannelHandle {
            notify: OnceLock::new(),
            reserve,
            raw,
        };
        Ok(CompletionChannel {
            inner: Arc::new(inner),
        })
    }
}

impl CompletionChannel {
    /// `ibv_get_cq_event`, `ibv_ack_cq_events`—Takes the next event, if there is one. Never blocks.
    ///
    /// Each [`req_notify`](crate::cq::CqHandle::req_notify) leads to one event. After an event
    /// there *may* be completions.
    ///
    /// # Errors
    /// - `EIO`, `ENODEV`: the device is gone.
    ///
    /// # References
    /// [ibv_get_cq_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html)
    #[doc(alias = "ibv_get_cq_event")]
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn try_next(&self) -> Result<Option<CqKey>> {
        self.inner.take()
    }

    /// `ibv_get_cq_event`, `ibv_ack_cq_events`—Blocks until the next event. Signals do not end the
    /// wait. If several threads wait, each event ends the wait of one.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    ///
    /// # References
    /// [ibv_get_cq_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_cq_event.3.html)
    pub fn wait(&self) -> Result<CqKey> {
        loop {
            let fd = self.inner.event_fd();
            if let Some(key) = wait_for("ibv_get_cq_event", fd, None, || self.try_next())? {
                return Ok(key);
            }
        }
    }

    /// Blocks until the next event, for at most `timeout`; `None` if the time has elapsed.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<CqKey>> {
        let fd = self.inner.event_fd();
        wait_for("ibv_get_cq_event", fd, Some(timeout), || self.try_next())
    }

    /// `epoll_ctl(2)`—Adds the channel to an `epoll` instance, which reports `data` while there is an
    /// event, or at each event (`EPOLLET`). Unlike [`AsFd`], creates no further descriptor. Ends when
    /// the channel is destroyed, after its queues.
    ///
    /// # Errors
    /// - `EEXIST`: the channel is a member.
    /// - `ENOMEM`, `ENOSPC`: out of memory, or too many members of all `epoll` descriptors.
    /// - `EINVAL`: `epoll` is not an `epoll` instance.
    #[doc(alias = "epoll_ctl")]
    pub fn add_to_epoll(
        &self,
        epoll: BorrowedFd<'_>,
        edge_triggered: bool,
        data: u64,
    ) -> Result<()> {
        Members(epoll).add(self.inner.event_fd(), edge_triggered, data)
    }

    /// `epoll_ctl(2)`—Removes the channel from an `epoll` instance.
    ///
    /// # Errors
    /// - `ENOENT`: the channel is not a member.
    /// - `EINVAL`: `epoll` is not an `epoll` instance.
    #[doc(alias = "epoll_ctl")]
    pub fn remove_from_epoll(&self, epoll: BorrowedFd<'_>) -> Result<()> {
        Members(epoll).remove(self.inner.event_fd())
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_comp_channel {
        self.inner.raw.as_ptr()
    }

    /// Refuses the channel for a queue of another device, on behalf of `call`.
    pub(super) fn check_device(&self, call: &'static str, ctx: &Context) -> Result<()> {
        ctx.check_same(call, "the completion channel", &self.inner.raw.1)
    }

    pub(crate) fn handle(&self) -> Arc<ChannelHandle> {
        Arc::clone(&self.inner)
    }
}

impl ChannelHandle {
    /// Takes the next event; `None` if there is none.
    fn take(&self) -> Result<Option<CqKey>> {
        self.raw.1.check_process("ibv_get_cq_event")?;
        let mut cq = ptr::null_mut();
        let mut context = ptr::null_mut();
        // SAFETY: the channel is created (invariant); both places are valid, and C writes there
        // only before the return.
        let ret =
            unsafe { ffi::ibv_get_cq_event(self.raw.as_ptr(), &raw mut cq, &raw mut context) };
        match cvt_neg("ibv_get_cq_event", ret) {
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(err) => return Err(err),
        }
        // SAFETY: `cq` is the queue of the event just taken. The queue still exists, since
        // destroying it waits until each taken event has been acknowledged: here, once.
        unsafe { ffi::ibv_ack_cq_events(cq, 1) };
        Ok(Some(CqKey(context.addr())))
    }

    /// Sleeps until something is `ready`, but not longer than `timeout` (`None`: without limit); returns
    /// whether something was.
    pub(super) fn wait_until(
        &self,
        timeout: Option<Duration>,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let looked = wait_for("ibv_get_cq_event", self.event_fd(), timeout, || {
            Ok(ready()?.then_some(()))
        })?;
        Ok(looked.is_some())
    }
}

/// A queue's own channel, kept open; an error of `call` if the queue has none.
pub(super) fn own_channel(
    fd: Option<&CompletionChannel>,
    call: &'static str,
) -> Result<Arc<ChannelHandle>> {
    fd.map(CompletionChannel::handle).ok_or_else(|| {
        let reason = "the queue has no channel of its own; build it with `waitable`";
        Error::refused(call, io::ErrorKind::Unsupported, reason)
    })
}

/// Readable when there is an event. The descriptor can be registered with an event loop, and does
/// nothing else. Created by the first call, and the same from then on. With too many open files,
/// the first call returns a descriptor common to all such channels, readable at an event of any.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl AsFd for ChannelHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.notify.get_or_init(|| {
            let fd = NotifyFd::of(self.event_fd()).ok();
            if fd.is_none() {
                self.reserve.add(self.event_fd());
            }
            fd
        });
        fd.as_ref().unwrap_or(&self.reserve.notify).as_fd()
    }
}

impl Reserve {
    fn get() -> Result<&'static Self> {
        static RESERVE: OnceLock<Reserve> = OnceLock::new();
        if let Some(reserve) = RESERVE.get() {
            return Ok(reserve);
        }
        let incomplete = EventFd::new()?;
        let notify = NotifyFd::of(incomplete.as_fd())?;
        Ok(RESERVE.get_or_init(|| Self { notify, incomplete }))
    }

    fn add(&self, channel: BorrowedFd<'_>) {
        if self.notify.add(channel).is_err() {
            self.incomplete.notify();
        }
    }
}

impl ChannelHandle {
    /// The channel's own descriptor, read by C. Not for users.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.raw.event_fd()
    }
}

impl OwnedChannel {
    fn as_ptr(&self) -> *mut ffi::ibv_comp_channel {
        self.0.as_ptr()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is created (invariant), and `fd` is constant after creation.
        let fd = unsafe { (*self.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel exists, and so for as long as
        // `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl fmt::Debug for ChannelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelHandle")
            .field("fd", &self.event_fd())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel")
            .field("fd", &self.as_raw_fd())
            .finish()
    }
}

impl Drop for OwnedChannel {
    fn drop(&mut self) {
        set_made_by_c(self.event_fd().as_raw_fd(), false);
        let _: i32 = self.1.destroy(|| {
            // SAFETY: the channel exists and is destroyed once, here; its queues hold an `Arc` of
            // the handle, so none is left. A queue that could not be destroyed makes this fail with
            // `EBUSY`: the channel is then leaked as well.
            unsafe { ffi::ibv_destroy_comp_channel(self.as_ptr()) }
        });
    }
}
