//! The program's `epoll` instances with rsockets.
//!
//! An `epoll` instance is the kernel's, and watches the [mirrors](rsocket::Socket::mirror) of rsockets. This
//! library observes only the addition of an rsocket, whose mirror is driven from then on, and records the
//! registrations: a descriptor replaced by a TCP socket, or by an rsocket, must stay in the same instances.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use interpose::{MAX_DESCRIPTORS, cross, is_owner, last_errno, load, real, set_errno};
use libc::{c_int, epoll_event};
use rsocket_capi as capi;

use crate::{
    files::borrow,
    fork::{self, Need},
    table::{self, Rsocket},
};

/// Whether a descriptor is in an `epoll` instance. Read without a lock.
static MAY_BE_REGISTERED: [AtomicBool; MAX_DESCRIPTORS] =
    [const { AtomicBool::new(false) }; MAX_DESCRIPTORS];

/// Registrations by descriptor and `epoll` instance.
static REGISTERED: Mutex<BTreeMap<(c_int, c_int), epoll_event>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<(c_int, c_int), epoll_event>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flag_of(fd: c_int) -> Option<&'static AtomicBool> {
    MAY_BE_REGISTERED.get(usize::try_from(fd).ok()?)
}

/// A descriptor in an `epoll` instance, with its requested events.
#[derive(Clone, Copy)]
pub(crate) struct EpollRegistration {
    fd: c_int,
    epfd: c_int,
    event: epoll_event,
}

impl EpollRegistration {
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
pub(crate) fn unregister_all(fds: &[c_int]) -> Vec<EpollRegistration> {
    let mut registrations = Vec::new();
    for &fd in fds {
        if flag_of(fd).is_none_or(|flag| !flag.load(SeqCst)) {
            continue;
        }
        let registered = registered();
        let of = registered.range((fd, c_int::MIN)..=(fd, c_int::MAX));
        let of = of.map(|(&(fd, epfd), &event)| EpollRegistration { fd, epfd, event });
        registrations.extend(of);
    }
    // The instance may have been closed, or its descriptor reused.
    registrations.retain(|registration| registration.control(libc::EPOLL_CTL_DEL));
    registrations
}

/// Adds the replaced descriptors to their former `epoll` instances.
pub(crate) fn register_again(registrations: &[EpollRegistration]) {
    for registration in registrations {
        if let Some(rsocket) = table::find(registration.fd) {
            drop(drive(&rsocket, registration.fd));
        }
        // Fails only without memory, and no caller can receive the error.
        registration.control(libc::EPOLL_CTL_ADD);
    }
}

/// Keeps the mirror of an rsocket, with the program's descriptor `fd`, up to date from now on.
fn drive(rsocket: &Rsocket, fd: c_int) -> io::Result<()> {
    match borrow(fd).map(|mirror| capi::drive_mirror(rsocket.fd(), mirror)) {
        // The number is closed, or another file's: the program has used a system call past this library.
        None => Ok(()),
        Some(Err(err)) if err.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Some(driven) => driven,
    }
}

/// Whether a descriptor may be in an `epoll` instance.
pub(crate) fn may_have(fd: c_int) -> bool {
    flag_of(fd).is_some_and(|flag| flag.load(SeqCst))
}

/// Forgets a closed descriptor, no longer in any `epoll` instance.
pub(crate) fn forget(fd: c_int) {
    if let Some(flag) = flag_of(fd)
        && flag.load(SeqCst)
        && is_owner()
    {
        flag.store(false, SeqCst);
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
        Some(unsafe { rsocket_epoll_ctl(epfd, op, fd, event) })
    });
    done.unwrap_or(-1)
}

/// As `epoll_ctl`, for a descriptor that may be an rsocket's.
///
/// # Safety
/// As for `epoll_ctl`.
unsafe fn rsocket_epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // Readiness is that of the TCP connection during a move.
    fork::step_for_wait(fd, Need::Receive);
    let rsocket = table::find(fd);
    let is_added = op != libc::EPOLL_CTL_DEL;
    if let Some(rsocket) = &rsocket
        && is_added
        && let Err(err) = drive(rsocket, fd)
    {
        set_errno(rsocket::errno(&err));
        return -1;
    }
    let done = real_ctl(epfd, op, fd, event);
    if done == 0 && (rsocket.is_some() || fork::is_later(fd)) {
        let error = last_errno();
        // SAFETY: null or valid, as the caller promises.
        let event = unsafe { load(event) };
        match (event, flag_of(fd)) {
            (Some(event), Some(flag)) if is_added => {
                flag.store(true, SeqCst);
                registered().insert((fd, epfd), event);
                fork::enter_loop(fd);
            }
            _ => drop(registered().remove(&(fd, epfd))),
        }
        set_errno(error);
    }
    done
}
