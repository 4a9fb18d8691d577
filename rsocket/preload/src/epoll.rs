//! The `epoll`s that rsockets are in.
//!
//! An `epoll` is the kernel's, and tells of rsockets by their [mirrors](rsocket::Socket::mirror). All that is
//! to be seen of it is that an rsocket is added, whose mirror is driven from then on; and which `epoll`s one is
//! in that may yet turn into a TCP socket, or be made of one: that has to be in the same ones.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use interpose::{MAX_DESCRIPTORS, is_owner, last_errno, load, real, set_errno};
use libc::{c_int, epoll_event};
use rsocket_capi as own;

use crate::{fork, table};

/// Whether a descriptor is in an `epoll`. Looking takes no lock.
static KNOWN: [AtomicBool; MAX_DESCRIPTORS] = [const { AtomicBool::new(false) }; MAX_DESCRIPTORS];

/// By descriptor and `epoll`.
static REGISTERED: Mutex<BTreeMap<(c_int, c_int), epoll_event>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<(c_int, c_int), epoll_event>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known(fd: c_int) -> Option<&'static AtomicBool> {
    KNOWN.get(usize::try_from(fd).ok()?)
}

/// A descriptor in an `epoll`, and what that is to tell of it.
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
        epoll_ctl: unsafe extern "C" fn(c_int, c_int, c_int, *mut epoll_event) -> c_int
    );
    // SAFETY: the event is the program's, which the kernel checks, or one of ours.
    unsafe { real(epfd, op, fd, event) }
}

/// Takes descriptors out of every `epoll` that they are in.
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
    // The `epoll` may be gone, or another one.
    left.retain(|registration| registration.control(libc::EPOLL_CTL_DEL));
    left
}

/// Adds what the descriptors stand for now to where they were.
pub(crate) fn join(left: &[Registration]) {
    for registration in left {
        if let Some(held) = table::find(registration.fd) {
            drop(own::drive_mirror(held.fd()));
        }
        // It can only fail for want of memory, and there is nobody to tell.
        registration.control(libc::EPOLL_CTL_ADD);
    }
}

/// A descriptor has been closed: it is in no `epoll` any more.
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
unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    fork::settle_to_wait(fd);
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
