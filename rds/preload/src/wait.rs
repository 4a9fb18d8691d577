//! Waiting for many descriptors, some of which are sockets of this crate.

use std::{
    io, slice,
    sync::Arc,
    time::{Duration, Instant},
};

use libc::{c_int, c_short, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rds::Interest;

use crate::{
    real::{real, run},
    table::{self, Held},
};

const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;
/// A peer's congestion has changed: it is told with what can be read.
const CHANGED: c_short = READ | libc::POLLWRBAND;

type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;

fn real_poll(fds: &mut [pollfd], timeout: c_int) -> io::Result<c_int> {
    let real = real!(poll: Poll);
    let count = nfds_t::try_from(fds.len()).map_err(io::Error::other)?;
    // SAFETY: the entries are as many as is said.
    let ready = unsafe { real(fds.as_mut_ptr(), count, timeout) };
    if ready < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(ready)
}

/// What of `wanted` a socket can do now. Its descriptor is readable from then on when that is more.
fn state_of(held: &Held, wanted: c_short) -> io::Result<c_short> {
    let interest = if wanted & WRITE != 0 {
        Interest::ReadWrite
    } else {
        Interest::Read
    };
    let readiness = held.socket.readiness(interest)?;
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
    Ok(state & wanted)
}

/// Waits for entries of which some are sockets of this crate.
fn wait(fds: &mut [pollfd], timeout: c_int) -> io::Result<c_int> {
    let held: Vec<Option<Arc<Held>>> = fds.iter().map(|asked| table::find(asked.fd)).collect();
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut own: Vec<pollfd> = fds.to_vec();
    loop {
        let mut ready = false;
        for ((entry, asked), held) in own.iter_mut().zip(&mut *fds).zip(&held) {
            asked.revents = 0;
            if let Some(held) = held {
                asked.revents = state_of(held, asked.events)?;
                ready |= asked.revents != 0;
                entry.events = libc::POLLIN;
            }
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let over = left.is_some_and(|left| left.is_zero());
        let millis = match left {
            _ if ready => 0,
            // Rounded up: to wake up too early is to wait again.
            Some(left) => c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX),
            None => -1,
        };
        let woken = real_poll(&mut own, millis)?;
        let mut count = 0;
        for ((entry, asked), held) in own.iter().zip(&mut *fds).zip(&held) {
            if held.is_none() {
                asked.revents = entry.revents;
            }
            count += c_int::from(asked.revents != 0);
        }
        if count > 0 || over || (woken == 0 && deadline.is_some() && millis == 0) {
            return Ok(count);
        }
    }
}

/// # Safety
/// `count` entries of `fds`, if it is not null, are readable and writable for `'a`.
unsafe fn entries<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    match usize::try_from(count) {
        // SAFETY: not null, and as many as the caller promises.
        Ok(count @ 1..) if !fds.is_null() => unsafe { slice::from_raw_parts_mut(fds, count) },
        _ => &mut [],
    }
}

fn has_own(fds: &[pollfd]) -> bool {
    fds.iter().any(|asked| table::may_have(asked.fd))
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let asked = unsafe { entries(fds, count) };
    if has_own(asked) {
        return run(|| wait(asked, timeout));
    }
    let real = real!(poll: Poll);
    // SAFETY: as the caller promises.
    unsafe { real(fds, count, timeout) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    if room / size_of::<pollfd>() < usize::try_from(count).unwrap_or(usize::MAX) {
        // SAFETY: it has no preconditions.
        unsafe { libc::abort() };
    }
    // SAFETY: as the caller promises.
    unsafe { poll(fds, count, timeout) }
}

/// Milliseconds, rounded up; -1 for ever.
fn milliseconds(time: Option<timespec>) -> c_int {
    let Some(time) = time else {
        return -1;
    };
    let millis = time.tv_sec.saturating_mul(1000);
    let millis = millis.saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(millis).unwrap_or(c_int::MAX)
}

/// The signals that a thread lets through while it waits.
struct Mask(Option<sigset_t>);

impl Mask {
    /// # Safety
    /// `mask` is null or valid.
    unsafe fn new(mask: *const sigset_t) -> Self {
        if mask.is_null() {
            return Self(None);
        }
        // SAFETY: sets of signals are plain data.
        let mut old = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut old) };
        Self(Some(old))
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        if let Some(old) = &self.0 {
            // SAFETY: the first is valid, and the second may be null.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
        }
    }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let asked = unsafe { entries(fds, count) };
    if has_own(asked) {
        // SAFETY: null or valid, as the caller promises.
        let timeout = milliseconds(unsafe { timeout.as_ref() }.copied());
        // SAFETY: as the caller promises.
        let _mask = unsafe { Mask::new(mask) };
        return run(|| wait(asked, timeout));
    }
    let real = real!(
        ppoll: unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(fds, count, timeout, mask) }
}

/// Which of the three sets of `select` has what it asks for by these.
const SETS: [c_short; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
/// And by which of the answers.
const ANSWERS: [c_short; 3] = [
    READ | libc::POLLHUP | libc::POLLERR,
    WRITE | libc::POLLERR,
    libc::POLLPRI,
];

/// The descriptors in three sets, with what is asked of each.
///
/// # Safety
/// The sets are null or valid.
unsafe fn asked_in(count: c_int, sets: [*mut fd_set; 3]) -> Vec<pollfd> {
    let most = c_int::try_from(libc::FD_SETSIZE).unwrap_or(0);
    (0..count.min(most))
        .filter_map(|fd| {
            let mut events = 0;
            for (&set, event) in sets.iter().zip(SETS) {
                // SAFETY: valid, and the descriptor is one of its bits.
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

/// Writes the answers to the sets; how many bits are set.
///
/// # Safety
/// The sets are null or valid.
unsafe fn answer(asked: &[pollfd], sets: [*mut fd_set; 3]) -> c_int {
    let mut count = 0;
    for ((&set, event), answers) in sets.iter().zip(SETS).zip(ANSWERS) {
        if set.is_null() {
            continue;
        }
        // SAFETY: valid, as the caller promises.
        unsafe { libc::FD_ZERO(set) };
        for entry in asked {
            if entry.events & event != 0 && entry.revents & answers != 0 {
                // SAFETY: valid, and the descriptor is one of its bits, since it was before.
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
    asked: &mut [pollfd],
    sets: [*mut fd_set; 3],
    timeout: c_int,
) -> io::Result<c_int> {
    wait(asked, timeout)?;
    if asked
        .iter()
        .any(|entry| entry.revents & libc::POLLNVAL != 0)
    {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { answer(asked, sets) })
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: as the caller promises.
    let mut asked = unsafe { asked_in(count, sets) };
    if has_own(&asked) {
        // SAFETY: null or valid, as the caller promises.
        let timeout = unsafe { timeout.as_ref() }.map(|time| timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_usec * 1000,
        });
        // SAFETY: as the caller promises.
        return run(|| unsafe { wait_sets(&mut asked, sets, milliseconds(timeout)) });
    }
    let real = real!(
        select: unsafe extern "C" fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(count, read, write, except, timeout) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: as the caller promises.
    let mut asked = unsafe { asked_in(count, sets) };
    if has_own(&asked) {
        // SAFETY: null or valid, as the caller promises.
        let timeout = milliseconds(unsafe { timeout.as_ref() }.copied());
        // SAFETY: as the caller promises.
        let _mask = unsafe { Mask::new(mask) };
        // SAFETY: as the caller promises.
        return run(|| unsafe { wait_sets(&mut asked, sets, timeout) });
    }
    let real = real!(
        pselect: unsafe extern "C" fn(
            c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t)
            -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(count, read, write, except, timeout, mask) }
}
