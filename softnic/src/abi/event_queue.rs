//! Pending events of a channel or a context, and a descriptor that is readable while events are pending.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::set_errno;
use crate::fabric::{Charge, Port, Resource};

/// Pending events, oldest first.
#[derive(Debug)]
pub(super) struct EventQueue<T> {
    /// An `eventfd(2)`; blocking unless changed by the program.
    fd: OwnedFd,
    state: Mutex<QueueState<T>>,
    /// The descriptor in the accounts of the host, if there is one.
    _descriptor: Option<Charge>,
}

#[derive(Debug)]
struct QueueState<T> {
    events: VecDeque<T>,
    /// Number of threads that read the descriptor without the lock, to wait for an event.
    readers: usize,
}

impl<T> EventQueue<T> {
    /// Creates a queue, whose descriptor counts on the host, if given. Fails with an errno.
    pub(super) fn new(port: Option<&Port>) -> Result<Self, i32> {
        let charge = |port: &Port| port.accounts().charge(Resource::Descriptors, 1);
        let descriptor = port.map(charge).transpose()?;
        // SAFETY: takes and returns numbers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::ENOMEM));
        }
        Ok(Self {
            // SAFETY: the descriptor is fresh, and not owned elsewhere.
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            state: Mutex::new(QueueState {
                events: VecDeque::new(),
                readers: 0,
            }),
            _descriptor: descriptor,
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event. Each call also wakes edge-triggered pollers of the descriptor.
    pub(super) fn push(&self, event: T) {
        let mut state = self.lock();
        state.events.push_back(event);
        self.signal();
    }

    /// Takes the oldest event, and calls `on_event` before any other thread can remove events.
    pub(super) fn take(&self, on_event: impl FnOnce(&T)) -> Option<T> {
        let mut state = self.lock();
        let event = state.events.pop_front()?;
        on_event(&event);
        self.drain_if_empty(&state);
        Some(event)
    }

    /// Takes the oldest event, after waiting for it. Returns `None` with `errno` set as by [`wait`](Self::wait).
    pub(super) fn receive(&self) -> Option<T> {
        loop {
            let event = self.take(|_| {});
            if event.is_some() || !self.wait() {
                return event;
            }
        }
    }

    /// Removes matching events, and returns them. Never blocks.
    pub(super) fn remove(&self, is_unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut state = self.lock();
        if state.events.is_empty() {
            return Vec::new();
        }
        let all = std::mem::take(&mut state.events);
        let (unwanted, retained): (Vec<_>, Vec<_>) = all.into_iter().partition(is_unwanted);
        state.events = retained.into();
        self.drain_if_empty(&state);
        unwanted
    }

    /// Blocks until an event may be pending. Returns false with `errno` set if the descriptor is nonblocking, or after
    /// a signal, except one whose handler restarts system calls.
    pub(super) fn wait(&self) -> bool {
        self.lock().readers += 1;
        let read = self.drain();
        let mut state = self.lock();
        state.readers -= 1;
        if !state.events.is_empty() {
            // The read has taken the readability from the other threads.
            self.signal();
        }
        drop(state);
        if let Err(errno) = read {
            set_errno(errno);
        }
        read.is_ok()
    }

    /// Makes the descriptor readable.
    fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // The count stays far below the maximum, so the call neither fails nor blocks.
        // SAFETY: an open descriptor, and a buffer of eight bytes.
        let _: isize = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor unreadable. Without a count, blocks, or fails with an errno.
    fn drain(&self) -> Result<(), i32> {
        let mut count = [0_u8; 8];
        // SAFETY: an open descriptor, and a buffer of eight bytes.
        let read = unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), count.len()) };
        if read < 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        Ok(())
    }

    /// Makes the descriptor unreadable if no event is left. Called after the removal of an event.
    fn drain_if_empty(&self, state: &QueueState<T>) {
        // A reader takes the count by itself. Without one, the count is not zero, and the call does not block.
        if state.events.is_empty() && state.readers == 0 {
            let _drained: Result<(), i32> = self.drain();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;
    use crate::{Fabric, fabric};

    fn queue() -> EventQueue<u64> {
        let host = Fabric::new().host([10, 9, 0, 1].into());
        host.run(|| EventQueue::new(fabric::current().as_ref()).unwrap())
    }

    fn is_readable(queue: &EventQueue<u64>) -> bool {
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
        let queue = queue();
        assert!(!is_readable(&queue));
        for event in [1, 2, 1, 3] {
            queue.push(event);
        }
        assert_eq!(queue.take(|_| {}), Some(1));
        assert!(is_readable(&queue));
        assert_eq!(queue.remove(|event| *event == 1), [1]);
        assert!(is_readable(&queue));
        assert_eq!(queue.remove(|event| *event == 2), [2]);
        assert_eq!(queue.receive(), Some(3));
        assert!(!is_readable(&queue));
        assert_eq!(queue.take(|_| {}), None);
        assert!(queue.remove(|_| true).is_empty());
    }

    #[test]
    fn nonblocking_receive_without_event_fails() {
        let queue = queue();
        // SAFETY: an open descriptor, and integers.
        let set = unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(set, 0);
        assert_eq!(queue.receive(), None);
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
        queue.push(1);
        assert!(queue.wait());
        assert!(is_readable(&queue), "the event is still there");
        assert_eq!(queue.receive(), Some(1));
    }

    /// Blocked receivers, removals that never block, and a writer: no event is lost, and none is taken twice.
    #[test]
    fn each_event_is_received_or_removed_once() {
        const EVENTS: u64 = 20_000;
        const END: u64 = u64::MAX;
        let queue = Arc::new(queue());
        let receive = |queue: &EventQueue<u64>| {
            std::iter::from_fn(|| queue.receive().filter(|event| *event != END)).collect()
        };
        let receivers = [(); 2].map(|()| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || -> Vec<u64> { receive(&queue) })
        });
        let mut dequeued = Vec::new();
        for event in 0..EVENTS {
            queue.push(event);
            dequeued.extend(queue.remove(|pending| pending % 3 == 0));
        }
        for _ in &receivers {
            queue.push(END);
        }
        for receiver in receivers {
            dequeued.extend(receiver.join().unwrap());
        }
        dequeued.sort_unstable();
        assert!(dequeued.into_iter().eq(0..EVENTS));
    }
}
