//! Interests of callers in a socket, and the descriptor of nonblocking callers.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Wake, Waker},
};

use rustix::event::epoll;
use verbs::{
    fd::InternalFd,
    waiting::{EventFd, Waiters},
};

use crate::{proto::stream::Readiness, waiting::EventSource};

/// Events requested by a waiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interest {
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Any event.
    pub(crate) any: bool,
}

impl Interest {
    const NONE: Self = Self {
        read: false,
        write: false,
        any: false,
    };
    pub(crate) const READ: Self = Self {
        read: true,
        ..Self::NONE
    };
    pub(crate) const WRITE: Self = Self {
        write: true,
        ..Self::NONE
    };
    pub(crate) const BOTH: Self = Self {
        write: true,
        ..Self::READ
    };
    pub(crate) const ANY: Self = Self {
        any: true,
        ..Self::NONE
    };

    /// Returns the union of two interests.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            read: self.read || other.read,
            write: self.write || other.write,
            any: self.any || other.any,
        }
    }

    pub(crate) fn is_met(self, readiness: Readiness) -> bool {
        self.read && readiness.readable
            || self.write && readiness.writable
            || self.any
            || readiness.hung_up
            || readiness.failed
    }
}

/// One direction of a [`Watcher`].
#[derive(Debug)]
struct DirectionWaker {
    event: Arc<EventFd>,
    /// A retry in this direction is worthwhile.
    should_retry: AtomicBool,
}

impl Wake for DirectionWaker {
    fn wake(self: Arc<Self>) {
        self.should_retry.store(true, SeqCst);
        self.event.notify();
    }
}

/// Notifies nonblocking callers through one descriptor of both directions. An attempt in one direction
/// leaves the descriptor readable for the other one.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// `epoll` instance of the event source and of `event`.
    descriptor: InternalFd,
    event: Arc<EventFd>,
    reading: Arc<DirectionWaker>,
    writing: Arc<DirectionWaker>,
}

impl Watcher {
    /// The descriptor is readable at the events of `source` too.
    pub(crate) fn new(source: &impl EventSource) -> io::Result<Self> {
        let descriptor = verbs::fd::raised(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let event = Arc::new(EventFd::new()?);
        source.add_to(&descriptor, false, 0)?;
        event.add_to(&descriptor, false, 0)?;
        let direction = || {
            Arc::new(DirectionWaker {
                event: Arc::clone(&event),
                should_retry: AtomicBool::new(false),
            })
        };
        Ok(Self {
            descriptor,
            reading: direction(),
            writing: direction(),
            event,
        })
    }

    /// The directions of an interest, each with its own interest.
    fn directions(
        &self,
        interest: Interest,
    ) -> impl Iterator<Item = (Interest, &Arc<DirectionWaker>)> {
        let reading = interest.read.then_some((Interest::READ, &self.reading));
        let writing = interest.write.then_some((Interest::WRITE, &self.writing));
        reading.into_iter().chain(writing)
    }

    /// Removes the interest of a caller that retries.
    pub(crate) fn unwatch(&self, waiters: &mut Waiters<Interest>, interest: Interest) {
        for (_, direction) in self.directions(interest) {
            direction.should_retry.store(false, SeqCst);
            waiters.remove_task(&Waker::from(Arc::clone(direction)));
        }
    }

    /// Registers the interest of a caller after a failed attempt.
    pub(crate) fn watch(&self, waiters: &mut Waiters<Interest>, interest: Interest) {
        self.unwatch(waiters, interest);
        for (interest, direction) in self.directions(interest) {
            waiters.add_task(interest, &Waker::from(Arc::clone(direction)));
        }
        let mut all = self.directions(Interest::BOTH);
        if !all.any(|(_, direction)| direction.should_retry.load(SeqCst)) {
            self.event.drain();
        }
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Fixture {
        watcher: Watcher,
        waiters: Waiters<Interest>,
    }

    impl Fixture {
        fn new() -> Self {
            let source = Arc::new(EventFd::new().unwrap());
            Self {
                watcher: Watcher::new(&source).unwrap(),
                waiters: Waiters::new(),
            }
        }

        fn watch(&mut self, interest: Interest) {
            self.watcher.watch(&mut self.waiters, interest);
        }

        fn notify(&self, interest: Interest) {
            for (_, direction) in self.watcher.directions(interest) {
                Arc::clone(direction).wake();
            }
        }

        fn is_readable(&self) -> bool {
            let fd = self.watcher.as_fd();
            verbs::fd::wait_readable("poll", fd, Some(Duration::ZERO)).unwrap()
        }
    }

    #[test]
    fn interest_is_met_by_its_direction_or_the_end() {
        let readable = Readiness {
            readable: true,
            ..Readiness::default()
        };
        let hung_up = Readiness {
            hung_up: true,
            ..Readiness::default()
        };
        let interests = [
            Interest::NONE,
            Interest::READ,
            Interest::WRITE,
            Interest::BOTH,
            Interest::ANY,
        ];
        let met = |readiness| interests.map(|interest| interest.is_met(readiness));
        assert_eq!(met(readable), [false, true, false, true, true]);
        assert_eq!(met(hung_up), [true; 5]);
        assert_eq!(
            met(Readiness::default()),
            [false, false, false, false, true]
        );
        assert_eq!(Interest::READ.or(Interest::WRITE), Interest::BOTH);
        assert_eq!(Interest::READ.or(Interest::NONE), Interest::READ);
    }

    #[test]
    fn watcher_registers_each_direction_once() {
        let mut fixture = Fixture::new();
        for interest in [Interest::READ, Interest::READ, Interest::BOTH] {
            fixture.watch(interest);
        }
        let mut interests: Vec<_> = fixture.waiters.interests().copied().collect();
        interests.sort();
        assert_eq!(interests, [Interest::WRITE, Interest::READ]);
        fixture
            .watcher
            .unwatch(&mut fixture.waiters, Interest::BOTH);
        assert!(fixture.waiters.is_empty());
    }

    /// One descriptor signals both directions.
    #[test]
    fn attempt_keeps_descriptor_readable_for_other_direction() {
        let mut fixture = Fixture::new();
        fixture.watch(Interest::BOTH);
        assert!(!fixture.is_readable());
        fixture.notify(Interest::BOTH);
        for (first, second) in [
            (Interest::READ, Interest::WRITE),
            (Interest::WRITE, Interest::READ),
        ] {
            fixture.notify(second);
            fixture.watch(first);
            assert!(fixture.is_readable(), "the other direction is due");
            fixture.watch(second);
            assert!(!fixture.is_readable());
        }
    }
}
