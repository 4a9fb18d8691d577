//! Pending events of a channel, and a descriptor that is readable while events are pending.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    abi::acks::Acks,
    cm::{GroupId, Occurrence},
};

/// Destination of an identifier's events.
#[derive(Clone, Debug)]
pub(in crate::abi) struct CmSubject {
    /// Address of the identifier's C struct.
    pub(in crate::abi) addr: usize,
    pub(in crate::abi) queue: Arc<EventQueue>,
    /// Unacknowledged events.
    pub(in crate::abi) acks: Arc<Acks>,
}

/// A pending event.
#[derive(Debug)]
pub(in crate::abi) struct Queued {
    /// Address of the identifier's C struct.
    pub(in crate::abi) addr: usize,
    pub(in crate::abi) what: Occurrence,
    pub(in crate::abi) acks: Arc<Acks>,
}

/// Pending events of a channel.
#[derive(Debug)]
pub(in crate::abi) struct EventQueue {
    /// An `eventfd(2)`, readable while events are pending.
    fd: OwnedFd,
    events: Mutex<VecDeque<Queued>>,
}

impl EventQueue {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: takes and returns numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: the descriptor is fresh, and not owned elsewhere.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            events: Mutex::default(),
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn events(&self) -> MutexGuard<'_, VecDeque<Queued>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. Each call also wakes edge-triggered pollers of the descriptor.
    pub(in crate::abi) fn push(&self, event: Queued) {
        let mut events = self.events();
        events.push_back(event);
        let one = 1_u64.to_ne_bytes();
        // The count stays far below the maximum, so the call neither fails nor blocks.
        // SAFETY: an open descriptor, and a buffer of eight bytes.
        let _: isize = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the oldest event; the event counts as unacknowledged from then on.
    pub(super) fn take(&self) -> Option<Queued> {
        let mut events = self.events();
        let event = events.pop_front()?;
        event.acks.add();
        self.drain_if_empty(&events);
        Some(event)
    }

    /// Removes matching events, and returns them.
    pub(super) fn remove(&self, is_unwanted: impl Fn(&Queued) -> bool) -> Vec<Queued> {
        let mut events = self.events();
        if events.is_empty() {
            return Vec::new();
        }
        let all = std::mem::take(&mut *events);
        let (unwanted, kept): (Vec<_>, Vec<_>) = all.into_iter().partition(is_unwanted);
        *events = kept.into();
        self.drain_if_empty(&events);
        unwanted
    }

    /// Makes the descriptor unreadable if no event is left. Called after the removal of an event.
    fn drain_if_empty(&self, events: &VecDeque<Queued>) {
        if events.is_empty() {
            let mut count = [0_u8; 8];
            // An event was pending, so the count is not zero, and the call does not block.
            // SAFETY: an open descriptor, and a buffer of eight bytes.
            let _: isize = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
        }
    }

    /// Blocks until an event is pending. Returns false with `errno` set if the descriptor is nonblocking, or after a
    /// signal.
    pub(super) fn wait(&self) -> bool {
        // SAFETY: takes and returns numbers.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        if flags & libc::O_NONBLOCK != 0 {
            super::failed(libc::EAGAIN);
            return false;
        }
        let mut poll = libc::pollfd {
            fd: self.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor, in a local variable.
        unsafe { libc::poll(&raw mut poll, 1, -1) > 0 }
    }
}

impl Queued {
    /// Whether the event belongs to a membership.
    pub(super) fn is_of_group(&self, group: GroupId) -> bool {
        matches!(self.what, Occurrence::MulticastJoined { membership, .. } if membership == group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(addr: usize) -> Queued {
        Queued {
            addr,
            what: Occurrence::AddrResolved,
            acks: Arc::default(),
        }
    }

    fn is_readable(queue: &EventQueue) -> bool {
        let mut poll = libc::pollfd {
            fd: queue.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor, in a local variable.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn descriptor_is_readable_exactly_while_events_wait() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(&queue));
        for addr in [1, 2, 1] {
            queue.push(event(addr));
        }
        assert_eq!(queue.take().unwrap().addr, 1);
        assert!(is_readable(&queue));
        assert_eq!(queue.remove(|event| event.addr == 1).len(), 1);
        assert!(is_readable(&queue));
        assert_eq!(queue.remove(|event| event.addr == 2).len(), 1);
        assert!(!is_readable(&queue));
        assert!(queue.take().is_none());
        assert!(queue.remove(|_| true).is_empty());
    }
}
