//! An eventfd for waking a thread in `poll(2)`.

use std::{
    cell::RefCell,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::Arc,
    task::Wake,
    time::Duration,
};

use crate::{
    error::{Result, cvt_neg},
    fd::{InternalFd, raised},
    fork::fork_generation,
};

/// Longest sleep of a thread that is not notified.
const UNNOTIFIED_SLEEP: Duration = Duration::from_millis(1);

/// Time of a sleep of a thread without [an eventfd of its own](EventFd::of_thread), when too many
/// files are open: at most a millisecond of `time`. The thread is not notified, so it looks for itself.
pub fn unnotified_sleep(time: Option<Duration>) -> Duration {
    time.map_or(UNNOTIFIED_SLEEP, |time| time.min(UNNOTIFIED_SLEEP))
}

thread_local! {
    static OF_THREAD: RefCell<Option<(u64, Arc<EventFd>)>> = const { RefCell::new(None) };
}

/// `eventfd(2)`—A descriptor readable between [`notify`](Self::notify) and [`drain`](Self::drain).
///
/// ```
/// use std::{os::fd::AsFd, time::Duration};
/// use verbs::{fd::wait_readable, waiting::EventFd};
///
/// let event = EventFd::new()?;
/// let is_readable = || wait_readable("poll", event.as_fd(), Some(Duration::ZERO));
/// event.notify();
/// event.notify();
/// assert!(is_readable()?);
/// event.drain();
/// assert!(!is_readable()?);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Debug)]
#[doc(alias = "eventfd")]
pub struct EventFd(InternalFd);

impl EventFd {
    /// `eventfd(2)`—Creates a descriptor that is not readable. Enters the kernel.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open files.
    pub fn new() -> Result<Self> {
        // SAFETY: takes and returns numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let fd = cvt_neg("eventfd", fd)?;
        // SAFETY: the descriptor is fresh, and belongs to no other object.
        Ok(Self(raised(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Returns the descriptor of this thread, for one wait at a time. Created by the first call of the
    /// thread; a forked child gets another one. May be readable, from an earlier wait. After the
    /// destruction of the thread's local values, as in a handler of `atexit`, each call creates one.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open files.
    pub fn of_thread() -> Result<Arc<Self>> {
        let process = fork_generation();
        let event = OF_THREAD.try_with(|slot| match &mut *slot.borrow_mut() {
            Some((owner, event)) if *owner == process => Ok(Arc::clone(event)),
            slot => {
                let event = Arc::new(Self::new()?);
                *slot = Some((process, Arc::clone(&event)));
                Ok(event)
            }
        });
        event.unwrap_or_else(|_destroyed| Ok(Arc::new(Self::new()?)))
    }

    /// `write(2)`—Makes the descriptor readable. Never blocks.
    pub fn notify(&self) {
        let one = 1_u64.to_ne_bytes();
        // Fails only at the maximum of the counter, where the descriptor is readable anyway.
        // SAFETY: the descriptor is open, and C reads no more than the eight bytes before it returns.
        let _: isize = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// `read(2)`—Makes the descriptor unreadable. Never blocks.
    pub fn drain(&self) {
        let mut count = [0; 8];
        let to = count.as_mut_ptr().cast();
        // Fails with `EAGAIN` if the counter is zero.
        // SAFETY: the descriptor is open, and C writes no more than the eight bytes before it returns.
        let _: isize = unsafe { libc::read(self.0.as_raw_fd(), to, count.len()) };
    }
}

/// A [`Waker`](std::task::Waker) made from an eventfd makes the descriptor readable.
impl Wake for EventFd {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
