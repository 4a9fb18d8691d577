//! Descriptor functions on sockets.

use std::{fs, ops::RangeInclusive, os::fd::BorrowedFd, sync::Arc};

use interpose::{is_owner, real};
use libc::{c_int, c_long, c_uint};
use rsocket_capi as capi;

use crate::{
    epoll, fork, inherited,
    table::{self, Rsocket, SOCKETS},
};

/// Borrows a descriptor of the program.
pub(crate) fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: not negative, and only passed to system calls. Assumption: a system call fails for a descriptor that is not
    // open. The program keeps its descriptors open, as for those calls themselves.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes a descriptor of this library in a child, without the C library, whose locks may be held by threads of the
/// parent.
pub(crate) fn close_inner(fd: c_int) {
    // SAFETY: the descriptor belongs to this library, and is not used elsewhere in the child.
    unsafe { rustix::io::close(fd) };
}

/// Replaces `to` with a duplicate of `from` and preserves the close-on-exec flag of `to`.
pub(crate) fn replace(from: c_int, to: c_int) -> bool {
    let fcntl = real!(fcntl: unsafe extern "C-unwind" fn(c_int, c_int, ...) -> c_int);
    let dup3 = real!(dup3: unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: the command has no argument.
    let flags = unsafe { fcntl(to, libc::F_GETFD) };
    let flags = if flags & libc::FD_CLOEXEC != 0 {
        libc::O_CLOEXEC
    } else {
        0
    };
    // SAFETY: all arguments are numbers.
    unsafe { dup3(from, to, flags) >= 0 }
}

/// The rsockets among the program's descriptors, and the TCP sockets to be moved to RDMA.
struct Rsockets;

impl interpose::Descriptors for Rsockets {
    type Forgotten = Option<Arc<Rsocket>>;

    fn may_have(fd: c_int) -> bool {
        fork::may_be_own(fd) || epoll::may_have(fd)
    }

    fn forget(fd: c_int) -> Self::Forgotten {
        fork::forget(fd);
        epoll::forget(fd);
        inherited::forget(fd);
        SOCKETS.remove(fd)
    }

    fn follow(old: c_int, new: c_int) {
        drop(Self::forget(new));
        fork::follow(old, new);
        if let Some(rsocket) = SOCKETS.find(old) {
            SOCKETS.add(new, rsocket);
        }
    }

    fn is_internal(fd: c_int) -> bool {
        interpose::is_internal(fd) && is_owner()
    }

    fn status_flags(fd: c_int, cmd: c_int, arg: c_long) -> Option<c_int> {
        let rsocket = table::find(fd)?;
        // The flags are in the lower half.
        let flags = c_int::try_from(arg & 0x7fff_ffff).unwrap_or(0);
        Some(capi::rfcntl(rsocket.fd(), cmd, flags))
    }
}

/// Whether a descriptor may belong to this library or a library below; not all of them are in a table.
fn may_be_inner(fd: c_int) -> bool {
    interpose::is_internal(fd) || interpose::is_of_device(fd) || capi::keeps_fd(fd)
}

/// Closes the program's descriptors in a range, except those needed by its rsockets.
fn close_all(range: RangeInclusive<c_uint>) {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<c_int> = open
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd: &c_int| range.contains(&fd.unsigned_abs()))
        .collect();
    for fd in open {
        if SOCKETS.may_have(fd) || !may_be_inner(fd) {
            // SAFETY: the program has requested the close. The directory's own descriptor is already closed.
            unsafe { close(fd) };
        }
    }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // With a table of its own, the thread would close descriptors that this library's threads have open.
    let flags = if is_owner() {
        flags & !libc::CLOSE_RANGE_UNSHARE.cast_signed()
    } else {
        flags
    };
    if first <= last && flags == 0 && is_owner() {
        close_all(first..=last);
        return 0;
    }
    let real = real!(close_range: unsafe extern "C-unwind" fn(c_uint, c_uint, c_int) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(first, last, flags) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    if is_owner() {
        close_all(first.max(0).unsigned_abs()..=c_uint::MAX);
        return;
    }
    let real = real!(closefrom: unsafe extern "C-unwind" fn(c_int));
    // SAFETY: as the caller promises.
    unsafe { real(first) }
}

interpose::descriptors!(Rsockets);
