//! Sockets with possible new events, by name.

use std::{
    collections::BTreeSet,
    io, mem,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Wake, Waker},
};

use rustix::event::{Timespec, epoll};
use verbs::{fd::InternalFd, waiting::EventFd};

use crate::waiting::EventSource;

/// Maximum number of sources fetched from the kernel in one call.
const MAX_EVENTS: usize = 64;

/// Name of the eventfd among the sources. A socket with this name is listed at each event of others too.
const EVENT: u64 = u64::MAX;

/// Names of sockets with an event of their source, or with a woken task. The cost of a wait depends on the
/// number of events only. Readable while there is such a socket.
#[derive(Debug)]
pub(crate) struct ReadyList {
    /// `epoll` instance of the sources, edge-triggered, and of `event`.
    sources: InternalFd,
    event: EventFd,
    names: Mutex<BTreeSet<u64>>,
}

impl ReadyList {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let sources = verbs::fd::raised(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let event = EventFd::new()?;
        let data = epoll::EventData::new_u64(EVENT);
        epoll::add(&sources, &event, data, epoll::EventFlags::IN)?;
        Ok(Arc::new(Self {
            sources,
            event,
            names: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket.
    pub(crate) fn push(&self, name: u64) {
        let mut names = self.lock();
        let was_empty = names.is_empty();
        names.insert(name);
        drop(names);
        if was_empty {
            self.notify();
        }
    }

    /// Makes the list readable until the next [`take`](Self::take).
    pub(crate) fn notify(&self) {
        self.event.notify();
    }

    /// Returns a waker that adds a socket.
    pub(crate) fn task(self: &Arc<Self>, name: u64) -> Waker {
        let list = Arc::downgrade(self);
        Waker::from(Arc::new(ReadyTask { list, name }))
    }

    /// Adds a socket at each event of a source, until closed.
    pub(crate) fn watch(&self, name: u64, source: &impl EventSource) -> io::Result<()> {
        source.add_to(&self.sources, true, name)
    }

    pub(crate) fn unwatch(&self, source: &impl EventSource) {
        // Fails harmlessly for a source that was never watched.
        drop(source.remove_from(&self.sources));
    }

    /// Takes the sockets, at least those added before the call, possibly with [`EVENT`] besides. Without any,
    /// sleeps for the timeout; without a timeout, until there is one, or until a signal.
    pub(crate) fn take(&self, timeout: Option<&Timespec>) -> BTreeSet<u64> {
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        // Only a signal interrupts the call; the events stay pending.
        let _: rustix::io::Result<usize> = epoll::wait(&self.sources, buffer, timeout);
        // Drained before taking the names: a name added later notifies again.
        self.event.drain();
        let mut names = mem::take(&mut *self.lock());
        names.extend(events.iter().map(|event| event.data.u64()));
        if events.len() == MAX_EVENTS {
            self.notify();
        }
        names
    }
}

impl AsFd for ReadyList {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sources.as_fd()
    }
}

struct ReadyTask {
    list: Weak<ReadyList>,
    name: u64,
}

impl Wake for ReadyTask {
    fn wake(self: Arc<Self>) {
        if let Some(list) = self.list.upgrade() {
            list.push(self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn take(list: &ReadyList) -> Vec<u64> {
        let mut names = list.take(Some(&Timespec::default()));
        names.remove(&EVENT);
        names.into_iter().collect()
    }

    #[test]
    fn socket_is_listed_once_for_several_events() {
        let list = ReadyList::new().unwrap();
        let source = Arc::new(EventFd::new().unwrap());
        list.watch(7, &source).unwrap();
        let task = list.task(7);
        assert_eq!(take(&list), []);
        source.notify();
        task.wake_by_ref();
        list.push(3);
        assert_eq!(take(&list), [3, 7]);
        assert_eq!(take(&list), [], "an event is an edge");
        source.notify();
        assert_eq!(take(&list), [7]);
        list.unwatch(&source);
        source.notify();
        assert_eq!(take(&list), []);
        task.wake();
        let is_readable = verbs::fd::wait_readable("poll", list.as_fd(), Some(Duration::ZERO));
        assert!(is_readable.unwrap());
        assert!(list.take(None).contains(&7));
    }

    #[test]
    fn socket_with_any_name_is_listed() {
        let list = ReadyList::new().unwrap();
        let sources = [0, EVENT].map(|name| {
            let source = Arc::new(EventFd::new().unwrap());
            list.watch(name, &source).unwrap();
            (name, source)
        });
        for (name, source) in &sources {
            source.notify();
            assert!(list.take(None).contains(name));
        }
    }

    #[test]
    fn more_events_than_fetched_at_once_are_all_listed() {
        let list = ReadyList::new().unwrap();
        let sources = [(); 2 * MAX_EVENTS].map(|()| Arc::new(EventFd::new().unwrap()));
        for (name, source) in (0..).zip(&sources) {
            list.watch(name, source).unwrap();
            source.notify();
        }
        let mut names = BTreeSet::new();
        for _ in 0..3 {
            names.extend(list.take(None));
        }
        names.remove(&EVENT);
        assert_eq!(names.len(), sources.len());
    }
}
