//! The functions of libibverbs over the engine, and those of librdmacm over the connection manager.
//!
//! Each is defined under its C name. The linker prefers a program's own symbols to those of a shared library, so a program
//! that links this crate calls these. What `verbs.h` has as inline functions goes through the table of a context, which is
//! filled here. Functions without a counterpart in the engine fail with `EOPNOTSUPP`.
//!
//! A pointer that a program hands in is trusted to be what its type says, as in C.

mod acks;
mod ah;
mod attributes;
mod channel;
mod cm;
mod context;
mod cq;
mod device;
mod event;
mod memory;
mod mr;
mod mw;
mod notifier;
mod object;
mod pd;
mod pipe;
mod post;
mod qp;
mod query;
mod srq;
mod unsupported;

pub(crate) use memory::ProcessMemory;
pub(crate) use notifier::Notifier;

use crate::engine::EngineError;

/// The errno of a refusal.
fn errno(error: EngineError) -> i32 {
    match error {
        EngineError::Busy(_) => libc::EBUSY,
        EngineError::Full(_) => libc::ENOMEM,
        _ => libc::EINVAL,
    }
}

/// What a C function returns for the outcome of a call: 0 or an errno.
fn outcome(result: Result<(), EngineError>) -> i32 {
    result.map_or_else(errno, |()| 0)
}

/// Sets `errno`.
fn set_errno(errno: i32) {
    // SAFETY: takes nothing, and returns the place of this thread's own.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own place, which exists as long as the thread.
    unsafe { *place = errno };
}

/// Sets `errno`, and returns null.
fn null<T>(errno: i32) -> *mut T {
    set_errno(errno);
    std::ptr::null_mut()
}
