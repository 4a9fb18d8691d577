//! A set of sockets and other descriptors that is waited for again and again.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{PollEntry, PollEvents, Socket, os_error, poll::poll_and};
use crate::waiters::Bell;

/// What to tell about a member of an [`EventSet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// What to wait for.
    pub events: PollEvents,
    /// Tell once only, until the interest is [changed](EventSet::modify).
    pub once: bool,
    /// Comes back with what has occurred.
    pub data: u64,
}

/// Something that has come for a member of an [`EventSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurred {
    /// What has come.
    pub events: PollEvents,
    /// What the [interest](Interest::data) said.
    pub data: u64,
}

#[derive(Debug)]
struct Member {
    subject: Subject,
    interest: Interest,
    /// It has told what it was to tell once.
    done: bool,
}

#[derive(Clone, Debug)]
enum Subject {
    /// It leaves the set when it is closed or dropped.
    Socket(Weak<Socket>),
    Fd(Arc<OwnedFd>),
}

/// What is waited for with one call again and again, in the manner of `epoll(7)`: as long as there is
/// something to be had, each wait says so.
///
/// Members have names, which are numbers of the caller's: descriptors, for example. Others can be
/// added and removed while threads wait, and they take notice. A wait looks at every member.
#[derive(Debug, Default)]
pub struct EventSet {
    members: Mutex<BTreeMap<u64, Member>>,
    /// Those who wait, each to be told when the members have changed.
    waiting: Mutex<Vec<Bell>>,
    /// From where on the next wait reports, so that everybody has a turn.
    next: Mutex<u64>,
}

impl EventSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
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

    fn add(&self, name: u64, subject: Subject, interest: Interest) -> io::Result<()> {
        let mut members = self.lock();
        if members.get(&name).is_some_and(Member::is_there) {
            return Err(os_error(Errno::EXIST));
        }
        let done = false;
        members.insert(
            name,
            Member {
                subject,
                interest,
                done,
            },
        );
        drop(members);
        self.changed();
        Ok(())
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
        self.add(name, Subject::Socket(Arc::downgrade(socket)), interest)
    }

    /// Adds any other descriptor, of which the set keeps a duplicate.
    ///
    /// # Errors
    /// - `AlreadyExists`: the name is taken.
    /// - `EMFILE`: there are too many descriptors.
    pub fn add_fd(&self, name: u64, fd: BorrowedFd<'_>, interest: Interest) -> io::Result<()> {
        let own = Arc::new(fd.try_clone_to_owned()?);
        self.add(name, Subject::Fd(own), interest)
    }

    /// Changes what to tell about a member.
    ///
    /// # Errors
    /// - `ENOENT`: there is no such member.
    pub fn modify(&self, name: u64, interest: Interest) -> io::Result<()> {
        let mut members = self.lock();
        let member = members.get_mut(&name).filter(|member| member.is_there());
        let member = member.ok_or_else(|| os_error(Errno::NOENT))?;
        member.interest = interest;
        member.done = false;
        drop(members);
        self.changed();
        Ok(())
    }

    /// Removes a member.
    ///
    /// # Errors
    /// - `ENOENT`: there is no such member.
    pub fn remove(&self, name: u64) -> io::Result<()> {
        let member = self.lock().remove(&name).filter(Member::is_there);
        member.ok_or_else(|| os_error(Errno::NOENT))?;
        self.changed();
        Ok(())
    }

    /// Waits until something has come, and returns at most `max` of it; nothing when the time is
    /// over. Without a timeout it waits for ever.
    ///
    /// # Errors
    /// - `InvalidInput`: `max` is zero.
    /// - `Interrupted`: a signal came.
    pub fn wait(&self, max: usize, timeout: Option<Duration>) -> io::Result<Vec<Occurred>> {
        if max == 0 {
            return Err(os_error(Errno::INVAL));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let bell = Bell::new()?;
        let _waiting = Waiting::new(self, &bell);
        loop {
            bell.clear();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let occurred = self.look(max, &bell, left)?;
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
    ) -> io::Result<Vec<Occurred>> {
        let mut next = *self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.hold(next);
        let mut entries: Vec<_> = held
            .iter()
            .map(|(_, interest, held)| match held {
                Held::Socket(socket) => PollEntry::socket(socket, interest.events),
                Held::Fd(fd) => PollEntry::fd(fd.as_fd(), interest.events),
            })
            .collect();
        poll_and(&mut entries, Some(bell), timeout)?;
        let mut occurred = Vec::new();
        let mut members = self.lock();
        for (entry, (name, interest, _)) in entries.iter().zip(&held) {
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
        Ok(occurred)
    }

    /// The members who are there and of whom anything is to be told, beginning with those from
    /// `first` on.
    fn hold(&self, first: u64) -> Vec<(u64, Interest, Held)> {
        let mut members = self.lock();
        members.retain(|_, member| member.is_there());
        let turn = members.range(first..).chain(members.range(..first));
        turn.filter(|(_, member)| !member.done)
            .filter_map(|(name, member)| {
                let held = match &member.subject {
                    Subject::Socket(socket) => Held::Socket(socket.upgrade()?),
                    Subject::Fd(fd) => Held::Fd(Arc::clone(fd)),
                };
                Some((*name, member.interest, held))
            })
            .collect()
    }
}

/// A member for as long as it is looked at.
#[derive(Debug)]
enum Held {
    Socket(Arc<Socket>),
    Fd(Arc<OwnedFd>),
}

impl Member {
    fn is_there(&self) -> bool {
        match &self.subject {
            Subject::Socket(socket) => socket.upgrade().is_some_and(|socket| !socket.is_closed()),
            Subject::Fd(_) => true,
        }
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
