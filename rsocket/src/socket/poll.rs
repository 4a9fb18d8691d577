//! Waiting for several sockets and descriptors.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr,
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use bitflags::bitflags;
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_fds};
use verbs::{
    signals::{interrupting, is_interrupted},
    waiting::{EventFd, unnotified_sleep},
};

use super::{Socket, source};
use crate::{proto::stream::Readiness, waiters::Interest};

bitflags! {
    /// Requested and present events; the bits are those of `poll(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PollEvents: u16 {
        /// Data to receive, a connection to accept, or the end of the stream.
        const IN = 0x1;
        /// An exceptional condition; never set for a [`Socket`].
        const PRI = 0x2;
        /// Room to send.
        const OUT = 0x4;
        /// An error. Always reported.
        const ERR = 0x8;
        /// The connection has ended in both directions. Always reported.
        const HUP = 0x10;
        /// The descriptor is not open. Always reported.
        const NVAL = 0x20;
        /// Same as `IN`.
        const RDNORM = 0x40;
        /// Same as `OUT`.
        const WRNORM = 0x100;
        /// The peer has ended sending, or this side has shut down reading.
        const RDHUP = 0x2000;

        const _ = !0;
    }
}

/// An entry of [`poll()`]: a socket or a descriptor, with the requested events.
#[derive(Debug)]
pub struct PollEntry<'a> {
    target: PollTarget<'a>,
    interest: PollEvents,
    ready: PollEvents,
}

#[derive(Debug)]
enum PollTarget<'a> {
    Socket(&'a Socket),
    Fd(BorrowedFd<'a>),
}

impl<'a> PollEntry<'a> {
    /// Creates an entry for a socket.
    pub fn socket(socket: &'a Socket, interest: PollEvents) -> Self {
        Self {
            target: PollTarget::Socket(socket),
            interest,
            ready: PollEvents::empty(),
        }
    }

    /// Creates an entry for any other descriptor.
    pub fn fd(fd: BorrowedFd<'a>, interest: PollEvents) -> Self {
        Self {
            target: PollTarget::Fd(fd),
            interest,
            ready: PollEvents::empty(),
        }
    }

    /// Returns the events present at the end of the wait.
    pub fn ready(&self) -> PollEvents {
        self.ready
    }
}

/// Waits until an entry has events and returns the number of such entries. Without a timeout, waits
/// indefinitely.
///
/// Sockets and other descriptors can be mixed. Spurious wake-ups do not extend the timeout. Threads waiting
/// for the same socket do not consume each other's wake-ups.
///
/// ```
/// use std::{os::fd::AsFd, time::Duration};
///
/// use rsocket::{Family, PollEntry, PollEvents, Socket, poll};
///
/// # let _fabric = doctest::lasting_host();
/// # let socket = &Socket::new(Family::V4)?;
/// # socket.bind("10.9.0.1:7471".parse().unwrap())?;
/// # socket.listen(1)?;
/// let stdin = std::io::stdin();
/// let mut entries = [
///     PollEntry::socket(socket, PollEvents::IN),
///     PollEntry::fd(stdin.as_fd(), PollEvents::IN),
/// ];
/// if poll(&mut entries, Some(Duration::from_secs(1)))? > 0 && !entries[1].ready().is_empty() {
///     println!("input is available");
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// - `Interrupted`: a signal interrupted the wait.
/// - A device has failed.
pub fn poll(entries: &mut [PollEntry<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    poll_by(entries, timeout, &mut sleep)
}

/// A descriptor passed to a sleep function.
#[derive(Debug)]
pub struct SleepEntry<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// Requested events.
    pub interest: PollEvents,
    /// Present events, set by the sleep function.
    pub ready: PollEvents,
}

/// Sleep function on descriptors, like `poll(2)`; without a timeout, unlimited.
pub type Sleep<'a> = dyn FnMut(&mut [SleepEntry<'_>], Option<Duration>) -> io::Result<()> + 'a;

/// Works like [`poll()`] with a sleep function of the caller, for instance to unblock signals during the
/// sleep only, like `ppoll(2)`. No lock is held during the sleep.
///
/// # Errors
/// As for [`poll()`], and the errors of `sleep`.
pub fn poll_by(
    entries: &mut [PollEntry<'_>],
    timeout: Option<Duration>,
    sleep: &mut Sleep<'_>,
) -> io::Result<usize> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let event_fd = EventFd::of_thread().ok();
    let task = match &event_fd {
        Some(event_fd) => Waker::from(Arc::clone(event_fd)),
        None => Waker::noop().clone(),
    };
    loop {
        // Ready entries need no registration.
        let ready = entries.iter().any(|entry| entry.is_ready());
        let late = deadline.is_some_and(|deadline| deadline <= Instant::now());
        let waits = if ready || late {
            Vec::new()
        } else {
            begin(entries, &task)?
        };
        let ready = ready || waits.iter().any(|wait| wait.met);
        let remaining = match deadline {
            _ if ready => Some(Duration::ZERO),
            Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            None => None,
        };
        let remaining = sleep_time(event_fd.as_deref(), remaining);
        let polled = if ready {
            // Present events take precedence over a signal.
            poll_kernel(
                entries,
                &waits,
                event_fd.as_deref(),
                remaining,
                &mut self::sleep,
            )
        } else {
            poll_kernel(entries, &waits, event_fd.as_deref(), remaining, sleep)
        };
        drop(waits);
        if let Some(event_fd) = &event_fd {
            event_fd.drain();
        }
        polled?;
        let mut count = 0;
        for entry in &mut *entries {
            if let PollTarget::Socket(socket) = entry.target {
                entry.ready = socket.poll_events(entry.interest);
            }
            count += usize::from(!entry.ready.is_empty());
        }
        if count > 0 || late {
            return Ok(count);
        }
    }
}

/// Longest time of a sleep: a thread that got no eventfd is not notified.
pub(super) fn sleep_time(
    event_fd: Option<&EventFd>,
    remaining: Option<Duration>,
) -> Option<Duration> {
    match event_fd {
        Some(_) => remaining,
        None => Some(unnotified_sleep(remaining)),
    }
}

/// Bits of [`PollFlags`]: signed where rustix calls the C library, as under Miri.
type PollBits = <PollFlags as bitflags::Flags>::Bits;

/// Default sleep function: `ppoll(2)`.
pub(super) fn sleep(fds: &mut [SleepEntry<'_>], timeout: Option<Duration>) -> io::Result<()> {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|entry| {
            let bits = entry.interest.bits().to_ne_bytes();
            let flags = PollFlags::from_bits_retain(PollBits::from_ne_bytes(bits));
            PollFd::from_borrowed_fd(entry.fd, flags)
        })
        .collect();
    polled.extend(interrupting().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    // A timeout beyond the kernel's range is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let ready = poll_fds(&mut polled, timeout.as_ref())?;
    let is_pending = |fd: &PollFd<'_>| !fd.revents().is_empty();
    if ready == 1 && polled[fds.len()..].iter().any(is_pending) && is_interrupted() {
        return Err(io::ErrorKind::Interrupted.into());
    }
    for (entry, polled) in fds.iter_mut().zip(&polled) {
        let bits = polled.revents().bits().to_ne_bytes();
        entry.ready = PollEvents::from_bits_retain(u16::from_ne_bytes(bits));
    }
    Ok(())
}

/// Polls the kernel.
fn poll_kernel(
    entries: &mut [PollEntry<'_>],
    waits: &[Wait<'_>],
    event_fd: Option<&EventFd>,
    timeout: Option<Duration>,
    sleep: &mut Sleep<'_>,
) -> io::Result<()> {
    let mut fds = Vec::with_capacity(entries.len() + waits.len() + 1);
    let mut add = |fd, interest| {
        fds.push(SleepEntry {
            fd,
            interest,
            ready: PollEvents::empty(),
        });
    };
    let mut ordinary = 0;
    for entry in &*entries {
        if let PollTarget::Fd(fd) = entry.target {
            add(fd, entry.interest);
            ordinary += 1;
        }
    }
    let event_fd = event_fd.map(AsFd::as_fd);
    for fd in waits.iter().filter_map(|wait| wait.on.fd()).chain(event_fd) {
        add(fd, PollEvents::IN);
    }
    sleep(&mut fds, timeout)?;
    let mut answers = fds[..ordinary].iter().map(|fd| fd.ready);
    for entry in &mut *entries {
        if let PollTarget::Fd(_) = entry.target {
            entry.ready = answers.next().unwrap_or(PollEvents::empty());
        }
    }
    Ok(())
}

impl PollEntry<'_> {
    fn is_ready(&self) -> bool {
        match self.target {
            PollTarget::Socket(socket) => !socket.poll_events(self.interest).is_empty(),
            PollTarget::Fd(_) => false,
        }
    }
}

/// Registration of a waiting thread with a socket, until dropped.
#[derive(Debug)]
struct Wait<'s> {
    socket: &'s Socket,
    task: Waker,
    on: source::SocketSource,
    /// The requested events are present already.
    met: bool,
}

fn begin<'s>(entries: &[PollEntry<'s>], task: &Waker) -> io::Result<Vec<Wait<'s>>> {
    waited_for(entries)
        .into_iter()
        .map(|(socket, events)| socket.begin_wait(events, task))
        .collect()
}

/// Each socket of the entries once, with the events requested by all of its entries: a second registration of a task would
/// replace the first.
fn waited_for<'s>(entries: &[PollEntry<'s>]) -> Vec<(&'s Socket, PollEvents)> {
    let sockets = entries.iter().filter_map(|entry| match entry.target {
        PollTarget::Socket(socket) => Some((socket, entry.interest)),
        PollTarget::Fd(_) => None,
    });
    let mut sockets: Vec<_> = sockets.collect();
    sockets.sort_unstable_by_key(|(socket, _)| ptr::from_ref(*socket));
    sockets.dedup_by(|(next, events), (previous, all)| {
        let is_same = ptr::eq(*next, *previous);
        if is_same {
            *all |= *events;
        }
        is_same
    });
    sockets
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.on.end_wait(&self.task);
        self.socket.remove_task(&self.task);
    }
}

/// Readiness of a socket whose device has failed.
pub(super) const FAILED: Readiness = Readiness {
    readable: true,
    writable: true,
    ended: true,
    hung_up: true,
    failed: true,
};

/// Events of waiting readers and acceptors.
const READING: PollEvents = PollEvents::IN.union(PollEvents::RDNORM);
/// Events of waiting writers.
const WRITING: PollEvents = PollEvents::OUT.union(PollEvents::WRNORM);

pub(super) fn interest(events: PollEvents) -> Interest {
    Interest {
        read: events.intersects(READING.union(PollEvents::RDHUP)),
        write: events.intersects(WRITING),
        any: false,
    }
}

impl Socket {
    /// Wakes a task at each change of the phase.
    pub(super) fn add_task(&self, task: &Waker) {
        self.lock_raw().tasks.push(task.clone());
    }

    pub(super) fn remove_task(&self, task: &Waker) {
        let mut state = self.lock_raw();
        state.tasks.retain(|other| !other.will_wake(task));
    }

    /// Registers the task of a waiting thread.
    fn begin_wait(&self, events: PollEvents, task: &Waker) -> io::Result<Wait<'_>> {
        self.add_task(task);
        let mut wait = Wait {
            socket: self,
            task: task.clone(),
            on: self.event_source(),
            met: false,
        };
        let interest = interest(events);
        wait.met = interest.is_met(wait.on.begin_wait(interest, task)?);
        Ok(wait)
    }

    /// Returns the requested events now present, and errors.
    pub(super) fn poll_events(&self, requested: PollEvents) -> PollEvents {
        let events = self.events_now(requested);
        self.reflect(false);
        events
    }

    fn events_now(&self, requested: PollEvents) -> PollEvents {
        let readiness = match self.event_source() {
            source::SocketSource::Stream(connection) => {
                let readiness = connection.shared().readiness_now();
                readiness.map(|readiness| Readiness {
                    failed: readiness.failed && !self.lock_raw().reported_failure,
                    ..readiness
                })
            }
            source::SocketSource::Datagram(datagram) => datagram.shared().readiness_now(),
            source::SocketSource::Listening(listener) => Ok(Readiness {
                readable: listener.is_ready(),
                ..Readiness::default()
            }),
            source::SocketSource::Failed | source::SocketSource::Replaced { .. } => Ok(FAILED),
            // As on Linux.
            source::SocketSource::Ended | source::SocketSource::Quiet => Ok(Readiness {
                writable: true,
                hung_up: true,
                ..Readiness::default()
            }),
            source::SocketSource::Closed => return PollEvents::NVAL,
            source::SocketSource::Connecting(_) => Ok(Readiness::default()),
        };
        of_readiness(readiness.unwrap_or(FAILED), requested)
    }
}

fn of_readiness(readiness: Readiness, requested: PollEvents) -> PollEvents {
    let mut events = PollEvents::empty();
    events.set(READING, readiness.readable);
    events.set(WRITING, readiness.writable);
    events.set(PollEvents::RDHUP, readiness.ended);
    events &= requested;
    events.set(PollEvents::HUP, readiness.hung_up);
    events.set(PollEvents::ERR, readiness.failed);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The masks of a connected socket.
    #[test]
    fn poll_masks_match_librdmacm() {
        let both = PollEvents::IN | PollEvents::OUT;
        let idle = Readiness {
            writable: true,
            ..Readiness::default()
        };
        assert_eq!(of_readiness(idle, both), PollEvents::OUT);
        assert_eq!(of_readiness(idle, PollEvents::IN), PollEvents::empty());
        let closed = Readiness {
            readable: true,
            writable: true,
            ended: true,
            hung_up: true,
            failed: false,
        };
        assert_eq!(of_readiness(closed, both).bits(), 0x15);
        assert_eq!(of_readiness(closed, PollEvents::empty()), PollEvents::HUP);
        let half = Readiness {
            readable: true,
            ended: true,
            ..idle
        };
        let requested = PollEvents::RDHUP | PollEvents::RDNORM | PollEvents::WRNORM;
        assert_eq!(of_readiness(half, requested), requested);
        assert_eq!(of_readiness(half, PollEvents::RDHUP), PollEvents::RDHUP);
        assert_eq!(of_readiness(half, both), both);
    }

    /// The part without a device.
    #[test]
    fn poll_without_events_times_out() {
        let event_fd = EventFd::new().unwrap();
        let timeout = Duration::from_millis(300);
        let start = Instant::now();
        let mut entries = [PollEntry::fd(event_fd.as_fd(), PollEvents::IN)];
        assert_eq!(poll(&mut entries, Some(timeout)).unwrap(), 0);
        assert!(start.elapsed() >= timeout);
        event_fd.notify();
        assert_eq!(poll(&mut entries, None).unwrap(), 1);
        assert_eq!(entries[0].ready(), PollEvents::IN);
    }
}
