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
mod channel;
mod cm;
mod context;
mod copying;
mod cq;
mod cq_ex;
mod device;
mod event;
mod event_queue;
mod fork;
mod functions;
mod memory;
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
mod undefined;
mod unsupported;
mod xrcd;

pub(crate) use fork::close_in_children;
pub(crate) use memory::{ProcessMemory, is_accessible, is_of_same_object};
pub(crate) use notifier::Notifier;
pub(crate) use signals::{spawn_without_signals, survive};

use crate::engine::EngineError;

/// Closes the devices of dropped fabrics without objects, contexts in use and lists.
pub(crate) fn free_abandoned() {
    cm::free_abandoned();
    device::free_abandoned();
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
    std::ptr::null_mut()
}
