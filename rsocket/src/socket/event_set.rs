//! A reusable set of sockets and other descriptors to wait for.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};

use super::{
    PollEvents, Sleep, SleepEntry, Socket, os_error,
    poll::{interest, sleep},
    source::Watch,
};
use crate::ready_list::ReadyList;

/// Maximum number of events fetched from the kernel in one call.
const MAX_KERNEL_EVENTS: usize = 1024;

/// Requested events of a member of an [`EventSet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registration {
    /// Events to wait for.
    pub events: PollEvents,
    /// Reports once only, until the registration is changed (`EPOLLONESHOT`).
    pub once: bool,
    /// Reports changes only (`EPOLLET`). No effect on a [`Socket`], reported for as long as ready.
    pub edge: bool,
    /// Returned with each event.
    pub data: u64,
}

impl Registration {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::from_bits_retain(self.events.bits().into());
        flags.set(epoll::EventFlags::ONESHOT, self.once);
        flags.set(epoll::EventFlags::ET, self.edge);
        flags
    }
}

/// Event of a member of an [`EventSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Events present now.
    pub events: PollEvents,
    /// The [data of the registration](Registration::data).
    pub data: u64,
}

/// A socket in the set, until closed or dropped.
#[derive(Debug)]
struct Member {
    socket: Weak<Socket>,
    interest: Registration,
    /// The one-shot event has been reported.
    done: bool,
    watch: Watch,
}

/// The sockets of a set, by name.
#[derive(Debug, Default)]
struct Members {
    sockets: BTreeMap<u64, Member>,
    /// Sockets that had events, or may have new ones.
    pending: BTreeSet<u64>,
    /// First name to report in the next wait, for fairness between the sockets.
    next: u64,
    /// Number of threads that sleep, or are about to.
    sleeping: usize,
}

/// A reusable, level-triggered set of sockets and descriptors, like `epoll(7)`.
///
/// The caller assigns numbers as names of sockets. Other descriptors are members of a kernel `epoll`
/// instance. Members can be added and removed while threads wait; the change takes effect at once. The cost
/// of a wait depends on the number of sockets with events, not on the number of sockets.
///
/// # Examples
/// ```
/// # let _fabric = doctest::lasting_host();
/// use std::{sync::Arc, time::Duration};
///
/// use rsocket::{EventSet, Family, PollEvents, Registration, Socket};
///
/// let listener = Arc::new(Socket::new(Family::V4)?);
/// listener.bind("10.9.0.1:7471".parse().unwrap())?;
/// listener.listen(16)?;
/// let set = EventSet::new()?;
/// let acceptable = Registration { events: PollEvents::IN, data: 7, ..Registration::default() };
/// set.add_socket(1, &listener, acceptable)?;
/// assert!(set.wait(8, Some(Duration::ZERO))?.is_empty());
///
/// let _client = rsocket::Stream::connect("10.9.0.1:7471")?;
/// let events = set.wait(8, None)?;
/// assert_eq!((events[0].data, events[0].events), (7, PollEvents::IN));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EventSet {
    members: Mutex<Members>,
    /// Sockets to be checked by any waiting thread.
    list: Arc<ReadyList>,
    kernel: OwnedFd,
}

impl EventSet {
    /// Creates an empty set.
    ///
    /// # Errors
    /// - `EMFILE`: too many open descriptors.
    pub fn new() -> io::Result<Self> {
        Self::with_epoll(epoll::create(epoll::CreateFlags::CLOEXEC)?)
    }

    /// Creates a set containing the descriptors of an existing `epoll` instance.
    ///
    /// # Errors
    /// - `EMFILE`: too many open descriptors.
    pub fn with_epoll(kernel: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            members: Mutex::default(),
            list: ReadyList::new()?,
            kernel,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket. Closing or dropping the socket removes the member.
    ///
    /// # Errors
    /// - `AlreadyExists`: the name is taken.
    pub fn add_socket(
        &self,
        name: u64,
        socket: &Arc<Socket>,
        interest: Registration,
    ) -> io::Result<()> {
        let mut members = self.lock();
        if members.sockets.get(&name).is_some_and(Member::is_alive) {
            return Err(os_error(Errno::EXIST));
        }
        let member = Member {
            socket: Arc::downgrade(socket),
            interest,
            done: false,
            watch: Watch::new(&self.list, name),
        };
        socket.add_task(member.watch.task());
        members.sockets.insert(name, member);
        self.list.push(name);
        Ok(())
    }

    /// Adds any other descriptor. Closing the descriptor removes the member.
    ///
    /// # Errors
    /// - `AlreadyExists`: the descriptor is a member.
    /// - `EPERM`: the descriptor, such as a regular file, is always ready.
    pub fn add_fd(&self, fd: BorrowedFd<'_>, interest: Registration) -> io::Result<()> {
        let data = epoll::EventData::new_u64(interest.data);
        Ok(epoll::add(&self.kernel, fd, data, interest.flags())?)
    }

    /// Changes the interest in a descriptor.
    ///
    /// # Errors
    /// - `ENOENT`: the descriptor is not a member.
    pub fn modify_fd(&self, fd: BorrowedFd<'_>, interest: Registration) -> io::Result<()> {
        let data = epoll::EventData::new_u64(interest.data);
        Ok(epoll::modify(&self.kernel, fd, data, interest.flags())?)
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// - `ENOENT`: the descriptor is not a member.
    pub fn remove_fd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.kernel, fd)?)
    }

    /// Changes the interest in a socket and rearms a one-shot interest.
    ///
    /// # Errors
    /// - `ENOENT`: no member with this name.
    pub fn modify_socket(&self, name: u64, interest: Registration) -> io::Result<()> {
        let mut members = self.lock();
        let member = members.sockets.get_mut(&name);
        let member = member.filter(|member| member.is_alive());
        let member = member.ok_or_else(|| os_error(Errno::NOENT))?;
        member.interest = interest;
        member.done = false;
        self.list.push(name);
        Ok(())
    }

    /// Removes a socket.
    ///
    /// # Errors
    /// - `ENOENT`: no member with this name.
    pub fn remove_socket(&self, name: u64) -> io::Result<()> {
        let member = self.take_socket(name);
        member.map(drop).ok_or_else(|| os_error(Errno::NOENT))
    }

    /// Removes a socket and returns its interest, without events after a reported one-shot event. `None`
    /// without such a member.
    pub fn take_socket(&self, name: u64) -> Option<Registration> {
        let member = self.lock().sockets.remove(&name);
        let member = member.filter(Member::is_alive)?;
        let mut interest = member.interest;
        if member.done {
            interest.events = PollEvents::empty();
        }
        Some(interest)
    }

    /// Waits for events and returns at most `max`; none when the timeout elapses. Without a timeout, waits
    /// indefinitely.
    ///
    /// # Errors
    /// - `InvalidInput`: `max` is zero.
    /// - `Interrupted`: a signal interrupted the wait.
    pub fn wait(&self, max: usize, timeout: Option<Duration>) -> io::Result<Vec<Event>> {
        self.wait_by(max, timeout, &mut sleep)
    }

    /// Works like [`wait`](Self::wait) with a sleep function of the caller, as for
    /// [`poll_by`](crate::poll_by).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), and the errors of `sleep`.
    pub fn wait_by(
        &self,
        max: usize,
        timeout: Option<Duration>,
        sleep: &mut Sleep<'_>,
    ) -> io::Result<Vec<Event>> {
        if max == 0 {
            return Err(os_error(Errno::INVAL));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let mut remaining =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let mut ready = Vec::new();
            let mut members = self.lock();
            members.check(&self.list, max, &mut ready);
            let has_events = !ready.is_empty();
            if !has_events {
                members.sleeping += 1;
            } else if members.sleeping > 0 {
                // Another thread reports the rest, and the same events if still present.
                self.list.notify();
            }
            drop(members);
            let is_last = has_events || remaining.is_some_and(|remaining| remaining.is_zero());
            if ready.len() < max {
                if has_events {
                    remaining = Some(Duration::ZERO);
                }
                let slept = self.sleep(remaining, has_events, sleep);
                if !has_events {
                    self.lock().sleeping -= 1;
                }
                if slept? {
                    self.poll_kernel(max - ready.len(), &mut ready)?;
                }
            }
            if is_last || !ready.is_empty() {
                return Ok(ready);
            }
        }
    }

    /// Sleeps until there may be events. Returns whether a descriptor has some.
    fn sleep(
        &self,
        timeout: Option<Duration>,
        has_events: bool,
        sleep_by: &mut Sleep<'_>,
    ) -> io::Result<bool> {
        let mut entries = [self.kernel.as_fd(), self.list.as_fd()].map(|fd| SleepEntry {
            fd,
            interest: PollEvents::IN,
            ready: PollEvents::empty(),
        });
        if has_events {
            // Present events take precedence over a signal.
            sleep(&mut entries, timeout)?;
        } else {
            sleep_by(&mut entries, timeout)?;
        }
        Ok(!entries[0].ready.is_empty())
    }

    fn poll_kernel(&self, max: usize, ready: &mut Vec<Event>) -> io::Result<()> {
        let mut events = Vec::with_capacity(max.min(MAX_KERNEL_EVENTS));
        let now = Timespec::default();
        epoll::wait(
            &self.kernel,
            rustix::buffer::spare_capacity(&mut events),
            Some(&now),
        )?;
        ready.extend(events.iter().map(|event| {
            let flags = event.flags;
            // The kernel uses the lower 16 bits for events.
            let bits = u16::try_from(flags.bits() & 0xffff).unwrap_or_default();
            Event {
                events: PollEvents::from_bits_retain(bits),
                data: event.data.u64(),
            }
        }));
        Ok(())
    }
}

impl Members {
    /// Reports sockets with events, at most `max`.
    fn check(&mut self, list: &ReadyList, max: usize, ready: &mut Vec<Event>) {
        self.pending
            .append(&mut list.take(Some(&Timespec::default())));
        let next = self.next;
        let round_robin = self.pending.range(next..).chain(self.pending.range(..next));
        for name in round_robin.copied().collect::<Vec<_>>() {
            if ready.len() == max {
                return;
            }
            let member = self.sockets.get_mut(&name);
            let Some((member, events)) = member.and_then(Member::with_events) else {
                self.pending.remove(&name);
                if self
                    .sockets
                    .get(&name)
                    .is_some_and(|member| !member.is_alive())
                {
                    self.sockets.remove(&name);
                }
                continue;
            };
            member.done = member.interest.once;
            ready.push(Event {
                events,
                data: member.interest.data,
            });
            self.next = name.wrapping_add(1);
        }
    }
}

impl AsFd for EventSet {
    /// The kernel `epoll` instance, containing the descriptors but not the sockets.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

impl Member {
    /// Returns the present events, if any. Otherwise the list of the set reports the next ones.
    fn with_events(&mut self) -> Option<(&mut Self, PollEvents)> {
        if self.done {
            return None;
        }
        let socket = self.socket.upgrade().filter(|socket| !socket.is_closed())?;
        let events = self.events_of(&socket);
        release(socket);
        (!events.is_empty()).then_some((self, events))
    }

    fn events_of(&mut self, socket: &Socket) -> PollEvents {
        let requested = self.interest.events;
        let events = socket.poll_events(requested);
        if !events.is_empty() {
            return events;
        }
        let interest = interest(requested);
        // A failed socket has events.
        drop(self.watch.readiness(socket.event_source(), interest, true));
        socket.poll_events(requested)
    }

    fn is_alive(&self) -> bool {
        let socket = self.socket.upgrade();
        socket.is_some_and(|socket| !socket.is_closed())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.upgrade() {
            socket.remove_task(self.watch.task());
            release(socket);
        }
    }
}

/// Drops a reference. If the program has dropped the socket meanwhile, the program does not wait for unsent data.
fn release(socket: Arc<Socket>) {
    if let Some(last) = Arc::into_inner(socket) {
        last.linger_in_background();
    }
}
