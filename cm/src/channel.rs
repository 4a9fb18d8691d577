//! Event channels: delivery of the kernel's events for identifiers.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use rdmacm_sys as ffi;
use verbs::{
    Result,
    device::check_environment,
    error::{cvt_neg, cvt_ptr},
    fd::{NotifyFd, above_standard, raises, set_made_by_c, set_nonblocking, wait_for},
    fork::fork_generation,
};

use crate::{
    contexts::{Contexts, devices},
    dispatch::RawEvent,
    event::Event,
    posted::{Posted, PostedEvents},
    reaper::Reaper,
    registry::{Key, Registry},
};

/// `rdma_event_channel`—Delivers the events of the identifiers created on this channel.
///
/// An event is read and acknowledged in one step, and owns all data. So an identifier can be destroyed at any
/// time, without waiting for an acknowledgement.
///
/// Threads can share the channel. `poll` and `epoll` work through [`AsFd`]; the descriptor only signals
/// readiness, see [`NotifyFd`].
///
/// Identifiers owned by the program keep the channel's resources alive. Dropping the channel destroys the
/// identifiers pending for an event, because no event can be read any more.
///
/// # References
/// [rdma_create_event_channel(3)](https://man7.org/linux/man-pages/man3/rdma_create_event_channel.3.html)
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_destroy_event_channel")]
#[derive(Debug)]
pub struct EventChannel {
    handle: Arc<ChannelHandle>,
}

/// The part of a channel shared with the identifiers.
pub(crate) struct ChannelHandle {
    raw: OwnedChannel,
    /// Stands in for the channel's own descriptor, which is never exposed: the descriptor accepts commands
    /// for the connection manager, and in blocking mode would block [`EventChannel::try_next`].
    notify: NotifyFd,
    posted: PostedEvents,
    registry: Mutex<Registry>,
    /// Held while an event is read and dispatched, so that no event of a new identifier is read before the
    /// identifier has a key.
    dispatch: Mutex<()>,
    contexts: Mutex<Contexts>,
    /// Destroys the channel's identifiers, if set.
    reaper: OnceLock<Reaper>,
}

// INVARIANT: open, and closed only in `drop`.
struct OwnedChannel {
    raw: NonNull<ffi::rdma_event_channel>,
    /// The process that opened the channel, by its fork generation.
    process: u64,
}

// SAFETY: a channel is a file descriptor. Assumption: calls of librdmacm may be made from any
// thread.
unsafe impl Send for OwnedChannel {}
// SAFETY: see `Send`.
unsafe impl Sync for OwnedChannel {}

impl EventChannel {
    /// `rdma_create_event_channel`—Opens a channel.
    ///
    /// # Errors
    /// - `ENODEV`, `ENOENT`: the kernel has no RDMA connection manager (module `rdma_ucm`).
    /// - `EACCES`: no permission to open `/dev/infiniband/rdma_cm`.
    /// - `EMFILE`, `ENFILE`: too many open files.
    /// - `Unsupported`: see [`check_environment`].
    ///
    /// # References
    /// [rdma_create_event_channel(3)](https://man7.org/linux/man-pages/man3/rdma_create_event_channel.3.html)
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self> {
        // librdmacm opens all devices.
        check_environment("rdma_create_event_channel")?;
        // SAFETY: the call has no preconditions.
        let create = || unsafe { ffi::rdma_create_event_channel() };
        let raw = above_standard(create);
        if raises() {
            // Opens the devices here, where they take no number of a standard stream. Without any, identifiers have the error.
            drop(devices());
        }
        let raw = OwnedChannel {
            raw: cvt_ptr("rdma_create_event_channel", raw)?,
            process: fork_generation(),
        };
        set_made_by_c(raw.event_fd().as_raw_fd(), true);
        set_nonblocking(raw.event_fd(), true)?;
        let handle = ChannelHandle {
            notify: NotifyFd::of(raw.event_fd())?,
            raw,
            posted: PostedEvents::default(),
            registry: Mutex::default(),
            dispatch: Mutex::default(),
            contexts: Mutex::default(),
            reaper: OnceLock::new(),
        };
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// Opens a channel whose identifiers the reaper destroys, if any.
    pub(crate) fn with_reaper(reaper: Option<&Reaper>) -> Result<Self> {
        let channel = Self::new()?;
        if let Some(reaper) = reaper {
            channel.set_reaper(reaper);
        }
        Ok(channel)
    }

    /// `rdma_get_cm_event`, `rdma_ack_cm_event`—Reads the next event, if any. Never blocks.
    ///
    /// # Errors
    /// - `EIO`, `ENODEV`: the connection manager has been unloaded.
    ///
    /// # References
    /// [rdma_get_cm_event(3)](https://man7.org/linux/man-pages/man3/rdma_get_cm_event.3.html)
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn try_next(&self) -> Result<Option<Event>> {
        while let Some(posted) = self.handle.posted.take() {
            // `None` if the event's identifier has been dropped meanwhile.
            if let Some(event) = posted.deliver(&self.handle) {
                #[cfg(feature = "tracing")]
                let event = crate::trace::delivered(event, &self.handle);
                return Ok(Some(event));
            }
        }
        loop {
            let dispatch = self.handle.dispatch_lock();
            let mut raw = ptr::null_mut();
            // SAFETY: the channel is open (invariant), and `raw` is valid for writes.
            let ret = unsafe { ffi::rdma_get_cm_event(self.handle.as_ptr(), &raw mut raw) };
            let raw = match cvt_neg("rdma_get_cm_event", ret) {
                Ok(_) => cvt_ptr("rdma_get_cm_event", raw)?,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                Err(err) => return Err(err),
            };
            // SAFETY: the event has just been read, under the dispatch lock, and is not acknowledged.
            let raw_event = unsafe { RawEvent::read(raw, &self.handle) };
            // SAFETY: the event is acknowledged once, here, and not used afterwards.
            let ret = unsafe { ffi::rdma_ack_cm_event(raw.as_ptr()) };
            cvt_neg("rdma_ack_cm_event", ret)?;
            if let Some(event) = raw_event.deliver(&self.handle) {
                drop(dispatch);
                #[cfg(feature = "tracing")]
                let event = crate::trace::delivered(event, &self.handle);
                return Ok(Some(event));
            }
            // The event's identifier has been dropped meanwhile.
        }
    }

    /// Blocks until the next event.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    pub fn wait(&self) -> Result<Event> {
        loop {
            let fd = self.handle.notify.as_fd();
            let waited = wait_for("rdma_get_cm_event", fd, None, || self.try_next())?;
            if let Some(event) = waited {
                return Ok(event);
            }
        }
    }

    /// Blocks until the next event, at most for `timeout`; then the result is `None`.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Event>> {
        let fd = self.handle.notify.as_fd();
        wait_for("rdma_get_cm_event", fd, Some(timeout), || self.try_next())
    }

    /// Posts [`Event::User`] to this channel, which wakes one thread or task blocked on the channel. Returns
    /// without blocking, from any thread. `key`, `status` and `arg` are returned in the event, and have no
    /// effect; the identifier may have been dropped.
    ///
    /// Posted events are delivered in order, before the kernel's. A channel has one more descriptor from the first
    /// call on.
    ///
    /// `rdma_write_cm_event` of C goes through the kernel, so needs rdma-core 60 and a kernel with the command; this
    /// call needs neither.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open files. Only in the first call.
    ///
    /// # Examples
    /// ```
    /// # let _fabric = doctest::host();
    /// use cm::{Event, EventChannel};
    ///
    /// let channel = EventChannel::new()?;
    /// let id = channel.create_id()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| channel.write_event(id.key(), 0, 42));
    ///     let Event::User { arg, .. } = channel.wait()? else { panic!("not written here") };
    ///     assert_eq!(arg, 42);
    ///     Ok::<(), verbs::Error>(())
    /// })?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [rdma_write_cm_event(3)](https://github.com/linux-rdma/rdma-core/blob/master/librdmacm/man/rdma_write_cm_event.3.in.rst)
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_event(&self, key: Key, status: i32, arg: u64) -> Result<()> {
        self.handle.enable_posting()?;
        self.handle.post(Posted::User { key, status, arg });
        Ok(())
    }

    /// Whether the kernel refuses all calls on this channel and its identifiers with `EACCES`: the process has other credentials
    /// than when it opened the channel, as after `setuid(2)`, `setgroups(2)` or `capset(2)`. Final, also with the old user again. A new
    /// channel works, and takes identifiers by [`CmId::migrate`](crate::CmId::migrate). An identifier that is dropped on this
    /// channel keeps its address until the channel is closed. Established connections carry data as before.
    pub fn is_refused(&self) -> bool {
        let command = [0_u8];
        let fd = self.handle.event_fd().as_raw_fd();
        // The kernel refuses a command shorter than its header: with `EACCES`, or else with `EINVAL`.
        // SAFETY: the buffer has one byte.
        let written = unsafe { libc::write(fd, command.as_ptr().cast(), command.len()) };
        written == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES)
    }

    /// Destroys an identifier pending for an event, and suppresses the event. Returns false if the identifier
    /// was not pending; the event may have been delivered just before.
    pub fn cancel(&self, key: Key) -> bool {
        let id = {
            let mut registry = self.handle.registry();
            if registry.parked(key).is_none() {
                return false;
            }
            registry.remove(key)
        };
        // Destroyed here, outside the lock.
        id.is_some()
    }

    /// Lets threads of `reaper` destroy the identifiers on this channel from now on, so that their drop, [`cancel`](Self::cancel) and
    /// the drop of the channel do not block. The address of a dropped listener may then be in use for a moment. The first call of
    /// a channel counts; the result is whether this is the first.
    pub fn set_reaper(&self, reaper: &Reaper) -> bool {
        self.handle.reaper.set(reaper.clone()).is_ok()
    }

    /// The C object, for calls not wrapped by this crate. Valid for as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::rdma_event_channel {
        self.handle.as_ptr()
    }

    pub(crate) fn handle(&self) -> &Arc<ChannelHandle> {
        &self.handle
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        if self.handle.is_inherited() {
            return;
        }
        let waiting = self.handle.registry().close();
        // Destroyed here, outside the lock.
        drop(waiting);
    }
}

/// Readable when an event is pending. The descriptor is only for registration with an event loop.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.notify.as_fd()
    }
}

impl ChannelHandle {
    pub(crate) fn as_ptr(&self) -> *mut ffi::rdma_event_channel {
        self.raw.raw.as_ptr()
    }

    /// The channel's own descriptor, read by librdmacm; not exposed to users.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.raw.event_fd()
    }

    /// Prepares the channel for [`post`](Self::post).
    pub(crate) fn enable_posting(&self) -> Result<()> {
        self.posted.enable(&self.notify)
    }

    /// Posts an event of this process.
    pub(crate) fn post(&self, event: Posted) {
        self.posted.post(event);
    }

    /// Whether the channel was opened before a fork, by a parent of this process. The kernel's objects are the
    /// parent's then, and another thread of the parent may have held any lock.
    pub(crate) fn is_inherited(&self) -> bool {
        self.raw.is_inherited()
    }

    pub(crate) fn reaper(&self) -> Option<&Reaper> {
        self.reaper.get()
    }

    /// Devices of the identifiers of this channel.
    pub(crate) fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Excludes other readers of events from this channel.
    pub(crate) fn dispatch_lock(&self) -> MutexGuard<'_, ()> {
        self.dispatch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The registry of identifiers. No code that could panic runs under this lock, so poisoning is ignored.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnedChannel {
    fn is_inherited(&self) -> bool {
        self.process != fork_generation()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open (invariant), and `fd` is constant.
        let fd = unsafe { (*self.raw.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel, so for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl AsRawFd for ChannelHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.notify.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for ChannelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelHandle")
            .field("fd", &self.event_fd())
            .finish_non_exhaustive()
    }
}

impl Drop for OwnedChannel {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        set_made_by_c(self.event_fd().as_raw_fd(), false);
        // SAFETY: the channel is open, and closed once, here; identifiers hold an `Arc` of the handle, so
        // none is left.
        unsafe { ffi::rdma_destroy_event_channel(self.raw.as_ptr()) };
    }
}
