//! Exit of the process. TCP continues to send after the exit; an rsocket ends with its process, so the process
//! waits until the peers have acknowledged the data.
//!
//! `exit` and the return from `main` run a destructor of this library. `_exit` calls no destructors, so it is
//! interposed, and `quick_exit` calls a handler. A child owns no rsockets of its parent and does not wait.

use std::ptr;

use interpose::real;
use libc::{c_int, c_void};
use rsocket_capi as capi;

use crate::{log, stdio};

type Exit = unsafe extern "C-unwind" fn(c_int) -> !;

unsafe extern "C" {
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

fn real_exit() -> Exit {
    real!(_exit: Exit)
}

/// Disconnects all rsockets. Async-signal-safe.
pub(crate) fn disconnect() {
    capi::disconnect_all();
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    disconnect();
    // SAFETY: as the caller promises.
    unsafe { real_exit()(status) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: as the caller promises.
    unsafe { _exit(status) }
}

extern "C" fn exiting() {
    // The C library writes the rest only after all destructors, with the streams disconnected.
    stdio::flush_all();
    if !capi::disconnect_all() {
        log::write_line(|| {
            "the process exits with data that a peer has not acknowledged".to_owned()
        });
    }
}

extern "C" fn exiting_quickly(_: *mut c_void) {
    disconnect();
}

extern "C" fn loaded() {
    // A signal handler and a child of `vfork` may exit but not look a symbol up.
    let _found: Exit = real_exit();
    // SAFETY: the function is valid as long as the library. Assumption: a library linked with `-z nodelete` stays loaded.
    let registered = unsafe { __cxa_at_quick_exit(exiting_quickly, ptr::null_mut()) };
    if registered != 0 {
        log::write_line(|| "quick_exit will lose data that a peer has not acknowledged".to_owned());
    }
}

/// Run by the loader.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Run by `exit` and by the return from `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static EXITING: extern "C" fn() = exiting;
