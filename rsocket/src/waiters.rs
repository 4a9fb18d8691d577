//! Waiters of a socket: blocked threads and watchers.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    io::{read, write},
};

use crate::proto::stream::Readiness;

/// A descriptor made readable by `notify`, until `drain`.
#[derive(Clone, Debug)]
pub(crate) struct EventFd {
    fd: Arc<OwnedFd>,
}

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd: Arc::new(fd) })
    }

    pub(crate) fn notify(&self) {
        // Fails only at the maximum count, with the descriptor already readable.
        let _: Result<usize, _> = write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Whether both are handles of the same eventfd.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fd, &other.fd)
    }

    pub(crate) fn drain(&self) {
        // Fails if the eventfd has not been notified.
        let _: Result<usize, _> = read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Readiness without any bit, for waking waiters with `Interest::ANY` only.
pub(crate) const NOTHING: Readiness = Readiness {
    readable: false,
    writable: false,
    ended: false,
    hung_up: false,
    failed: false,
};

/// Events requested by a waiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Any event.
    pub(crate) any: bool,
}

impl Interest {
    pub(crate) const READ: Self = Self {
        read: true,
        write: false,
        any: false,
    };
    pub(crate) const WRITE: Self = Self {
        read: false,
        write: true,
        any: false,
    };

    pub(crate) const BOTH: Self = Self {
        read: true,
        write: true,
        any: false,
    };
    pub(crate) const ANY: Self = Self {
        read: false,
        write: false,
        any: true,
    };

    pub(crate) fn add(&mut self, more: Self) {
        self.read |= more.read;
        self.write |= more.write;
        self.any |= more.any;
    }

    pub(crate) fn remove(&mut self, less: Self) {
        self.read &= !less.read;
        self.write &= !less.write;
        self.any &= !less.any;
    }

    /// Returns the part possible now, or never again.
    fn met_by(self, readiness: Readiness) -> Self {
        let over = readiness.hung_up || readiness.failed;
        Self {
            read: self.read && (readiness.readable || over),
            write: self.write && (readiness.writable || over),
            any: self.any,
        }
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn is_met(self, readiness: Readiness) -> bool {
        self.read && readiness.readable
            || self.write && readiness.writable
            || self.any
            || readiness.hung_up
            || readiness.failed
    }
}

/// Notifies a nonblocking caller through a descriptor when a retry is worthwhile.
///
/// The descriptor is readable while the eventfd is notified or the completion channel is readable. Each watcher has
/// its own eventfd, so that a reader cannot consume the wake-up of a writer.
#[derive(Debug)]
pub(crate) struct Watcher {
    event_fd: EventFd,
    poller: Arc<OwnedFd>,
    watched: Interest,
    /// Interest notified and not retried since.
    due: Interest,
    notified: bool,
}

impl Watcher {
    pub(crate) fn new(channel: BorrowedFd<'_>) -> io::Result<Self> {
        let event_fd = EventFd::new()?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, name) in [(channel, 0), (event_fd.as_fd(), 1)] {
            let data = epoll::EventData::new_u64(name);
            epoll::add(&poller, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            event_fd,
            poller: Arc::new(poller),
            watched: Interest::default(),
            due: Interest::default(),
            notified: false,
        })
    }

    pub(crate) fn poller(&self) -> &Arc<OwnedFd> {
        &self.poller
    }

    /// Whether a caller may be waiting.
    pub(crate) fn is_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Removes the interest of a caller that retries.
    pub(crate) fn leave(&mut self, interest: Interest) {
        self.watched.remove(interest);
        self.due.remove(interest);
    }

    /// Registers the interest of a caller after a failed attempt. Notifications for other interests stay due.
    pub(crate) fn watch(&mut self, interest: Interest) {
        self.watched.add(interest);
        self.due.remove(interest);
        if self.notified && self.due.is_empty() {
            self.notified = false;
            self.event_fd.drain();
        }
    }

    fn wake(&mut self, readiness: Readiness) {
        if self.is_watched() {
            self.notify(self.watched.met_by(readiness));
        }
    }

    /// Notifies callers waiting for one of these interests.
    pub(crate) fn notify(&mut self, interest: Interest) {
        let mut new = interest;
        new.remove(self.due);
        if !new.is_empty() {
            self.due.add(new);
            self.notified = true;
            self.event_fd.notify();
        }
    }
}

/// Waiters of one socket, each with its own eventfd, so that no waiter consumes the wake-up of another.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Vec<(u64, Interest, EventFd)>,
    next: u64,
    /// `None` for a removed watcher, whose index the next one reuses.
    watchers: Vec<Option<Watcher>>,
}

impl Waiters {
    pub(crate) fn new(watcher: Watcher) -> Self {
        Self {
            watchers: vec![Some(watcher)],
            ..Self::default()
        }
    }

    /// Adds a watcher. Returns its index.
    pub(crate) fn add_watcher(&mut self, watcher: Watcher) -> usize {
        let vacant = self.watchers.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.watchers.push(None);
            self.watchers.len() - 1
        });
        self.watchers[index] = Some(watcher);
        index
    }

    /// Removes a watcher, with its descriptors and its interest.
    #[cfg(feature = "tokio")]
    pub(crate) fn remove_watcher(&mut self, index: usize) {
        if let Some(watcher) = self.watchers.get_mut(index) {
            *watcher = None;
        }
    }

    /// Returns the watcher at an index, until removed.
    pub(crate) fn watcher(&mut self, index: usize) -> Option<&mut Watcher> {
        self.watchers.get_mut(index)?.as_mut()
    }

    pub(crate) fn add(&mut self, interest: Interest, event_fd: &EventFd) -> u64 {
        let name = self.next;
        self.next += 1;
        self.waiting.push((name, interest, event_fd.clone()));
        name
    }

    pub(crate) fn remove(&mut self, name: u64) {
        self.waiting.retain(|(waiter, ..)| *waiter != name);
    }

    /// Returns the union of all interests, or `None` without waiters.
    pub(crate) fn interest(&self) -> Option<Interest> {
        let watched = self.watchers.iter().flatten();
        let watched = watched.filter(|watcher| watcher.is_watched());
        let waited = self.waiting.iter().map(|(_, interest, _)| *interest);
        waited
            .chain(watched.map(|watcher| watcher.watched))
            .reduce(|mut all, interest| {
                all.add(interest);
                all
            })
    }

    /// Returns the union of all interests and of a future waiter's.
    pub(crate) fn interest_with(&self, mut own: Interest) -> Interest {
        own.add(self.interest().unwrap_or_default());
        own
    }

    /// Notifies all waiters.
    pub(crate) fn notify(&mut self) {
        for watcher in self.watchers.iter_mut().flatten() {
            watcher.notify(watcher.watched);
        }
        for (_, _, event_fd) in &self.waiting {
            event_fd.notify();
        }
    }

    pub(crate) fn wake(&mut self, readiness: Readiness) {
        for watcher in self.watchers.iter_mut().flatten() {
            watcher.wake(readiness);
        }
        for (_, interest, event_fd) in &self.waiting {
            if interest.is_met(readiness) {
                event_fd.notify();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn is_ringing(event_fd: &EventFd) -> bool {
        verbs::fd::wait_readable("poll", event_fd.as_fd(), Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn waiters_with_matching_interest_are_woken() {
        let event_fds = [(); 3].map(|()| EventFd::new().unwrap());
        let mut waiters = Waiters::default();
        waiters.add(Interest::READ, &event_fds[0]);
        waiters.add(Interest::WRITE, &event_fds[1]);
        let gone = waiters.add(Interest::READ, &event_fds[2]);
        waiters.remove(gone);
        waiters.wake(Readiness {
            readable: true,
            ..Readiness::default()
        });
        assert_eq!(event_fds.each_ref().map(is_ringing), [true, false, false]);
        event_fds[0].drain();
        waiters.wake(Readiness {
            hung_up: true,
            ..Readiness::default()
        });
        assert_eq!(event_fds.each_ref().map(is_ringing), [true, true, false]);
    }

    #[test]
    #[cfg(feature = "tokio")]
    fn removed_watcher_leaves_neither_interest_nor_descriptor() {
        let event_fd = EventFd::new().unwrap();
        let watcher = || Watcher::new(event_fd.as_fd()).unwrap();
        let mut waiters = Waiters::new(watcher());
        let removed = waiters.add_watcher(watcher());
        let kept = waiters.add_watcher(watcher());
        let poller = Arc::clone(waiters.watcher(removed).unwrap().poller());
        waiters.watcher(removed).unwrap().watch(Interest::READ);
        waiters.remove_watcher(removed);
        assert_eq!(waiters.interest(), None);
        assert_eq!(Arc::strong_count(&poller), 1);
        assert!(waiters.watcher(removed).is_none());
        // The other watchers keep their indices; the next one reuses the free place.
        assert!(waiters.watcher(kept).is_some());
        assert_eq!(waiters.add_watcher(watcher()), removed);
        waiters.notify();
        waiters.wake(NOTHING);
    }

    #[test]
    fn interest_of_waiters_is_their_union() {
        let event_fd = EventFd::new().unwrap();
        let mut waiters = Waiters::new(Watcher::new(event_fd.as_fd()).unwrap());
        assert_eq!(waiters.interest(), None);
        let reader = waiters.add(Interest::READ, &event_fd);
        assert_eq!(waiters.interest(), Some(Interest::READ));
        waiters.watcher(0).unwrap().watch(Interest::WRITE);
        assert_eq!(waiters.interest(), Some(Interest::BOTH));
        waiters.remove(reader);
        assert_eq!(waiters.interest(), Some(Interest::WRITE));
        // A waiter with an empty interest is still a waiter, for the end of the socket.
        waiters.watcher(0).unwrap().leave(Interest::WRITE);
        waiters.add(Interest::default(), &event_fd);
        assert_eq!(waiters.interest(), Some(Interest::default()));
    }
}
