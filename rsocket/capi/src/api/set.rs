//! `repoll_*`: reusable sets of sockets and descriptors.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    slice,
    sync::Arc,
    time::Duration,
};

use libc::{c_int, epoll_event};
use rsocket::{EventSet, PollEvents, Registration, Socket};
use rustix::event::epoll;

use crate::{
    errno::{compat, os, run},
    table::{self, Entry},
};

/// Converts a result; librdmacm's functions return error numbers.
fn result(mut call: impl FnMut() -> io::Result<c_int>) -> c_int {
    if compat() {
        return run(|| Ok(call().unwrap_or_else(|err| rsocket::errno(&err))));
    }
    run(call)
}

/// `repoll_create(flags)`—Creates a set and returns its descriptor. Supports the flag `EPOLL_CLOEXEC`;
/// `O_NONBLOCK` has no effect.
///
/// # Errors
/// - `EINVAL`: other flags.
/// - `EMFILE`: too many open descriptors.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn repoll_create(flags: c_int) -> c_int {
    run(|| {
        if flags & !(libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
            return Err(os(libc::EINVAL));
        }
        let mut epoll_flags = epoll::CreateFlags::empty();
        epoll_flags.set(epoll::CreateFlags::CLOEXEC, flags & libc::O_CLOEXEC != 0);
        let set = EventSet::with_epoll(epoll::create(epoll_flags)?)?;
        let fd = set.as_fd().as_raw_fd();
        table::add_set(fd, set);
        Ok(fd)
    })
}

fn registration(event: &epoll_event) -> Registration {
    let flags = event.events;
    let has = |flag: c_int| flags & u32::from_ne_bytes(flag.to_ne_bytes()) != 0;
    // All requestable events are in the lower 16 bits.
    let events = u16::try_from(flags & 0xffff).unwrap_or_default();
    Registration {
        events: PollEvents::from_bits_retain(events),
        once: has(libc::EPOLLONESHOT),
        edge: has(libc::EPOLLET),
        data: event.u64,
    }
}

/// Performs `repoll_ctl` on a socket with the name `name` in the set.
///
/// # Errors
/// - `AlreadyExists`, `ENOENT`: the socket is, or is not, in the set.
/// - `EFAULT`: `event` is null but required.
/// - `InvalidInput`: unknown operation.
pub fn control_socket(
    set: &EventSet,
    op: c_int,
    name: u64,
    socket: &Arc<Socket>,
    event: Option<&epoll_event>,
) -> io::Result<()> {
    let registration = event.map(registration).ok_or_else(|| os(libc::EFAULT));
    match op {
        libc::EPOLL_CTL_ADD => set.add_socket(name, socket, registration?),
        libc::EPOLL_CTL_MOD => set.modify_socket(name, registration?),
        libc::EPOLL_CTL_DEL => set.remove_socket(name),
        _ => Err(os(libc::EINVAL)),
    }
}

/// `repoll_ctl(epfd, op, fd, event)`—Adds an rsocket or another descriptor to a set, changes its events, or
/// removes the member.
///
/// # Errors
/// - `EEXIST`, `ENOENT`: the descriptor is, or is not, in the set.
/// - `EBADF`: `epfd` is not a set, or `fd` is not open.
/// - `EINVAL`: unknown operation, or a set inside another.
///
/// # Safety
/// `event` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn repoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    result(|| {
        let set = table::set(epfd)?;
        // SAFETY: null or valid, as the caller promises.
        let event = unsafe { event.as_ref() };
        let name = u64::try_from(fd).map_err(|_| os(libc::EBADF))?;
        match table::entry(fd) {
            Some(Entry::Set(_)) => return Err(os(libc::EINVAL)),
            Some(Entry::Socket(opened)) => {
                // The generation distinguishes the socket from an earlier one with the same descriptor,
                // possibly still in the set.
                let name = opened.generation << 32 | name;
                control_socket(&set, op, name, &opened.socket, event)?;
            }
            None => {
                // SAFETY: not negative, and only passed to `epoll_ctl(2)`. Assumption: a system call fails for a
                // descriptor that is not open.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                let registration = event.map(registration).ok_or_else(|| os(libc::EFAULT));
                match op {
                    libc::EPOLL_CTL_ADD => set.add_fd(fd, registration?)?,
                    libc::EPOLL_CTL_MOD => set.modify_fd(fd, registration?)?,
                    libc::EPOLL_CTL_DEL => set.remove_fd(fd)?,
                    _ => return Err(os(libc::EINVAL)),
                }
            }
        }
        Ok(0)
    })
}

/// `repoll_wait(epfd, events, maxevents, timeout)`—Waits for events and returns them.
///
/// # Safety
/// `max` entries of `events` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    result(|| {
        let set = table::set(epfd)?;
        let max = usize::try_from(max).map_err(|_| os(libc::EINVAL))?;
        let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
        if events.is_null() {
            return Err(os(libc::EFAULT));
        }
        let occurred = set.wait(max, timeout)?;
        // SAFETY: not null, and at most as many as the caller promises.
        let entries = unsafe { slice::from_raw_parts_mut(events, occurred.len()) };
        for (entry, occurred) in entries.iter_mut().zip(&occurred) {
            *entry = epoll_event {
                events: occurred.events.bits().into(),
                u64: occurred.data,
            };
        }
        c_int::try_from(occurred.len()).map_err(|_| os(libc::EINVAL))
    })
}
