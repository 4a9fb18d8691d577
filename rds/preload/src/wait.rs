//! `poll` and `select` with RDS sockets.

use std::{
    io,
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use interpose::{Mask, Polled, Selected, load, milliseconds};
use libc::{c_int, c_short, fd_set, pollfd, timespec, timeval};
use rds::Readiness;

use crate::{
    binding,
    table::{SOCKETS, SocketEntry, run},
};

const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;
/// Events for a changed congestion map, reported along with readability.
const CHANGED: c_short = READ | libc::POLLWRBAND;

/// The readiness queried for these events.
fn to_readiness(events: c_short) -> Readiness {
    Readiness {
        readable: events & READ != 0,
        writable: events & WRITE != 0,
        map_changed: events & CHANGED != 0,
    }
}

/// The ready part of `events`. Arms the descriptors for the rest.
fn ready_events(entry: &SocketEntry, events: c_short) -> io::Result<c_short> {
    let readiness = entry.socket.readiness_of(to_readiness(events))?;
    let mut state = 0;
    if readiness.readable {
        state |= READ;
    }
    if readiness.map_changed {
        state |= CHANGED;
    }
    if readiness.writable {
        state |= WRITE;
    }
    Ok(state & events)
}

/// Descriptors to poll: the program's, plus the `writable_fd` of each RDS socket polled for writing.
fn descriptors(
    requests: &[pollfd],
    entries: &[Option<Arc<SocketEntry>>],
) -> io::Result<Vec<pollfd>> {
    let mut all = requests.to_vec();
    for (index, entry) in entries.iter().enumerate() {
        let Some(entry) = entry else {
            continue;
        };
        let interest = to_readiness(requests[index].events);
        let polls_fd = interest.readable || interest.map_changed;
        all[index].events = libc::POLLIN;
        if !polls_fd {
            // `poll` ignores negative descriptors.
            all[index].fd = -1;
        }
        if interest.writable {
            all.push(pollfd {
                fd: entry.socket.writable_fd()?.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            });
        }
    }
    Ok(all)
}

/// Polls descriptors with RDS sockets among them.
fn wait(fds: &mut [pollfd], timeout: c_int, mask: Mask) -> io::Result<c_int> {
    let entries: Vec<Option<Arc<SocketEntry>>> =
        fds.iter().map(|request| SOCKETS.find(request.fd)).collect();
    for entry in entries.iter().flatten() {
        binding::complete_bind(&entry.socket)?;
    }
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut polled = descriptors(fds, &entries)?;
    loop {
        let mut ready = false;
        for (request, entry) in fds.iter_mut().zip(&entries) {
            request.revents = 0;
            if let Some(entry) = entry {
                request.revents = ready_events(entry, request.events)?;
                ready |= request.revents != 0;
            }
        }
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timed_out = remaining.is_some_and(|remaining| remaining.is_zero());
        if ready {
            // With ready descriptors, a pending signal must not end the call.
            Mask::SAME.poll(&mut polled, Some(Duration::ZERO))?;
        } else {
            mask.poll(&mut polled, remaining)?;
        }
        let mut count = 0;
        for ((found, request), entry) in polled.iter().zip(&mut *fds).zip(&entries) {
            if entry.is_none() {
                request.revents = found.revents;
            }
            count += c_int::from(request.revents != 0);
        }
        if count > 0 || timed_out {
            return Ok(count);
        }
    }
}

/// A `poll` with RDS sockets.
struct Polls;

impl Polled for Polls {
    fn may_have(fd: c_int) -> bool {
        SOCKETS.may_have(fd)
    }

    fn of(fds: &[pollfd]) -> Option<Self> {
        has_rds_socket(fds).then_some(Self)
    }

    fn wait(self, fds: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int {
        run(|| wait(fds, timeout, mask))
    }
}

fn has_rds_socket(fds: &[pollfd]) -> bool {
    fds.iter().any(|request| SOCKETS.may_have(request.fd))
}

/// Events queried by the three sets of `select`.
const SETS: [c_short; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// Events reported in the three sets of `select`.
const RESULTS: [c_short; 3] = [
    READ | libc::POLLHUP | libc::POLLERR,
    WRITE | libc::POLLERR,
    libc::POLLPRI,
];

/// Converts the sets of `select`.
///
/// # Safety
/// The sets are null or valid.
unsafe fn from_sets(count: c_int, sets: [*mut fd_set; 3]) -> Vec<pollfd> {
    let max = c_int::try_from(libc::FD_SETSIZE).unwrap_or(0);
    (0..count.min(max))
        .filter_map(|fd| {
            let mut events = 0;
            for (&set, event) in sets.iter().zip(SETS) {
                // SAFETY: valid, and the descriptor is below `FD_SETSIZE`.
                if !set.is_null() && unsafe { libc::FD_ISSET(fd, set) } {
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

/// Stores the results in the sets; returns the number of bits set.
///
/// # Safety
/// The sets are null or valid.
unsafe fn store_sets(requests: &[pollfd], sets: [*mut fd_set; 3]) -> c_int {
    let mut count = 0;
    for ((&set, event), results) in sets.iter().zip(SETS).zip(RESULTS) {
        if set.is_null() {
            continue;
        }
        // SAFETY: valid, as the caller promises.
        unsafe { libc::FD_ZERO(set) };
        for entry in requests {
            if entry.events & event != 0 && entry.revents & results != 0 {
                // SAFETY: valid, and the descriptor was in a set before.
                unsafe { libc::FD_SET(entry.fd, set) };
                count += 1;
            }
        }
    }
    count
}

/// # Safety
/// The sets are null or valid.
unsafe fn wait_sets(
    requests: &mut [pollfd],
    sets: [*mut fd_set; 3],
    timeout: c_int,
    mask: Mask,
) -> io::Result<c_int> {
    wait(requests, timeout, mask)?;
    if requests
        .iter()
        .any(|entry| entry.revents & libc::POLLNVAL != 0)
    {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { store_sets(requests, sets) })
}

/// A `select` with RDS sockets.
struct Selects(Vec<pollfd>);

impl Selected for Selects {
    fn may_have(fd: c_int) -> bool {
        SOCKETS.may_have(fd)
    }

    unsafe fn of(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        // SAFETY: as the caller promises.
        let requests = unsafe { from_sets(count, sets) };
        has_rds_socket(&requests).then_some(Self(requests))
    }

    unsafe fn wait(
        mut self,
        _: c_int,
        sets: [*mut fd_set; 3],
        timeout: *mut timeval,
        mask: Mask,
    ) -> c_int {
        // SAFETY: null or valid, as the caller promises.
        let timeout = unsafe { load(timeout) }.map(|time| timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_usec * 1000,
        });
        // SAFETY: as the caller promises.
        run(|| unsafe { wait_sets(&mut self.0, sets, milliseconds(timeout), mask) })
    }
}

interpose::waiting!(Polls, Selects);
