//! Rsockets inherited through `fork`, unusable in the child because their device was opened by the parent.
//!
//! In the child, each such descriptor is replaced with an unconnected kernel socket. Calls fail with
//! `ENOTCONN`, and waits end at once. Otherwise a reading child, such as one of rsync's processes, would wait
//! forever for data received by its parent.

use std::{
    mem::ManuallyDrop,
    os::fd::{FromRawFd, OwnedFd},
    process,
    sync::atomic::{
        AtomicBool, AtomicU32,
        Ordering::{Relaxed, SeqCst},
    },
};

use interpose::MAX_DESCRIPTORS;
use libc::c_int;
use rustix::{
    io::{DupFlags, FdFlags, dup3, fcntl_getfd},
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};

use crate::{files::borrow, fork, log, table::SOCKETS};

static INHERITED: [AtomicBool; MAX_DESCRIPTORS] =
    [const { AtomicBool::new(false) }; MAX_DESCRIPTORS];

/// Process that opened the inherited rsockets; 0 without any.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Replaces all known rsockets with unconnected sockets. Called in a child, before the table forgets them.
pub(crate) fn take_over() {
    let rsockets = (0..)
        .zip(&INHERITED)
        .filter(|(fd, _)| SOCKETS.may_have(*fd) || fork::was_moving(*fd));
    let mut unconnected: Option<OwnedFd> = None;
    for (fd, inherited) in rsockets {
        inherited.store(true, SeqCst);
        PARENT.store(
            rustix::process::getppid().map_or(0, |parent| parent.as_raw_pid().unsigned_abs()),
            SeqCst,
        );
        if unconnected.is_none() {
            let flags = SocketFlags::CLOEXEC;
            unconnected = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok();
        }
        if let Some(unconnected) = &unconnected {
            exchange(unconnected, fd);
        }
    }
}

/// Works like [`replace`](crate::files::replace) without the C library, whose locks may be held by threads of
/// the parent.
fn exchange(from: &OwnedFd, to: c_int) {
    let Some(old) = borrow(to) else { return };
    let close_on_exec = fcntl_getfd(old).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
    let flags = if close_on_exec {
        DupFlags::CLOEXEC
    } else {
        DupFlags::empty()
    };
    // SAFETY: open, as known to the table, and not closed here.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(to) });
    // Fails only if the descriptor is not open.
    let _: rustix::io::Result<()> = dup3(from, &mut target, flags);
}

/// Whether a descriptor may be an inherited rsocket.
pub(crate) fn may_have(fd: c_int) -> bool {
    let inherited = usize::try_from(fd).ok().and_then(|fd| INHERITED.get(fd));
    PARENT.load(Relaxed) != 0 && inherited.is_some_and(|inherited| inherited.load(SeqCst))
}

/// Forgets a closed or replaced descriptor.
pub(crate) fn forget(fd: c_int) {
    if PARENT.load(Relaxed) != 0
        && let Some(inherited) = usize::try_from(fd).ok().and_then(|fd| INHERITED.get(fd))
    {
        inherited.store(false, SeqCst);
    }
}

/// Reports the use of an inherited rsocket, once per descriptor.
pub(crate) fn report(fd: c_int) {
    let parent = PARENT.load(Relaxed);
    let inherited = usize::try_from(fd).ok().and_then(|fd| INHERITED.get(fd));
    if parent == 0 || !inherited.is_some_and(|inherited| inherited.swap(false, SeqCst)) {
        return;
    }
    log::warn(&format!(
        "process {} uses descriptor {fd}, an RDMA stream that process {parent} has opened: a stream that has \
         been used cannot be inherited by fork, and fails with ENOTCONN; run the program without this library",
        process::id()
    ));
}
