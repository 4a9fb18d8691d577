//! Waiting for many descriptors, some of which are rsockets.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
    slice,
    sync::Arc,
    time::Duration,
};

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rsocket::EventSet;
use rsocket_capi as own;

use crate::{
    files::duplicate,
    fork,
    real::{real, set_errno},
    table::{self, Held, SETS, SOCKETS},
};

fn failed(err: &io::Error) -> c_int {
    set_errno(rsocket::errno(err));
    -1
}

/// What there is to wait for, as `rpoll` knows it; nothing if none of it is an rsocket.
struct Asked {
    fds: Vec<pollfd>,
    _held: Vec<Arc<Held>>,
}

impl Asked {
    fn of(fds: &[pollfd]) -> Option<Self> {
        for asked in fds {
            fork::settle_to_wait(asked.fd);
        }
        // What has no rsockets is as it was: nothing is allocated.
        if !fds.iter().any(|asked| SOCKETS.may_have(asked.fd)) {
            return None;
        }
        let mut held = Vec::new();
        let own = fds
            .iter()
            .map(|asked| match table::find(asked.fd) {
                Some(socket) => {
                    let fd = socket.fd();
                    held.push(socket);
                    pollfd { fd, ..*asked }
                }
                None => *asked,
            })
            .collect();
        (!held.is_empty()).then_some(Self {
            fds: own,
            _held: held,
        })
    }

    fn wait(&mut self, answers: &mut [pollfd], timeout: c_int) -> c_int {
        let count = self.fds.len() as nfds_t;
        // SAFETY: the entries are as many as is said.
        let ready = unsafe { own::rpoll(self.fds.as_mut_ptr(), count, timeout) };
        for (answer, own) in answers.iter_mut().zip(&self.fds) {
            answer.revents = own.revents;
        }
        ready
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

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let own = unsafe { entries(fds, count) };
    if let Some(mut asked) = Asked::of(own) {
        return asked.wait(own, timeout);
    }
    let real = real!(poll: unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int);
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
///
/// # Safety
/// `time` is null or valid.
unsafe fn milliseconds(time: *const timespec) -> c_int {
    // SAFETY: null or valid, as the caller promises.
    let Some(time) = (unsafe { time.as_ref() }) else {
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
    let own = unsafe { entries(fds, count) };
    if let Some(mut asked) = Asked::of(own) {
        // SAFETY: as the caller promises.
        let timeout = unsafe { milliseconds(timeout) };
        // SAFETY: as the caller promises.
        let _mask = unsafe { Mask::new(mask) };
        return asked.wait(own, timeout);
    }
    let real = real!(
        ppoll: unsafe extern "C" fn(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(fds, count, timeout, mask) }
}

/// The rsockets of three sets, by the program's descriptors.
///
/// # Safety
/// The sets are null or valid.
unsafe fn sockets_in(count: c_int, sets: [*mut fd_set; 3]) -> Vec<(c_int, Arc<Held>)> {
    let most = c_int::try_from(libc::FD_SETSIZE).unwrap_or(0);
    (0..count.min(most))
        .filter(|&fd| {
            sets.iter().any(|&set| {
                // SAFETY: valid, and the descriptor is one of its bits.
                !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
            })
        })
        .filter_map(|fd| {
            fork::settle_to_wait(fd);
            Some((fd, table::find(fd)?))
        })
        .collect()
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
    // SAFETY: as the caller promises.
    let held = unsafe { sockets_in(count, [read, write, except]) };
    if held.is_empty() {
        let real = real!(
            select: unsafe extern "C" fn(
                c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int
        );
        // SAFETY: as the caller promises.
        return unsafe { real(count, read, write, except, timeout) };
    }
    let known_as = |fd| {
        let found = held.iter().find(|(own, _)| *own == fd);
        found.map_or(fd, |(_, held)| held.fd())
    };
    // SAFETY: as the caller promises.
    unsafe { own::select_by(count, read, write, except, timeout, known_as) }
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
    // SAFETY: as the caller promises.
    let held = unsafe { sockets_in(count, [read, write, except]) };
    if held.is_empty() {
        let real = real!(
            pselect: unsafe extern "C" fn(
                c_int, *mut fd_set, *mut fd_set, *mut fd_set, *const timespec, *const sigset_t)
                -> c_int
        );
        // SAFETY: as the caller promises.
        return unsafe { real(count, read, write, except, timeout, mask) };
    }
    // SAFETY: null or valid, as the caller promises.
    let mut time = unsafe { timeout.as_ref() }.map(|time| timeval {
        tv_sec: time.tv_sec,
        tv_usec: (time.tv_nsec + 999) / 1000,
    });
    let time = time
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: as the caller promises.
    let _mask = unsafe { Mask::new(mask) };
    // SAFETY: as the caller promises, and the time is ours.
    unsafe { select(count, read, write, except, time) }
}

/// The set of an `epoll` that has rsockets, or is about to get the first.
fn set_of(epfd: c_int) -> io::Result<Arc<EventSet>> {
    if let Some(set) = SETS.find(epfd) {
        return Ok(set);
    }
    let own = duplicate(epfd, true);
    if own < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it has just been opened, and nobody else knows it.
    let own = unsafe { OwnedFd::from_raw_fd(own) };
    let set = Arc::new(EventSet::with_epoll(own));
    SETS.add(epfd, Arc::clone(&set));
    Ok(set)
}

/// Adds an rsocket to an `epoll`, changes it there, or removes it.
pub(crate) fn control(
    epfd: c_int,
    op: c_int,
    held: &Held,
    event: Option<&epoll_event>,
) -> io::Result<()> {
    let error = io::Error::from_raw_os_error;
    let socket = own::socket_of(held.fd()).ok_or_else(|| error(libc::EBADF))?;
    let set = set_of(epfd)?;
    let name = u64::try_from(held.fd()).map_err(io::Error::other)?;
    own::control_socket(&set, op, name, &socket, event)
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    fork::settle_to_wait(fd);
    if let Some(held) = table::find(fd) {
        // SAFETY: null or valid, as the caller promises.
        let event = unsafe { event.as_ref() };
        return match control(epfd, op, &held, event) {
            Ok(()) => 0,
            Err(err) => failed(&err),
        };
    }
    let real = real!(
        epoll_ctl: unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int
    );
    // SAFETY: as the caller promises.
    let done = unsafe { real(epfd, op, fd, event) };
    if done == 0 {
        // SAFETY: null or valid, as the caller promises.
        fork::watched(epfd, op, fd, unsafe { event.as_ref() });
    }
    done
}

/// # Safety
/// `max` entries of `events` are writable.
unsafe fn wait(set: &EventSet, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    let occurred = match set.wait(usize::try_from(max).unwrap_or(0), timeout) {
        Ok(occurred) => occurred,
        Err(err) => return failed(&err),
    };
    for (index, occurred) in occurred.iter().enumerate() {
        let event = epoll_event {
            events: occurred.events.bits().into(),
            u64: occurred.data,
        };
        // SAFETY: there are not more than there is room for.
        let place = unsafe { events.add(index) };
        // SAFETY: it is writable, as the caller promises.
        unsafe { place.write(event) };
    }
    c_int::try_from(occurred.len()).unwrap_or(max)
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    if let Some(set) = SETS.find(epfd) {
        // SAFETY: as the caller promises.
        return unsafe { wait(&set, events, max, timeout) };
    }
    let real = real!(
        epoll_wait: unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(epfd, events, max, timeout) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if let Some(set) = SETS.find(epfd) {
        // SAFETY: as the caller promises.
        let _mask = unsafe { Mask::new(mask) };
        // SAFETY: as the caller promises.
        return unsafe { wait(&set, events, max, timeout) };
    }
    let real = real!(
        epoll_pwait: unsafe extern "C" fn(
            c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(epfd, events, max, timeout, mask) }
}
