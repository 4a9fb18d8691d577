//! Waiting for many descriptors, some of which are rsockets.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use interpose::{Mask, Polled, Selected, duplicate, real, set_errno};
use libc::{c_int, c_short, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timeval};
use rsocket::{EventSet, Interest, PollEvents, Sleep};
use rsocket_capi as own;

use crate::{
    files::borrow,
    fork,
    table::{self, Held, SETS, SOCKETS},
};

fn failed(err: &io::Error) -> c_int {
    set_errno(rsocket::errno(err));
    -1
}

/// How to sleep where other signals are let through meanwhile.
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

/// What there is to wait for, as `rpoll` knows it; nothing if none of it is an rsocket.
struct Asked {
    fds: Vec<pollfd>,
    _held: Vec<Arc<Held>>,
}

impl Polled for Asked {
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

    fn wait(mut self, answers: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int {
        let count = self.fds.len() as nfds_t;
        let mut sleep = sleep_with(mask);
        // SAFETY: the entries are as many as is said.
        let ready =
            unsafe { own::poll_with(self.fds.as_mut_ptr(), count, timeout, sleep.as_deref_mut()) };
        for (answer, own) in answers.iter_mut().zip(&self.fds) {
            answer.revents = own.revents;
        }
        ready
    }
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

/// The rsockets of three sets, if there are any.
struct Selects(Vec<(c_int, Arc<Held>)>);

impl Selected for Selects {
    unsafe fn of(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        // SAFETY: as the caller promises.
        let held = unsafe { sockets_in(count, sets) };
        (!held.is_empty()).then_some(Self(held))
    }

    unsafe fn wait(
        self,
        count: c_int,
        sets: [*mut fd_set; 3],
        timeout: *mut timeval,
        mask: Mask,
    ) -> c_int {
        let known_as = |fd| {
            let found = self.0.iter().find(|(own, _)| *own == fd);
            found.map_or(fd, |(_, held)| held.fd())
        };
        let mut sleep = sleep_with(mask);
        // SAFETY: as the caller promises.
        unsafe { own::select_by(count, sets, timeout, known_as, sleep.as_deref_mut()) }
    }
}

interpose::waiting!(Asked, Selects);

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

/// What an `epoll` was to tell about an rsocket.
pub(crate) type Left = Vec<(Arc<EventSet>, Interest)>;

/// Takes an rsocket out of every `epoll` that it is in.
pub(crate) fn leave(held: &Held) -> Left {
    let Ok(name) = u64::try_from(held.fd()) else {
        return Left::new();
    };
    let taken = |set: Arc<EventSet>| {
        let interest = set.take_socket(name)?;
        Some((set, interest))
    };
    SETS.all().into_iter().filter_map(taken).collect()
}

/// Adds what is the kernel's now to where the rsocket in its place was.
pub(crate) fn join(fd: c_int, left: Left) {
    for (set, interest) in left {
        if let Some(fd) = borrow(fd) {
            // It can only fail for want of memory, and there is nobody to tell.
            drop(set.add_fd(fd, interest));
        }
    }
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
unsafe fn wait(
    set: &EventSet,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: Mask,
) -> c_int {
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    let most = usize::try_from(max).unwrap_or(0);
    let occurred = match sleep_with(mask) {
        Some(mut sleep) => set.wait_by(most, timeout, &mut *sleep),
        None => set.wait(most, timeout),
    };
    let occurred = match occurred {
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
        return unsafe { wait(&set, events, max, timeout, Mask::SAME) };
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
        let mask = unsafe { Mask::new(mask) };
        // SAFETY: as the caller promises.
        return unsafe { wait(&set, events, max, timeout, mask) };
    }
    let real = real!(
        epoll_pwait: unsafe extern "C" fn(
            c_int, *mut epoll_event, c_int, c_int, *const sigset_t) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(epfd, events, max, timeout, mask) }
}
