//! Interests of callers in a socket, and the descriptor of nonblocking callers.

use std::{
    io,
    mem::ManuallyDrop,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Wake, Waker},
};

use rustix::event::{Timespec, epoll};
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

    /// Removes the directions of another interest.
    fn remove(&mut self, other: Self) {
        self.read &= !other.read;
        self.write &= !other.write;
    }

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
    signal: Arc<Signal>,
    direction: Interest,
}

impl Wake for DirectionWaker {
    fn wake(self: Arc<Self>) {
        self.signal.set_pending(self.direction);
    }
}

/// The directions in which a retry is worthwhile, and the descriptor that is readable while there is one.
#[derive(Debug, Default)]
struct Signal {
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    directions: Interest,
    descriptor: Option<Descriptor>,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each call is an edge of the descriptor.
    fn set_pending(&self, direction: Interest) {
        let mut pending = self.lock();
        pending.directions = pending.directions.or(direction);
        if let Some(descriptor) = &mut pending.descriptor {
            descriptor.set_readable(false);
            descriptor.set_readable(true);
        }
    }
}

/// An `epoll` instance of the event source, readable too while a retry is pending.
#[derive(Debug)]
struct Descriptor {
    epoll: Arc<InternalFd>,
    /// A member whose events are requested while a retry is pending. A change of a member needs no memory, so cannot fail.
    always: Arc<EventFd>,
    is_readable: bool,
}

impl Descriptor {
    fn set_readable(&mut self, is_readable: bool) {
        if std::mem::replace(&mut self.is_readable, is_readable) == is_readable {
            return;
        }
        let flags = match is_readable {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(0);
        let _: rustix::io::Result<()> = epoll::modify(&self.epoll, &self.always, data, flags);
        if !is_readable {
            // The kernel takes the member off the list of ready ones at a wait only, and its next event would be no edge.
            let mut members = Vec::with_capacity(MEMBERS);
            let buffer = rustix::buffer::spare_capacity(&mut members);
            let now = Some(&Timespec::default());
            let _: rustix::io::Result<usize> = epoll::wait(&self.epoll, buffer, now);
        }
    }
}

/// Number of members of a [`Descriptor`].
const MEMBERS: usize = 2;

/// Returns an eventfd of the process that is always readable.
pub(crate) fn always_readable() -> io::Result<Arc<EventFd>> {
    static ALWAYS: Mutex<Option<(u64, Arc<EventFd>)>> = Mutex::new(None);
    let process = verbs::fork::fork_generation();
    let mut always = ALWAYS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((owner, event)) = &*always
        && *owner == process
    {
        return Ok(Arc::clone(event));
    }
    let event = Arc::new(EventFd::new()?);
    event.notify();
    let old = always.replace((process, Arc::clone(&event)));
    // The descriptor of the parent process.
    let _kept = ManuallyDrop::new(old);
    Ok(event)
}

/// Notifies nonblocking callers through one descriptor of both directions. An attempt in one direction
/// leaves the descriptor readable for the other one.
#[derive(Debug)]
pub(crate) struct Watcher {
    signal: Arc<Signal>,
    reading: Arc<DirectionWaker>,
    writing: Arc<DirectionWaker>,
    /// Set by the first use, which may fail for lack of descriptors.
    descriptor: OnceLock<Arc<InternalFd>>,
    is_requested: AtomicBool,
}

impl Watcher {
    pub(crate) fn new() -> Self {
        let signal = Arc::new(Signal::default());
        let direction = |direction| {
            Arc::new(DirectionWaker {
                signal: Arc::clone(&signal),
                direction,
            })
        };
        Self {
            reading: direction(Interest::READ),
            writing: direction(Interest::WRITE),
            signal,
            descriptor: OnceLock::new(),
            is_requested: AtomicBool::new(false),
        }
    }

    /// Returns the descriptor, readable at the events of `source` too. Created by the first call, unless
    /// [added](Self::notify_in) before.
    pub(crate) fn descriptor(&self, source: &impl EventSource) -> io::Result<&InternalFd> {
        self.is_requested.store(true, SeqCst);
        if let Some(descriptor) = self.descriptor.get() {
            return Ok(descriptor);
        }
        let epoll = verbs::fd::raised(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        self.notify_in(&Arc::new(epoll), source)
    }

    /// Makes an `epoll` instance the descriptor, if there is none. Returns the descriptor.
    pub(crate) fn notify_in(
        &self,
        epoll: &Arc<InternalFd>,
        source: &impl EventSource,
    ) -> io::Result<&InternalFd> {
        let pending = &mut *self.signal.lock();
        if pending.descriptor.is_none() {
            let always = always_readable()?;
            source.add_to(epoll, false, 0)?;
            let data = epoll::EventData::new_u64(0);
            epoll::add(epoll, &always, data, epoll::EventFlags::empty())
                .inspect_err(|_| drop(source.remove_from(epoll)))?;
            let descriptor = pending.descriptor.insert(Descriptor {
                epoll: Arc::clone(epoll),
                always,
                is_readable: false,
            });
            descriptor.set_readable(pending.directions != Interest::NONE);
        }
        Ok(self.descriptor.get_or_init(|| Arc::clone(epoll)))
    }

    /// Whether the creation of the descriptor has failed.
    pub(crate) fn lacks_descriptor(&self) -> bool {
        self.is_requested.load(SeqCst) && self.descriptor.get().is_none()
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
        self.signal.lock().directions.remove(interest);
        for (_, direction) in self.directions(interest) {
            waiters.remove_task(&Waker::from(Arc::clone(direction)));
        }
    }

    /// Registers the interest of a caller after a failed attempt.
    pub(crate) fn watch(&self, waiters: &mut Waiters<Interest>, interest: Interest) {
        self.unwatch(waiters, interest);
        for (interest, direction) in self.directions(interest) {
            waiters.add_task(interest, &Waker::from(Arc::clone(direction)));
        }
        let pending = &mut *self.signal.lock();
        if pending.directions == Interest::NONE
            && let Some(descriptor) = &mut pending.descriptor
        {
            descriptor.set_readable(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, time::Duration};

    use super::*;

    struct Fixture {
        watcher: Watcher,
        source: Arc<EventFd>,
        waiters: Waiters<Interest>,
    }

    impl Fixture {
        fn new() -> Self {
            Self {
                watcher: Watcher::new(),
                source: Arc::new(EventFd::new().unwrap()),
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

        fn descriptor(&self) -> &InternalFd {
            self.watcher.descriptor(&self.source).unwrap()
        }

        fn is_readable(&self) -> bool {
            let fd = self.descriptor().as_fd();
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
            assert!(fixture.is_readable(), "the other direction is pending");
            fixture.watch(second);
            assert!(!fixture.is_readable());
        }
    }

    #[test]
    fn late_descriptor_shows_a_retry_due_before() {
        let mut fixture = Fixture::new();
        fixture.watch(Interest::READ);
        fixture.notify(Interest::READ);
        assert!(fixture.is_readable());
        fixture.watch(Interest::READ);
        assert!(!fixture.is_readable());
        fixture.source.notify();
        assert!(fixture.is_readable(), "by the source");
    }

    /// The descriptor in an edge-triggered `epoll` instance of the program.
    #[test]
    fn each_notification_is_an_edge() {
        let mut fixture = Fixture::new();
        let outer = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&outer, fixture.descriptor(), data, flags).unwrap();
        let has_edge = || {
            let mut events = Vec::with_capacity(1);
            let buffer = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&outer, buffer, Some(&Timespec::default())).unwrap() == 1
        };
        assert!(!has_edge());
        for _ in 0..3 {
            fixture.watch(Interest::BOTH);
            for direction in [Interest::READ, Interest::WRITE] {
                fixture.notify(direction);
                assert!(has_edge(), "{direction:?} is pending");
                assert!(!has_edge());
            }
        }
        // Without a look of the program in between.
        fixture.watch(Interest::BOTH);
        fixture.notify(Interest::READ);
        fixture.watch(Interest::BOTH);
        fixture.notify(Interest::READ);
        assert!(has_edge());
        fixture.watch(Interest::BOTH);
        assert!(!has_edge());
    }
}
