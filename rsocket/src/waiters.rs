//! Who waits for a socket.

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

/// Something that makes a descriptor readable until it is cleared.
#[derive(Clone, Debug)]
pub(crate) struct Bell {
    fd: Arc<OwnedFd>,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd: Arc::new(fd) })
    }

    pub(crate) fn ring(&self) {
        // It can only fail when the count is at its end, and then the descriptor is readable.
        let _: Result<usize, _> = write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Whether they are the same.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fd, &other.fd)
    }

    pub(crate) fn clear(&self) {
        // It fails when nobody has rung.
        let _: Result<usize, _> = read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// For those who wait for anything at all.
pub(crate) const NOTHING: Readiness = Readiness {
    readable: false,
    writable: false,
    ended: false,
    hung_up: false,
    failed: false,
};

/// What somebody waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Whatever it is that happens.
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

    /// The part of it that can be done now, or never again.
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

/// A descriptor that tells a nonblocking caller when it is worth trying again.
///
/// It is readable when its bell has been rung, or when the completion channel is. The bell is this
/// watcher's alone, so that who reads cannot take the wake-up of who writes.
#[derive(Debug)]
pub(crate) struct Watcher {
    bell: Bell,
    poller: Arc<OwnedFd>,
    watched: Interest,
    /// What the bell has been rung for that nobody has tried since.
    due: Interest,
    rung: bool,
}

impl Watcher {
    pub(crate) fn new(channel: BorrowedFd<'_>) -> io::Result<Self> {
        let bell = Bell::new()?;
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, name) in [(channel, 0), (bell.as_fd(), 1)] {
            let data = epoll::EventData::new_u64(name);
            epoll::add(&poller, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            bell,
            poller: Arc::new(poller),
            watched: Interest::default(),
            due: Interest::default(),
            rung: false,
        })
    }

    pub(crate) fn poller(&self) -> &Arc<OwnedFd> {
        &self.poller
    }

    /// Whether somebody may be waiting.
    pub(crate) fn is_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Somebody is back, and tries for himself.
    pub(crate) fn leave(&mut self, interest: Interest) {
        self.watched.remove(interest);
        self.due.remove(interest);
    }

    /// Somebody is about to wait, and has found nothing. What the bell was rung for else is still to be
    /// tried.
    pub(crate) fn watch(&mut self, interest: Interest) {
        self.watched.add(interest);
        self.due.remove(interest);
        if self.rung && self.due.is_empty() {
            self.rung = false;
            self.bell.clear();
        }
    }

    fn wake(&mut self, readiness: Readiness) {
        if self.is_watched() {
            self.ring(self.watched.met_by(readiness));
        }
    }

    /// Whoever waits for one of these is to look.
    pub(crate) fn ring(&mut self, interest: Interest) {
        let mut new = interest;
        new.remove(self.due);
        if !new.is_empty() {
            self.due.add(new);
            self.rung = true;
            self.bell.ring();
        }
    }
}

/// Those who wait for one socket, each with a bell of its own, so that nobody takes another's
/// wake-up.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: Vec<(u64, Interest, Bell)>,
    next: u64,
    /// `None`: removed, so that the next one takes its place.
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

    /// The watcher of an index, until it is removed.
    pub(crate) fn watcher(&mut self, index: usize) -> Option<&mut Watcher> {
        self.watchers.get_mut(index)?.as_mut()
    }

    pub(crate) fn add(&mut self, interest: Interest, bell: &Bell) -> u64 {
        let name = self.next;
        self.next += 1;
        self.waiting.push((name, interest, bell.clone()));
        name
    }

    pub(crate) fn remove(&mut self, name: u64) {
        self.waiting.retain(|(waiter, ..)| *waiter != name);
    }

    /// What those who wait are interested in together; `None` if nobody waits.
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

    /// What those who wait are interested in together with somebody who is about to.
    pub(crate) fn interest_with(&self, mut own: Interest) -> Interest {
        own.add(self.interest().unwrap_or_default());
        own
    }

    /// Everybody who waits is to look.
    pub(crate) fn ring(&mut self) {
        for watcher in self.watchers.iter_mut().flatten() {
            watcher.ring(watcher.watched);
        }
        for (_, _, bell) in &self.waiting {
            bell.ring();
        }
    }

    pub(crate) fn wake(&mut self, readiness: Readiness) {
        for watcher in self.watchers.iter_mut().flatten() {
            watcher.wake(readiness);
        }
        for (_, interest, bell) in &self.waiting {
            if interest.is_met(readiness) {
                bell.ring();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn is_ringing(bell: &Bell) -> bool {
        verbs::fd::wait_readable("poll", bell.as_fd(), Some(Duration::ZERO)).unwrap()
    }

    #[test]
    fn everybody_who_waits_for_it_is_woken_and_nobody_else() {
        let bells = [(); 3].map(|()| Bell::new().unwrap());
        let mut waiters = Waiters::default();
        waiters.add(Interest::READ, &bells[0]);
        waiters.add(Interest::WRITE, &bells[1]);
        let gone = waiters.add(Interest::READ, &bells[2]);
        waiters.remove(gone);
        waiters.wake(Readiness {
            readable: true,
            ..Readiness::default()
        });
        assert_eq!(bells.each_ref().map(is_ringing), [true, false, false]);
        bells[0].clear();
        waiters.wake(Readiness {
            hung_up: true,
            ..Readiness::default()
        });
        assert_eq!(bells.each_ref().map(is_ringing), [true, true, false]);
    }

    #[test]
    #[cfg(feature = "tokio")]
    fn removed_watcher_leaves_neither_interest_nor_descriptor() {
        let bell = Bell::new().unwrap();
        let watcher = || Watcher::new(bell.as_fd()).unwrap();
        let mut waiters = Waiters::new(watcher());
        let removed = waiters.add_watcher(watcher());
        let kept = waiters.add_watcher(watcher());
        let poller = Arc::clone(waiters.watcher(removed).unwrap().poller());
        waiters.watcher(removed).unwrap().watch(Interest::READ);
        waiters.remove_watcher(removed);
        assert_eq!(waiters.interest(), None);
        assert_eq!(Arc::strong_count(&poller), 1);
        assert!(waiters.watcher(removed).is_none());
        // The others keep their indices, and the next one takes the place.
        assert!(waiters.watcher(kept).is_some());
        assert_eq!(waiters.add_watcher(watcher()), removed);
        waiters.ring();
        waiters.wake(NOTHING);
    }

    #[test]
    fn the_interest_of_all_is_that_of_each() {
        let bell = Bell::new().unwrap();
        let mut waiters = Waiters::new(Watcher::new(bell.as_fd()).unwrap());
        assert_eq!(waiters.interest(), None);
        let reader = waiters.add(Interest::READ, &bell);
        assert_eq!(waiters.interest(), Some(Interest::READ));
        waiters.watcher(0).unwrap().watch(Interest::WRITE);
        assert_eq!(waiters.interest(), Some(Interest::BOTH));
        waiters.remove(reader);
        assert_eq!(waiters.interest(), Some(Interest::WRITE));
        // Nothing in particular is an interest, too: in the end.
        waiters.watcher(0).unwrap().leave(Interest::WRITE);
        waiters.add(Interest::default(), &bell);
        assert_eq!(waiters.interest(), Some(Interest::default()));
    }
}
