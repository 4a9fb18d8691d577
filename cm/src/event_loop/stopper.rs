//! Stopping a running event loop.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use verbs::waiting::EventFd;

/// Stops an [`EventLoop`](super::EventLoop), from any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stopped: AtomicBool,
    /// Readable once the loop is stopped.
    event: EventFd,
}

impl Stopper {
    pub(super) fn new() -> verbs::Result<Self> {
        Ok(Self(Arc::new(Shared {
            stopped: AtomicBool::new(false),
            event: EventFd::new()?,
        })))
    }

    /// `write(2)`—Makes the loop close its listener, disconnect its connections, and return once they have ended, or 10 s later
    /// if a peer does not answer. Connections whose peers have not completed the handshake end at once. A further call has no
    /// effect, nor has a call after the loop's end. Does not block.
    pub fn stop(&self) {
        if !self.0.stopped.swap(true, Ordering::Release) {
            self.0.event.notify();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Acquire)
    }

    /// The descriptor that is readable once the loop is stopped. Not for users: reading it would take the notification.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
