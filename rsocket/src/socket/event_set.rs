//! A set of sockets and other descriptors that is waited for again and again.

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
use crate::waiters::Bell;

/// The most events that the kernel is asked for at once.
const MOST_AT_ONCE: usize = 1024;

/// What to tell about a member of an [`EventSet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// What to wait for.
    pub events: PollEvents,
    /// Tell once only, until the interest is changed.
    pub once: bool,
    /// Tell of changes only. Has no effect on a [`Socket`], which tells as long as there is
    /// something.
    pub edge: bool,
    /// Comes back with what has occurred.
    pub data: u64,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::from_bits_retain(self.events.bits().into());
        flags.set(epoll::EventFlags::ONESHOT, self.once);
        flags.set(epoll::EventFlags::ET, self.edge);
        flags
    }
}

/// Something that has come for a member of an [`EventSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurred {
    /// What has come.
    pub events: PollEvents,
    /// What the [interest](Interest::data) said.
    pub data: u64,
}

/// A socket, which leaves the set when it is closed or dropped.
#[derive(Debug)]
struct Member {
    socket: Weak<Socket>,
    interest: Interest,
    /// It has told what it was to tell once.
    done: bool,
}

/// What is waited for with one call again and again, in the manner of `epoll(7)`: as long as there
/// is something to be had, each wait says so.
///
/// Sockets have names, which are numbers of the caller's. Other descriptors are known by themselves,
/// and are in an `epoll` of the kernel's. Members can be added and removed while threads wait, and
/// they take notice. A wait looks at every socket.
#[derive(Debug)]
pub struct EventSet {
    members: Mutex<BTreeMap<u64, Member>>,
    /// Those who wait, each to be told when the members have changed.
    waiting: Mutex<Vec<Bell>>,
    /// From where on the next wait reports, so that everybody has a turn.
    next: Mutex<u64>,
    kernel: OwnedFd,
}

impl EventSet {
    /// An empty set.
    ///
    /// # Errors
    /// - `EMFILE`: there are too many descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self::with_epoll(epoll::create(
            epoll::CreateFlags::CLOEXEC,
        )?))
    }

    /// A set with all that is in an `epoll` already.
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
        for bell in &*waiting {
            bell.ring();
        }
    }

    /// Adds a socket. It leaves the set when it is closed or dropped.
    ///
    /// # Errors
    /// - `AlreadyExists`: the name is taken.
    pub fn add_socket(
        &self,
        name: u64,
        socket: &Arc<Socket>,
        interest: Interest,
    ) -> io::Result<()> {
        let mut members = self.lock();
        if members.get(&name).is_some_and(Member::is_there) {
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

    /// Adds any other descriptor. It leaves the set when it is closed.
    ///
    /// # Errors
    /// - `AlreadyExists`: it is a member.
    /// - `EPERM`: it is always ready, as files are.
    pub fn add_fd(&self, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(interest.data);
        Ok(epoll::add(&self.kernel, fd, data, interest.flags())?)
    }

    /// Changes what to tell about a descriptor.
    ///
    /// # Errors
    /// - `ENOENT`: it is no member.
    pub fn modify_fd(&self, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(interest.data);
        Ok(epoll::modify(&self.kernel, fd, data, interest.flags())?)
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// - `ENOENT`: it is no member.
    pub fn remove_fd(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.kernel, fd)?)
    }

    /// Changes what to tell about a socket.
    ///
    /// # Errors
    /// - `ENOENT`: there is no such member.
    pub fn modify_socket(&self, name: u64, interest: Interest) -> io::Result<()> {
        let mut members = self.lock();
        let member = members.get_mut(&name).filter(|member| member.is_there());
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
    /// - `ENOENT`: there is no such member.
    pub fn remove_socket(&self, name: u64) -> io::Result<()> {
        let taken = self.take_socket(name);
        taken.map(drop).ok_or_else(|| os_error(Errno::NOENT))
    }

    /// Removes a socket, and returns what was to be told about it; no events, if it was to be told once and
    /// has been. `None` if there is no such member.
    pub fn take_socket(&self, name: u64) -> Option<Interest> {
        let member = self.lock().remove(&name).filter(Member::is_there)?;
        self.changed();
        let mut interest = member.interest;
        if member.done {
            interest.events = PollEvents::empty();
        }
        Some(interest)
    }

    /// Waits until something has come, and returns at most `max` of it; nothing when the time is
    /// over. Without a timeout it waits for ever.
    ///
    /// # Errors
    /// - `InvalidInput`: `max` is zero.
    /// - `Interrupted`: a signal came.
    pub fn wait(&self, max: usize, timeout: Option<Duration>) -> io::Result<Vec<Occurred>> {
        self.wait_by(max, timeout, &mut sleep)
    }

    /// [`wait`](Self::wait) whose caller sleeps, as for [`poll_by`](crate::poll_by).
    ///
    /// # Errors
    /// As for [`wait`](Self::wait), and what `sleep` fails with.
    pub fn wait_by(
        &self,
        max: usize,
        timeout: Option<Duration>,
        sleep: &mut Sleep<'_>,
    ) -> io::Result<Vec<Occurred>> {
        if max == 0 {
            return Err(os_error(Errno::INVAL));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let bell = Bell::new()?;
        let _waiting = Waiting::new(self, &bell);
        loop {
            bell.clear();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let occurred = self.look(max, &bell, left, sleep)?;
            if !occurred.is_empty() || left.is_some_and(|left| left.is_zero()) {
                return Ok(occurred);
            }
        }
    }

    fn look(
        &self,
        max: usize,
        bell: &Bell,
        timeout: Option<Duration>,
        sleep: &mut Sleep<'_>,
    ) -> io::Result<Vec<Occurred>> {
        let mut next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let told = self.told(next);
        let kernel = PollEntry::fd(self.kernel.as_fd(), PollEvents::IN);
        let sockets = told
            .iter()
            .map(|(_, interest, socket)| PollEntry::known(socket, interest.events));
        let mut entries: Vec<_> = [kernel].into_iter().chain(sockets).collect();
        poll_and(&mut entries, Some(bell), timeout, sleep)?;
        let mut occurred = Vec::new();
        let mut members = self.lock();
        for (entry, (name, interest, _)) in entries[1..].iter().zip(&told) {
            if entry.ready().is_empty() || occurred.len() == max {
                continue;
            }
            // Who has left or changed in the meantime is not what was waited for.
            let Some(member) = members.get_mut(name) else {
                continue;
            };
            if member.interest != *interest || member.done || !member.is_there() {
                continue;
            }
            member.done = interest.once;
            occurred.push(Occurred {
                events: entry.ready(),
                data: interest.data,
            });
            next = name + 1;
        }
        drop(members);
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
        if !entries[0].ready().is_empty() && occurred.len() < max {
            self.ask_kernel(max - occurred.len(), &mut occurred)?;
        }
        Ok(occurred)
    }

    fn ask_kernel(&self, max: usize, occurred: &mut Vec<Occurred>) -> io::Result<()> {
        let mut events = Vec::with_capacity(max.min(MOST_AT_ONCE));
        let now = Timespec::default();
        epoll::wait(
            &self.kernel,
            rustix::buffer::spare_capacity(&mut events),
            Some(&now),
        )?;
        occurred.extend(events.iter().map(|event| {
            let flags = event.flags;
            // All that the kernel reports is in the lower bits.
            let bits = u16::try_from(flags.bits() & 0xffff).unwrap_or_default();
            Occurred {
                events: PollEvents::from_bits_retain(bits),
                data: event.data.u64(),
            }
        }));
        Ok(())
    }

    /// The sockets of which anything is to be told, beginning with that called `first`. They are not kept:
    /// who drops one means to close it.
    fn told(&self, first: u64) -> Vec<(u64, Interest, Weak<Socket>)> {
        let mut members = self.lock();
        members.retain(|_, member| member.is_there());
        let turn = members.range(first..).chain(members.range(..first));
        turn.filter(|(_, member)| !member.done)
            .map(|(name, member)| (*name, member.interest, Weak::clone(&member.socket)))
            .collect()
    }
}

impl AsFd for EventSet {
    /// The `epoll` that has the descriptors, but not the sockets.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

impl Member {
    fn is_there(&self) -> bool {
        let socket = self.socket.upgrade();
        socket.is_some_and(|socket| !socket.is_closed())
    }
}

/// Somebody who is told when the members change.
struct Waiting<'s> {
    set: &'s EventSet,
    bell: &'s Bell,
}

impl<'s> Waiting<'s> {
    fn new(set: &'s EventSet, bell: &'s Bell) -> Self {
        let mut waiting = set.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(bell.clone());
        Self { set, bell }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waiting = self.set.waiting.lock();
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|bell| !bell.is(self.bell));
    }
}
