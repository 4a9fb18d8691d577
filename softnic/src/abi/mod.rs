//! The functions of libibverbs over the engine or a scripted device, and those of librdmacm over the connection manager.
//!
//! Functions have their C names. The linker prefers a program's own symbols to symbols of a shared library, so a
//! program with this crate calls these functions. The inline functions of `verbs.h` go through a context's function
//! table, filled here. Functions without a counterpart in the engine fail with `EOPNOTSUPP`.
//!
//! Pointers from the program are trusted to be valid for their type, as in C.

mod acks;
mod ah;
mod attributes;
mod calls;
mod channel;
mod cm;
mod context;
mod copying;
mod cq;
mod cq_ex;
mod device;
mod dmabuf;
mod efa;
mod event;
mod event_queue;
mod fork;
mod functions;
mod memory;
mod mlx5;
mod mr;
mod mw;
mod notifier;
mod object;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod query;
pub mod scripted;
mod sequence;
mod signals;
mod srq;
mod stack;
mod sysfs;
mod udp;
mod undefined;
mod unsupported;
mod xrcd;

pub(crate) use fork::{FDS, close_in_children};
pub(crate) use memory::{ProcessMemory, is_accessible, object_of, own_object};
pub(crate) use notifier::Notifier;
pub(crate) use signals::{spawn_without_signals, survive};
pub(crate) use stack::stack;
pub(crate) use sysfs::{SysfsFile, files as sysfs_files};
#[cfg(test)]
pub(crate) use udp::disable_checksums;
pub(crate) use udp::{Received, merge_datagrams, receive, send_segments, use_frames_of_ipv6};

use std::{ffi::c_int, ptr, sync::OnceLock};

use crate::engine::EngineError;

/// Closes the devices of dropped fabrics without objects, contexts in use and lists.
pub(crate) fn free_abandoned() {
    cm::free_abandoned();
    device::free_abandoned();
}

/// Source of the exit status of the process.
static EXIT_STATUS: OnceLock<fn() -> Option<c_int>> = OnceLock::new();

/// Ends the process with another status than that of the program, if there is one.
extern "C" fn end_with_status() {
    if let Some(status) = EXIT_STATUS.get().and_then(|status| status()) {
        // SAFETY: null stands for all streams of the process, which would be flushed after this function.
        let _flushed: c_int = unsafe { libc::fflush(ptr::null_mut()) };
        // SAFETY: takes a number, and does not return.
        unsafe { libc::_exit(status) };
    }
}

/// Lets `status` decide on the status of the process at its exit. `None` leaves the program's own.
pub(crate) fn replace_exit_status(status: fn() -> Option<c_int>) {
    if EXIT_STATUS.set(status).is_ok() {
        // SAFETY: a function without arguments, in an object that is never unloaded.
        let _is_full: c_int = unsafe { libc::atexit(end_with_status) };
    }
}

/// Converts a refusal to an errno.
fn errno(error: EngineError) -> i32 {
    match error {
        EngineError::Busy(_) => libc::EBUSY,
        EngineError::Full(_) => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

/// Return value of a C function for a result: 0 or an errno.
fn outcome(result: Result<(), EngineError>) -> i32 {
    result.map_or_else(errno, |()| 0)
}

/// Sets `errno`.
fn set_errno(errno: i32) {
    // SAFETY: no arguments; returns the address of this thread's `errno`.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: this thread's `errno` exists as long as the thread.
    unsafe { *location = errno };
}

/// Sets `errno`, and returns null.
fn null<T>(errno: i32) -> *mut T {
    set_errno(errno);
    ptr::null_mut()
}
