//! Waking and stopping a running event loop.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use verbs::waiting::EventFd;

/// Wakes and stops an [`EventLoop`](super::EventLoop), from any thread.
#[derive(Clone, Debug)]
pub struct Handle(Arc<HandleShared>);

#[derive(Debug)]
struct HandleShared {
    is_stopped: AtomicBool,
    is_woken: AtomicBool,
    /// Notified after one of the flags has been set.
    event: EventFd,
}

impl Handle {
    pub(super) fn new() -> verbs::Result<Self> {
        Ok(Self(Arc::new(HandleShared {
            is_stopped: AtomicBool::new(false),
            is_woken: AtomicBool::new(false),
            event: EventFd::new()?,
        })))
    }

    /// `write(2)`—Makes the loop call [`Protocol::woken`](super::Protocol::woken), soon. Calls coalesce until then. May
    /// be called by the protocol itself, to reach other connections from a callback of one. Does not block.
    pub fn wake(&self) {
        if !self.0.is_woken.swap(true, Ordering::AcqRel) {
            self.0.event.notify();
        }
    }

    /// `write(2)`—Makes the loop close its listener, disconnect its connections, and return once they have ended, or 10 s later
    /// if a peer does not answer. Connections whose peers have not completed the handshake end at once. A further call has no
    /// effect, nor has a call after the loop's end. Does not block.
    pub fn stop(&self) {
        if !self.0.is_stopped.swap(true, Ordering::AcqRel) {
            self.0.event.notify();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Acquire)
    }

    /// Takes a [wake-up](Self::wake).
    pub(super) fn take_woken(&self) -> bool {
        self.0.is_woken.swap(false, Ordering::AcqRel)
    }

    /// The descriptor notified by each call with an effect.
    pub(super) fn event(&self) -> &EventFd {
        &self.0.event
    }

    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
