//! Rsockets that a process has inherited by `fork`, and cannot use: their device was opened by its parent.
//!
//! In the child, each of these descriptors is an unconnected socket of the kernel's instead. So calls on it
//! fail with `ENOTCONN`, and no wait for it lasts, where a child that reads, as one of rsync's two does, would
//! wait for ever for what its parent takes.

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

use crate::{files::borrow, log, table::SOCKETS};

static INHERITED: [AtomicBool; MAX_DESCRIPTORS] =
    [const { AtomicBool::new(false) }; MAX_DESCRIPTORS];

/// The process that has opened them; 0 where none is inherited.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Puts unconnected sockets in the place of what the table knows. For a child, before the table forgets it.
pub(crate) fn take_over() {
    let known = (0..)
        .zip(&INHERITED)
        .filter(|(fd, _)| SOCKETS.may_have(*fd));
    let mut unconnected: Option<OwnedFd> = None;
    for (fd, inherited) in known {
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

/// As [`replace`](crate::files::replace), without the C library: other threads may have left it locked.
fn exchange(from: &OwnedFd, to: c_int) {
    let Some(old) = borrow(to) else { return };
    let close_on_exec = fcntl_getfd(old).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
    let flags = if close_on_exec {
        DupFlags::CLOEXEC
    } else {
        DupFlags::empty()
    };
    // SAFETY: it is open, as the table knows it, and it is not closed here.
    let mut place = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(to) });
    // It fails only where the descriptor is not open.
    let _: rustix::io::Result<()> = dup3(from, &mut place, flags);
}

/// A descriptor has been closed, or exchanged.
pub(crate) fn forget(fd: c_int) {
    if PARENT.load(Relaxed) != 0
        && let Some(inherited) = usize::try_from(fd).ok().and_then(|fd| INHERITED.get(fd))
    {
        inherited.store(false, SeqCst);
    }
}

/// Says once what is wrong where the program uses an inherited rsocket.
pub(crate) fn tell(fd: c_int) {
    let parent = PARENT.load(Relaxed);
    let inherited = usize::try_from(fd).ok().and_then(|fd| INHERITED.get(fd));
    if parent == 0 || !inherited.is_some_and(|inherited| inherited.swap(false, SeqCst)) {
        return;
    }
    log::complain(&format!(
        "process {} uses descriptor {fd}, an RDMA stream that process {parent} has opened: a stream that has \
         been used cannot be inherited by fork, and fails with ENOTCONN; run the program without this library",
        process::id()
    ));
}
