//! `poll` and `select` with rsockets among the descriptors.

use std::{
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use interpose::{Mask, Polled, Selected, load, milliseconds, set_errno, store};
use libc::{c_int, c_short, fd_set, nfds_t, pollfd, timeval};
use rsocket::{PollEvents, Sleep};
use rsocket_capi as capi;

use crate::{
    attempts::Substitute,
    fork::{self, Need},
    table::{self, Rsocket, SOCKETS},
};

/// Returns a sleep function that sets a signal mask during the sleep; `None` without a mask.
fn sleep_with(mask: Mask) -> Option<Box<Sleep<'static>>> {
    if !mask.is_set() {
        return None;
    }
    Some(Box::new(move |entries, timeout| {
        let mut fds: Vec<pollfd> = entries
            .iter()
            .map(|entry| pollfd {
                fd: entry.fd.as_raw_fd(),
                events: c_short::from_ne_bytes(entry.interest.bits().to_ne_bytes()),
                revents: 0,
            })
            .collect();
        mask.poll(&mut fds, timeout)?;
        for (entry, fd) in entries.iter_mut().zip(&fds) {
            let bits = u16::from_ne_bytes(fd.revents.to_ne_bytes());
            entry.ready = PollEvents::from_bits_retain(bits);
        }
        Ok(())
    }))
}

/// Entries for `rpoll`, with the rsockets kept alive.
struct RpollEntries {
    fds: Vec<pollfd>,
    /// Whether each entry is a connection whose move must go on before its readiness is known.
    moving: Vec<bool>,
    rsockets: Vec<Arc<Rsocket>>,
}

/// Maximum time in milliseconds between looks at connections that are being moved.
const MOVE_TICK: c_int = 20;

/// Aim of a caller that waits for these events.
fn need(events: c_short) -> Need {
    match events & libc::POLLOUT {
        0 => Need::Receive,
        _ => Need::Send,
    }
}

impl RpollEntries {
    fn is_moving(&self) -> bool {
        self.moving.contains(&true)
    }

    /// Whether TCP has taken over an attempt, so that the events are those of another socket.
    fn has_replaced(&self) -> bool {
        let mut substitutes = self.rsockets.iter().map(|rsocket| rsocket.substitute());
        substitutes.any(Substitute::is_connected)
    }

    /// Waits once. Events of connections that are being moved are left out. Returns the number of entries with events.
    fn wait_once(&mut self, answers: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int {
        let count = self.fds.len() as nfds_t;
        let mut sleep = sleep_with(mask);
        // SAFETY: `count` is the number of entries.
        let ready =
            unsafe { capi::poll_with(self.fds.as_mut_ptr(), count, timeout, sleep.as_deref_mut()) };
        let mut hidden = 0;
        for ((answer, inner), moving) in answers.iter_mut().zip(&self.fds).zip(&self.moving) {
            let is_hidden = *moving && inner.revents != 0;
            answer.revents = if is_hidden { 0 } else { inner.revents };
            hidden += c_int::from(is_hidden);
        }
        if ready < 0 { ready } else { ready - hidden }
    }
}

impl Polled for RpollEntries {
    fn may_have(fd: c_int) -> bool {
        fork::is_own(fd)
    }

    fn of(fds: &[pollfd]) -> Option<Self> {
        let moving: Vec<bool> = match fds.iter().any(|entry| fork::is_later(entry.fd)) {
            true => fds
                .iter()
                .map(|entry| fork::step_for_wait(entry.fd, need(entry.events)))
                .collect(),
            false => Vec::new(),
        };
        // Calls without rsockets pass through unchanged, without an allocation.
        let has_own = fds.iter().any(|entry| SOCKETS.may_have(entry.fd));
        if !has_own && !moving.contains(&true) {
            return None;
        }
        let mut rsockets = Vec::new();
        let mut inner: Vec<pollfd> = fds
            .iter()
            .map(|entry| match table::find(entry.fd) {
                Some(socket) => {
                    let fd = socket.fd();
                    rsockets.push(socket);
                    pollfd { fd, ..*entry }
                }
                None => *entry,
            })
            .collect();
        for (inner, moving) in inner.iter_mut().zip(&moving) {
            if *moving {
                // The peer's part of the move.
                inner.events = libc::POLLIN;
            }
        }
        Some(Self {
            fds: inner,
            moving,
            rsockets,
        })
    }

    fn wait(mut self, answers: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        let deadline = limit.map(|limit| Instant::now() + limit);
        if !self.is_moving() {
            self.moving = vec![false; self.fds.len()];
            let ready = self.wait_once(answers, timeout, mask);
            if ready <= 0 || !self.has_replaced() {
                return ready;
            }
            return match Self::of(answers) {
                Some(entries) => entries.wait(answers, remaining(deadline), mask),
                None => wait_for_others(answers, remaining(deadline), mask),
            };
        }
        loop {
            let duration =
                deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let millis = duration.map_or(MOVE_TICK, |duration| {
                // Rounded up.
                c_int::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
            });
            let ready = self.wait_once(answers, millis.min(MOVE_TICK), mask);
            if ready != 0 || millis == 0 {
                return ready;
            }
            match Self::of(answers) {
                Some(entries) if entries.is_moving() => self = entries,
                Some(entries) => return entries.wait(answers, remaining(deadline), mask),
                None => return wait_for_others(answers, remaining(deadline), mask),
            }
        }
    }
}

/// Milliseconds until a time, rounded up; -1 without one.
fn remaining(deadline: Option<Instant>) -> c_int {
    deadline.map_or(-1, |deadline| {
        let duration = deadline.saturating_duration_since(Instant::now());
        c_int::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    })
}

/// Waits for descriptors without an rsocket.
fn wait_for_others(fds: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int {
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    mask.poll(fds, timeout).unwrap_or_else(|err| {
        set_errno(rsocket::errno(&err));
        -1
    })
}

/// Returns the rsockets in three sets, by the program's descriptors.
///
/// # Safety
/// The sets are null or valid.
unsafe fn sockets_in(count: c_int, sets: [*mut fd_set; 3]) -> Vec<(c_int, Arc<Rsocket>)> {
    (0..capi::select_count(count).unwrap_or(0))
        .filter(|&fd| {
            // SAFETY: null or valid, as the caller promises.
            sets.iter().any(|&set| unsafe { capi::is_set(fd, set) })
        })
        .filter_map(|fd| Some((fd, table::find(fd)?)))
        .collect()
}

/// The rsockets in three sets.
struct Selects {
    rsockets: Vec<(c_int, Arc<Rsocket>)>,
    /// All entries, if a connection among them is being moved, or an attempt in progress.
    entries: Option<Vec<pollfd>>,
}

/// Events of each set.
const EVENTS: [c_short; 3] = [
    libc::POLLIN | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];

/// Returns the entries of three sets for `poll`.
///
/// # Safety
/// The sets are null or valid.
unsafe fn entries_of(count: c_int, sets: [*mut fd_set; 3]) -> Vec<pollfd> {
    let requested = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    (0..capi::select_count(count).unwrap_or(0))
        .filter_map(|fd| {
            let mut events = 0;
            for (set, event) in sets.iter().zip(requested) {
                // SAFETY: null or valid, as the caller promises.
                if unsafe { capi::is_set(fd, *set) } {
                    events |= event;
                }
            }
            let revents = 0;
            (events != 0).then_some(pollfd {
                fd,
                events,
                revents,
            })
        })
        .collect()
}

/// Waits for sets with connections that are being moved, or attempts in progress.
///
/// # Safety
/// As for `select`.
unsafe fn select_by_poll(
    mut entries: Vec<pollfd>,
    sets: [*mut fd_set; 3],
    timeout: *mut timeval,
    mask: Mask,
) -> c_int {
    // SAFETY: null or valid, as the caller promises.
    let time = unsafe { load(timeout) }.map(|time| libc::timespec {
        tv_sec: time.tv_sec,
        tv_nsec: time.tv_usec.saturating_mul(1000),
    });
    let millis = milliseconds(time);
    let limit = u64::try_from(millis).ok().map(Duration::from_millis);
    let deadline = limit.map(|limit| Instant::now() + limit);
    let ready = match RpollEntries::of(&entries) {
        Some(rsockets) => rsockets.wait(&mut entries, millis, mask),
        None => wait_for_others(&mut entries, millis, mask),
    };
    if let Some(deadline) = deadline {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let remaining = timeval {
            tv_sec: libc::time_t::try_from(remaining.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_usec: remaining.subsec_micros().into(),
        };
        // SAFETY: not null, since it was read, and writable, as the caller promises.
        unsafe { store(timeout, remaining) };
    }
    if ready < 0 {
        return ready;
    }
    if entries
        .iter()
        .any(|entry| entry.revents & libc::POLLNVAL != 0)
    {
        set_errno(libc::EBADF);
        return -1;
    }
    let mut count = 0;
    for entry in &entries {
        for (set, events) in sets.into_iter().zip(EVENTS) {
            // SAFETY: null or valid, as the caller promises.
            if !unsafe { capi::is_set(entry.fd, set) } {
                continue;
            }
            if entry.revents & events != 0 {
                count += 1;
            } else {
                // SAFETY: valid, since it has the descriptor.
                unsafe { libc::FD_CLR(entry.fd, set) };
            }
        }
    }
    count
}

impl Selected for Selects {
    fn may_have(fd: c_int) -> bool {
        fork::is_own(fd)
    }

    unsafe fn of(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        // SAFETY: as the caller promises.
        let entries = unsafe { entries_of(count, sets) };
        let is_moving = |entry: &pollfd| fork::step_for_wait(entry.fd, need(entry.events));
        let moving = entries.iter().filter(|entry| is_moving(entry)).count();
        // SAFETY: as the caller promises.
        let rsockets = unsafe { sockets_in(count, sets) };
        // TCP may take over an attempt.
        let is_connecting = |rsocket: &Rsocket| {
            capi::socket_of(rsocket.fd()).is_some_and(|socket| socket.is_connecting())
        };
        let repeats = moving > 0 || rsockets.iter().any(|(_, rsocket)| is_connecting(rsocket));
        let entries = repeats.then_some(entries);
        (!rsockets.is_empty() || entries.is_some()).then_some(Self { rsockets, entries })
    }

    unsafe fn wait(
        self,
        count: c_int,
        sets: [*mut fd_set; 3],
        timeout: *mut timeval,
        mask: Mask,
    ) -> c_int {
        if let Some(entries) = self.entries {
            // SAFETY: as the caller promises.
            return unsafe { select_by_poll(entries, sets, timeout, mask) };
        }
        let known_as = |fd| {
            let found = self
                .rsockets
                .iter()
                .find(|(descriptor, _)| *descriptor == fd);
            found.map_or(fd, |(_, rsocket)| rsocket.fd())
        };
        let mut sleep = sleep_with(mask);
        // SAFETY: as the caller promises.
        unsafe { capi::select_by(count, sets, timeout, known_as, sleep.as_deref_mut()) }
    }
}

interpose::waiting!(RpollEntries, Selects);
