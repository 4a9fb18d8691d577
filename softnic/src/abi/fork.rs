//! Children made by `fork`: their copies of a socket would keep it open after the end of the parent.

use std::{
    io,
    os::fd::RawFd,
    sync::{
        Once,
        atomic::{AtomicI32, Ordering},
    },
};

/// Number of descriptors closed in a child.
pub(crate) const FDS: usize = 5;

/// No descriptor.
const NONE: RawFd = -1;

/// Descriptors closed in a child.
static CLOSED: [AtomicI32; FDS] = [const { AtomicI32::new(NONE) }; FDS];

/// Closes the descriptors in each child made from now on, in place of earlier ones. In the child, the numbers belong to a
/// descriptor without a function, as other parts of the process still have them.
///
/// # Errors
/// - No memory is left.
pub(crate) fn close_in_children(fds: [RawFd; FDS]) -> io::Result<()> {
    static REGISTERED: Once = Once::new();
    let mut errno = 0;
    REGISTERED.call_once(|| {
        // SAFETY: the function calls only functions that are allowed in a child of a process with threads.
        errno = unsafe { libc::pthread_atfork(None, None, Some(close)) };
    });
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    for (closed, fd) in CLOSED.iter().zip(fds) {
        closed.store(fd, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs in a child, before `fork` returns.
unsafe extern "C" fn close() {
    // SAFETY: takes integers.
    let dead = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    for closed in &CLOSED {
        let fd = closed.swap(NONE, Ordering::Relaxed);
        if fd != NONE && dead != NONE {
            // SAFETY: takes integers. The descriptor is one of softnic's, whose users in the child find it without a function.
            unsafe { libc::dup3(dead, fd, libc::O_CLOEXEC) };
        }
    }
    if dead != NONE {
        // SAFETY: opened above, and used by nothing else.
        unsafe { libc::close(dead) };
    }
}
