//! Event channels: where the kernel tells what has become of identifiers.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr::{self, NonNull},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rdmacm_sys as ffi;
use verbs::{
    Result,
    error::{cvt_neg, cvt_ptr},
    fd::{NotifyFd, set_nonblocking, wait_for},
};

use crate::{
    contexts::Contexts,
    event::Event,
    intake::Intake,
    registry::{Key, Registry},
};

/// `rdma_event_channel`—Tells what has become of the identifiers made on it.
///
/// An event is taken and acknowledged in one step, and owns everything it says. So an identifier
/// can be destroyed at any time, and that never waits for somebody to be done with an event.
///
/// The channel can be shared by threads. It can be waited for with `poll` or `epoll` through
/// [`AsFd`], whose descriptor can be registered and does nothing else; see [`NotifyFd`].
///
/// Identifiers that the program has keep what they need of the channel. Dropping the channel
/// destroys those that are waiting for an event, which nobody could take any more.
///
/// # References
/// [rdma_create_event_channel(3)](https://man7.org/linux/man-pages/man3/rdma_create_event_channel.3.html)
#[doc(alias = "rdma_event_channel")]
#[doc(alias = "rdma_destroy_event_channel")]
#[derive(Debug)]
pub struct EventChannel {
    handle: Arc<ChannelHandle>,
}

/// The part of a channel that its identifiers share.
pub(crate) struct ChannelHandle {
    raw: OwnedChannel,
    /// In place of the channel's own descriptor, which is never handed out: it takes commands for
    /// the connection manager, and blocks [`EventChannel::try_next`] if it is made blocking.
    notify: NotifyFd,
    registry: Mutex<Registry>,
    /// Held while an event is read and understood, so that no event of a new identifier is read
    /// before that one has got its key.
    intake: Mutex<()>,
    contexts: Mutex<Contexts>,
}

// INVARIANT: open, and closed only in `drop`.
struct OwnedChannel(NonNull<ffi::rdma_event_channel>);

// SAFETY: a channel is a file descriptor; librdmacm allows its calls from any thread.
unsafe impl Send for OwnedChannel {}
// SAFETY: see `Send`.
unsafe impl Sync for OwnedChannel {}

impl EventChannel {
    /// `rdma_create_event_channel`—Opens a channel.
    ///
    /// # Errors
    /// - `ENODEV`, `ENOENT`: the kernel has no RDMA connection manager (module `rdma_ucm`).
    /// - `EACCES`: no right to open `/dev/infiniband/rdma_cm`.
    /// - `EMFILE`, `ENFILE`: too many open files.
    ///
    /// # References
    /// [rdma_create_event_channel(3)](https://man7.org/linux/man-pages/man3/rdma_create_event_channel.3.html)
    #[doc(alias = "rdma_create_event_channel")]
    pub fn new() -> Result<Self> {
        // SAFETY: the call has no conditions.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        let raw = OwnedChannel(cvt_ptr("rdma_create_event_channel", raw)?);
        set_nonblocking(raw.event_fd(), true)?;
        let handle = ChannelHandle {
            notify: NotifyFd::of(raw.event_fd())?,
            raw,
            registry: Mutex::default(),
            intake: Mutex::default(),
            contexts: Mutex::default(),
        };
        Ok(Self {
            handle: Arc::new(handle),
        })
    }

    /// `rdma_get_cm_event`, `rdma_ack_cm_event`—Takes the next event, if there is one. Never
    /// blocks.
    ///
    /// # Errors
    /// - `EIO`, `ENODEV`: the connection manager is gone.
    ///
    /// # References
    /// [rdma_get_cm_event(3)](https://man7.org/linux/man-pages/man3/rdma_get_cm_event.3.html)
    #[doc(alias = "rdma_get_cm_event")]
    #[doc(alias = "rdma_ack_cm_event")]
    pub fn try_next(&self) -> Result<Option<Event>> {
        loop {
            let _intake = self.handle.intake();
            let mut raw = ptr::null_mut();
            // SAFETY: the channel is open (invariant), and `raw` is a valid place for the event.
            let ret = unsafe { ffi::rdma_get_cm_event(self.handle.as_ptr(), &raw mut raw) };
            let raw = match cvt_neg("rdma_get_cm_event", ret) {
                Ok(_) => cvt_ptr("rdma_get_cm_event", raw)?,
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                Err(err) => return Err(err),
            };
            // SAFETY: the event has just been read, under the intake lock, and is not acknowledged.
            let intake = unsafe { Intake::read(raw, &self.handle) };
            // SAFETY: the event is acknowledged once, here, and not used after this.
            let ret = unsafe { ffi::rdma_ack_cm_event(raw.as_ptr()) };
            cvt_neg("rdma_ack_cm_event", ret)?;
            if let Some(event) = intake.deliver(&self.handle) {
                return Ok(Some(event));
            }
            // It was of an identifier that has been dropped meanwhile.
        }
    }

    /// Waits for the next event, for ever.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    pub fn wait(&self) -> Result<Event> {
        loop {
            let fd = self.handle.event_fd();
            let waited = wait_for("rdma_get_cm_event", fd, None, || self.try_next())?;
            if let Some(event) = waited {
                return Ok(event);
            }
        }
    }

    /// Waits for the next event, but not longer than `timeout`, after which the result is `None`.
    ///
    /// # Errors
    /// As for [`try_next`](Self::try_next).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Event>> {
        let fd = self.handle.event_fd();
        wait_for("rdma_get_cm_event", fd, Some(timeout), || self.try_next())
    }

    /// Destroys an identifier that waits for an event, which then does not come. Returns whether
    /// there was one: it may just have come back.
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

    /// The C object, for calls that this crate does not wrap. It is open for as long as `self`
    /// lives.
    pub fn as_raw(&self) -> *mut ffi::rdma_event_channel {
        self.handle.as_ptr()
    }

    pub(crate) fn handle(&self) -> &Arc<ChannelHandle> {
        &self.handle
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        let waiting = self.handle.registry().close();
        // Destroyed here, outside the lock.
        drop(waiting);
    }
}

/// Readable when there is an event. The descriptor can be registered with an event loop, and does
/// nothing else.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.notify.as_fd()
    }
}

impl ChannelHandle {
    pub(crate) fn as_ptr(&self) -> *mut ffi::rdma_event_channel {
        self.raw.0.as_ptr()
    }

    /// The channel's own descriptor, from which C reads events. Not for users.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        self.raw.event_fd()
    }

    /// The devices that identifiers of this channel have been found on.
    pub(crate) fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps others from reading events of this channel.
    pub(crate) fn intake(&self) -> MutexGuard<'_, ()> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The identifiers. No code that could panic runs under this lock, so it is never poisoned for
    /// a reason.
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnedChannel {
    fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open (invariant), and `fd` is set for good when it is opened.
        let fd = unsafe { (*self.0.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel is, and so for as long as
        // `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl AsRawFd for ChannelHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.event_fd().as_raw_fd()
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
        // SAFETY: the channel is open, and closed once, here; identifiers hold an `Arc` of the
        // handle, so they are gone.
        unsafe { ffi::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}
