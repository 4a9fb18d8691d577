//! A reusable set of sockets and other descriptors to wait for.

use std::{
    collections::BTreeMap,
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
    PollEntry, PollEvents, Socket, os_error,
    poll::{Sleep, poll_and, sleep},
};
use crate::waiters::EventFd;

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
}

/// A reusable, level-triggered set of sockets and descriptors, like `epoll(7)`.
///
/// The caller assigns numbers as names of sockets. Other descriptors are members of a kernel `epoll`
/// instance. Members can be added and removed while threads wait; the change takes effect at once. The cost
/// of a wait is proportional to the number of sockets.
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
    members: Mutex<BTreeMap<u64, Member>>,
    /// Eventfds of the waiting threads, notified when the members change.
    waiting: Mutex<Vec<EventFd>>,
    /// First name to report in the next wait, for fairness between the sockets.
    next: Mutex<u64>,
    kernel: OwnedFd,
}

impl EventSet {
    /// Creates an empty set.
    ///
    /// # Errors
    /// - `EMFILE`: too many open descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self::with_epoll(epoll::create(
            epoll::CreateFlags::CLOEXEC,
        )?))
    }

    /// Creates a set containing the descriptors of an existing `epoll` instance.
    pub fn with_epoll(kernel: OwnedFd) -> Self {
        Self {
            members: Mutex::default(),
            waiting: Mutex::default(),
            next: Mutex::default(),
            kernel,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for event_fd in &*waiting {
            event_fd.notify();
        }
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
        if members.get(&name).is_some_and(Member::is_alive) {
            return Err(os_error(Errno::EXIST));
        }
        let member = Member {
            socket: Arc::downgrade(socket),
            interest,
            done: false,
        };
        members.insert(name, member);
        drop(members);
        self.changed();
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
        let member = members.get_mut(&name).filter(|member| member.is_alive());
        let member = member.ok_or_else(|| os_error(Errno::NOENT))?;
        member.interest = interest;
        member.done = false;
        drop(members);
        self.changed();
        Ok(())
    }

    /// Removes a socket.
    ///
    /// # Errors
    /// - `ENOENT`: no member with this name.
    pub fn remove_socket(&self, name: u64) -> io::Result<()> {
        let taken = self.take_socket(name);
        taken.map(drop).ok_or_else(|| os_error(Errno::NOENT))
    }

    /// Removes a socket and returns its interest, without events after a reported one-shot event. `None`
    /// without such a member.
    pub fn take_socket(&self, name: u64) -> Option<Registration> {
        let member = self.lock().remove(&name).filter(Member::is_alive)?;
        self.changed();
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
        let event_fd = EventFd::new()?;
        let _waiting = Waiting::new(self, &event_fd);
        loop {
            event_fd.drain();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let ready = self.poll_once(max, &event_fd, left, sleep)?;
            if !ready.is_empty() || left.is_some_and(|left| left.is_zero()) {
                return Ok(ready);
            }
        }
    }

    fn poll_once(
        &self,
        max: usize,
        event_fd: &EventFd,
        timeout: Option<Duration>,
        sleep: &mut Sleep<'_>,
    ) -> io::Result<Vec<Event>> {
        let mut next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = self.reported(next);
        let kernel = PollEntry::fd(self.kernel.as_fd(), PollEvents::IN);
        let sockets = reported
            .iter()
            .map(|(_, interest, socket)| PollEntry::known(socket, interest.events));
        let mut entries: Vec<_> = [kernel].into_iter().chain(sockets).collect();
        poll_and(&mut entries, Some(event_fd), timeout, sleep)?;
        let mut ready = Vec::new();
        let mut members = self.lock();
        for (entry, (name, interest, _)) in entries[1..].iter().zip(&reported) {
            if entry.ready().is_empty() || ready.len() == max {
                continue;
            }
            // Members removed or changed during the wait are not reported.
            let Some(member) = members.get_mut(name) else {
                continue;
            };
            if member.interest != *interest || member.done || !member.is_alive() {
                continue;
            }
            member.done = interest.once;
            ready.push(Event {
                events: entry.ready(),
                data: interest.data,
            });
            next = name + 1;
        }
        drop(members);
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
        if !entries[0].ready().is_empty() && ready.len() < max {
            self.poll_kernel(max - ready.len(), &mut ready)?;
        }
        Ok(ready)
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

    /// Returns the sockets to report, starting with the name `first`. Weak references: dropping a socket in
    /// the program closes the socket.
    fn reported(&self, first: u64) -> Vec<(u64, Registration, Weak<Socket>)> {
        let mut members = self.lock();
        members.retain(|_, member| member.is_alive());
        let turn = members.range(first..).chain(members.range(..first));
        turn.filter(|(_, member)| !member.done)
            .map(|(name, member)| (*name, member.interest, Weak::clone(&member.socket)))
            .collect()
    }
}

impl AsFd for EventSet {
    /// The kernel `epoll` instance, containing the descriptors but not the sockets.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

impl Member {
    fn is_alive(&self) -> bool {
        let socket = self.socket.upgrade();
        socket.is_some_and(|socket| !socket.is_closed())
    }
}

/// Registration of a waiting thread, for notification of changed members.
struct Waiting<'s> {
    set: &'s EventSet,
    event_fd: &'s EventFd,
}

impl<'s> Waiting<'s> {
    fn new(set: &'s EventSet, event_fd: &'s EventFd) -> Self {
        let mut waiting = set.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(event_fd.clone());
        Self { set, event_fd }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waiting = self.set.waiting.lock();
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|event_fd| !event_fd.is(self.event_fd));
    }
}
