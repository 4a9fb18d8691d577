//! The program's `epoll` instances with rsockets.
//!
//! An `epoll` instance is the kernel's, and watches the [mirrors](rsocket::Socket::mirror) of rsockets. This
//! library observes only the addition of an rsocket, whose mirror is driven from then on, and records the
//! registrations: a descriptor replaced by a TCP socket, or by an rsocket, must stay in the same instances.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use interpose::{MAX_DESCRIPTORS, cross, is_owner, last_errno, load, real, set_errno};
use libc::{c_int, epoll_event};
use rsocket_capi as own;

use crate::{
    fork::{self, Need},
    table,
};

/// Whether a descriptor is in an `epoll` instance. Read without a lock.
static KNOWN: [AtomicBool; MAX_DESCRIPTORS] = [const { AtomicBool::new(false) }; MAX_DESCRIPTORS];

/// Registrations by descriptor and `epoll` instance.
static REGISTERED: Mutex<BTreeMap<(c_int, c_int), epoll_event>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<(c_int, c_int), epoll_event>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known(fd: c_int) -> Option<&'static AtomicBool> {
    KNOWN.get(usize::try_from(fd).ok()?)
}

/// A descriptor in an `epoll` instance, with its requested events.
#[derive(Clone, Copy)]
pub(crate) struct Registration {
    fd: c_int,
    epfd: c_int,
    event: epoll_event,
}

impl Registration {
    fn control(&self, op: c_int) -> bool {
        let mut event = self.event;
        real_ctl(self.epfd, op, self.fd, &raw mut event) == 0
    }
}

fn real_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    let real = real!(
        epoll_ctl: unsafe extern "C-unwind" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int
    );
    // SAFETY: the event is a valid local one, or the program's. Assumption: the kernel checks the addresses that a system
    // call gets.
    unsafe { real(epfd, op, fd, event) }
}

/// Removes descriptors from all their `epoll` instances.
pub(crate) fn leave(fds: &[c_int]) -> Vec<Registration> {
    let mut left = Vec::new();
    for &fd in fds {
        if known(fd).is_none_or(|known| !known.load(SeqCst)) {
            continue;
        }
        let registered = registered();
        let of = registered.range((fd, c_int::MIN)..=(fd, c_int::MAX));
        let of = of.map(|(&(fd, epfd), &event)| Registration { fd, epfd, event });
        left.extend(of);
    }
    // The instance may have been closed, or its descriptor reused.
    left.retain(|registration| registration.control(libc::EPOLL_CTL_DEL));
    left
}

/// Adds the replaced descriptors to their former `epoll` instances.
pub(crate) fn join(left: &[Registration]) {
    for registration in left {
        if let Some(held) = table::find(registration.fd) {
            drop(own::drive_mirror(held.fd()));
        }
        // Fails only without memory, and no caller can receive the error.
        registration.control(libc::EPOLL_CTL_ADD);
    }
}

/// Whether a descriptor may be in an `epoll` instance.
pub(crate) fn may_have(fd: c_int) -> bool {
    known(fd).is_some_and(|known| known.load(SeqCst))
}

/// Forgets a closed descriptor, no longer in any `epoll` instance.
pub(crate) fn forget(fd: c_int) {
    if let Some(known) = known(fd)
        && known.load(SeqCst)
        && is_owner()
    {
        known.store(false, SeqCst);
        registered().retain(|&(other, _), _| other != fd);
    }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if !fork::is_own(fd) && !may_have(fd) {
        return real_ctl(epfd, op, fd, event);
    }
    let done = cross(false, true, || {
        // SAFETY: as the caller promises.
        Some(unsafe { own_ctl(epfd, op, fd, event) })
    });
    done.unwrap_or(-1)
}

/// As `epoll_ctl`, for a descriptor that may be an rsocket's.
///
/// # Safety
/// As for `epoll_ctl`.
unsafe fn own_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // Readiness is that of the TCP connection during a move.
    fork::step_for_wait(fd, Need::Receive);
    let held = table::find(fd);
    let is_added = op != libc::EPOLL_CTL_DEL;
    if let Some(held) = &held
        && is_added
        && let Err(err) = own::drive_mirror(held.fd())
    {
        set_errno(rsocket::errno(&err));
        return -1;
    }
    let done = real_ctl(epfd, op, fd, event);
    if done == 0 && (held.is_some() || fork::is_later(fd)) {
        let error = last_errno();
        // SAFETY: null or valid, as the caller promises.
        let event = unsafe { load(event) };
        match (event, known(fd)) {
            (Some(event), Some(known)) if is_added => {
                known.store(true, SeqCst);
                registered().insert((fd, epfd), event);
            }
            _ => drop(registered().remove(&(fd, epfd))),
        }
        set_errno(error);
    }
    done
}
