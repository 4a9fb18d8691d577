//! Waiting for several sockets and descriptors.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use bitflags::bitflags;
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_fds};

use super::{Phase, Socket};
use crate::{
    connecting::Connecting,
    datagram::DatagramSocket,
    listener::Listener,
    proto::stream::Readiness,
    stream::Stream,
    waiters::{EventFd, Interest},
    waiting::thread_event_fd,
};

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
    subject: Subject<'a>,
    interest: PollEvents,
    ready: PollEvents,
}

#[derive(Debug)]
enum Subject<'a> {
    Socket(SocketRef<'a>),
    Fd(BorrowedFd<'a>),
}

/// Reference to a socket of the caller.
#[derive(Clone, Copy, Debug)]
enum SocketRef<'a> {
    /// The socket outlives the wait.
    Borrowed(&'a Socket),
    /// The socket may be dropped during the wait.
    Weak(&'a Weak<Socket>),
}

impl SocketRef<'_> {
    /// Calls a function with the socket, unless dropped.
    fn with<T>(self, call: impl FnOnce(&Socket) -> T) -> Option<T> {
        match self {
            Self::Borrowed(socket) => Some(call(socket)),
            Self::Weak(socket) => socket.upgrade().map(|socket| call(&socket)),
        }
    }

    fn poll_events(self, requested: PollEvents) -> PollEvents {
        self.with(|socket| socket.poll_events(requested))
            .unwrap_or_default()
    }
}

impl<'a> PollEntry<'a> {
    /// Creates an entry for a socket.
    pub fn socket(socket: &'a Socket, interest: PollEvents) -> Self {
        Self {
            subject: Subject::Socket(SocketRef::Borrowed(socket)),
            interest,
            ready: PollEvents::empty(),
        }
    }

    /// Creates an entry for a socket that may be dropped during the wait; a dropped socket has no events.
    pub(super) fn known(socket: &'a Weak<Socket>, interest: PollEvents) -> Self {
        Self {
            subject: Subject::Socket(SocketRef::Weak(socket)),
            interest,
            ready: PollEvents::empty(),
        }
    }

    /// Creates an entry for any other descriptor.
    pub fn fd(fd: BorrowedFd<'a>, interest: PollEvents) -> Self {
        Self {
            subject: Subject::Fd(fd),
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
    poll_and(entries, None, timeout, &mut sleep)
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
    poll_and(entries, None, timeout, sleep)
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
    // A timeout beyond the kernel's range is as good as none.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    poll_fds(&mut polled, timeout.as_ref())?;
    for (entry, polled) in fds.iter_mut().zip(&polled) {
        let bits = polled.revents().bits().to_ne_bytes();
        entry.ready = PollEvents::from_bits_retain(u16::from_ne_bytes(bits));
    }
    Ok(())
}

/// Works like [`poll_by`], and also returns when `also` is notified.
pub(super) fn poll_and(
    entries: &mut [PollEntry<'_>],
    also: Option<&EventFd>,
    timeout: Option<Duration>,
    sleep_by: &mut Sleep<'_>,
) -> io::Result<usize> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let event_fd = thread_event_fd()?;
    loop {
        // Ready entries need no registration.
        let ready = entries.iter().any(|entry| entry.is_ready());
        let late = deadline.is_some_and(|deadline| deadline <= Instant::now());
        let waits = if ready || late {
            Vec::new()
        } else {
            begin(entries, &event_fd)?
        };
        let ready = ready || waits.iter().any(|wait| wait.met);
        let left = match deadline {
            _ if ready => Some(Duration::ZERO),
            Some(deadline) => Some(deadline.saturating_duration_since(Instant::now())),
            None => None,
        };
        let polled = if ready {
            // Present events take precedence over a signal.
            poll_kernel(entries, &waits, also, &event_fd, left, &mut sleep)
        } else {
            poll_kernel(entries, &waits, also, &event_fd, left, sleep_by)
        };
        drop(waits);
        event_fd.drain();
        let notified = polled?;
        let mut count = 0;
        for entry in &mut *entries {
            if let Subject::Socket(socket) = entry.subject {
                entry.ready = socket.poll_events(entry.interest);
            }
            count += usize::from(!entry.ready.is_empty());
        }
        if count > 0 || notified || late {
            return Ok(count);
        }
    }
}

/// Polls the kernel. Returns whether `also` has been notified.
fn poll_kernel(
    entries: &mut [PollEntry<'_>],
    waits: &[Wait<'_>],
    also: Option<&EventFd>,
    event_fd: &EventFd,
    timeout: Option<Duration>,
    sleep: &mut Sleep<'_>,
) -> io::Result<bool> {
    let mut fds = Vec::with_capacity(entries.len() + waits.len() + 2);
    let mut add = |fd, interest| {
        fds.push(SleepEntry {
            fd,
            interest,
            ready: PollEvents::empty(),
        });
    };
    let mut ordinary = 0;
    for entry in &*entries {
        if let Subject::Fd(fd) = entry.subject {
            add(fd, entry.interest);
            ordinary += 1;
        }
    }
    let own = [Some(event_fd), also]
        .into_iter()
        .flatten()
        .map(AsFd::as_fd);
    for fd in waits.iter().filter_map(Wait::fd).chain(own) {
        add(fd, PollEvents::IN);
    }
    sleep(&mut fds, timeout)?;
    let mut answers = fds[..ordinary].iter().map(|fd| fd.ready);
    for entry in &mut *entries {
        if let Subject::Fd(_) = entry.subject {
            entry.ready = answers.next().unwrap_or(PollEvents::empty());
        }
    }
    let notified = also.is_some() && fds.last().is_some_and(|fd| !fd.ready.is_empty());
    Ok(notified)
}

impl PollEntry<'_> {
    fn is_ready(&self) -> bool {
        match self.subject {
            Subject::Socket(socket) => !socket.poll_events(self.interest).is_empty(),
            Subject::Fd(_) => false,
        }
    }
}

/// Registration of a waiting thread with a socket, until dropped.
#[derive(Debug)]
struct Wait<'s> {
    socket: SocketRef<'s>,
    /// Name among the waiters for the socket's state.
    name: u64,
    on: WaitsOn,
    /// The requested events are present already.
    met: bool,
}

/// Event source of the socket's phase.
#[derive(Debug)]
enum WaitsOn {
    Connecting(Arc<Connecting>),
    Listener(Arc<Listener>),
    Stream(Arc<Stream>, u64),
    Datagram(Arc<DatagramSocket>, u64),
    Nothing,
}

fn begin<'s>(entries: &[PollEntry<'s>], event_fd: &EventFd) -> io::Result<Vec<Wait<'s>>> {
    let sockets = entries.iter().filter_map(|entry| match entry.subject {
        Subject::Socket(socket) => Some((socket, entry.interest)),
        Subject::Fd(_) => None,
    });
    sockets
        .filter_map(|(socket, interest)| {
            socket.with(|there| there.begin_wait(socket, interest, event_fd))
        })
        .collect()
}

impl Wait<'_> {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.on {
            WaitsOn::Connecting(connecting) => Some(connecting.event_fd().as_fd()),
            WaitsOn::Listener(listener) => Some(listener.as_fd()),
            WaitsOn::Stream(stream, _) => Some(stream.connection().shared().completions()),
            WaitsOn::Datagram(datagram, _) => Some(datagram.shared().completions()),
            WaitsOn::Nothing => None,
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        // A failure shows at the next poll of the socket.
        match &self.on {
            WaitsOn::Stream(stream, name) => drop(stream.connection().shared().end_wait(*name)),
            WaitsOn::Datagram(datagram, name) => drop(datagram.shared().end_wait(*name)),
            WaitsOn::Connecting(_) | WaitsOn::Listener(_) | WaitsOn::Nothing => {}
        }
        let name = self.name;
        self.socket
            .with(|socket| socket.lock_raw().waiters.remove(name));
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

fn interest(events: PollEvents) -> Interest {
    Interest {
        read: events.intersects(READING.union(PollEvents::RDHUP)),
        write: events.intersects(WRITING),
        any: false,
    }
}

impl Socket {
    /// Registers a waiting thread. `whose` refers to this socket.
    fn begin_wait<'s>(
        &self,
        whose: SocketRef<'s>,
        events: PollEvents,
        event_fd: &EventFd,
    ) -> io::Result<Wait<'s>> {
        let mut state = self.lock();
        let name = state.waiters.add(Interest::ANY, event_fd);
        let on = match &state.phase {
            Phase::Connecting(connecting) => WaitsOn::Connecting(Arc::clone(connecting)),
            Phase::Listening(listener) => WaitsOn::Listener(Arc::clone(listener)),
            Phase::Connected(stream) => WaitsOn::Stream(Arc::clone(stream), 0),
            Phase::Datagram(datagram) => WaitsOn::Datagram(Arc::clone(datagram), 0),
            Phase::Idle(_) | Phase::Failed | Phase::Ended | Phase::Closed => WaitsOn::Nothing,
        };
        drop(state);
        let mut wait = Wait {
            socket: whose,
            name,
            on: WaitsOn::Nothing,
            met: false,
        };
        wait.on = match on {
            WaitsOn::Stream(stream, _) => {
                let interest = interest(events);
                let (readiness, name) = stream
                    .connection()
                    .shared()
                    .begin_wait(interest, event_fd)?;
                wait.met = interest.is_met(readiness);
                WaitsOn::Stream(stream, name)
            }
            WaitsOn::Datagram(datagram, _) => {
                let interest = interest(events);
                let (readiness, name) = datagram.shared().begin_wait(interest, event_fd)?;
                wait.met = interest.is_met(readiness);
                WaitsOn::Datagram(datagram, name)
            }
            on => on,
        };
        Ok(wait)
    }

    /// Returns the requested events now present, and errors.
    pub(super) fn poll_events(&self, requested: PollEvents) -> PollEvents {
        let events = self.events_now(requested);
        self.reflect(false);
        events
    }

    fn events_now(&self, requested: PollEvents) -> PollEvents {
        let state = self.lock();
        match &state.phase {
            Phase::Connected(stream) => {
                let stream = Arc::clone(stream);
                drop(state);
                let readiness = stream.connection().shared().readiness_now();
                of_readiness(readiness.unwrap_or(FAILED), requested)
            }
            Phase::Datagram(datagram) => {
                let datagram = Arc::clone(datagram);
                drop(state);
                of_readiness(
                    datagram.shared().readiness_now().unwrap_or(FAILED),
                    requested,
                )
            }
            Phase::Listening(listener) if listener.is_ready() => requested & READING,
            Phase::Failed => of_readiness(FAILED, requested),
            Phase::Ended => {
                let end = READING | PollEvents::RDHUP;
                requested & end | PollEvents::HUP
            }
            Phase::Closed => PollEvents::NVAL,
            Phase::Listening(_) | Phase::Idle(_) | Phase::Connecting(_) => PollEvents::empty(),
        }
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

    /// T-PO3: the masks of a connected socket.
    #[test]
    fn poll_masks_match_librdmacm() {
        let both = PollEvents::IN | PollEvents::OUT;
        let idle = Readiness {
            writable: true,
            ..Readiness::default()
        };
        assert_eq!(of_readiness(idle, both), PollEvents::OUT);
        assert_eq!(of_readiness(idle, PollEvents::IN), PollEvents::empty());
        let over = Readiness {
            readable: true,
            writable: true,
            ended: true,
            hung_up: true,
            failed: false,
        };
        assert_eq!(of_readiness(over, both).bits(), 0x15);
        assert_eq!(of_readiness(over, PollEvents::empty()), PollEvents::HUP);
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

    /// T-PO1, P1: the part without a device.
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
