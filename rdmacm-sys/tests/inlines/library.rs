//! Replacements of libibverbs functions called by the inlines. The linker resolves both the Rust and the C callers to
//! these definitions. Each has the signature of the replaced function.

use crate::world::{called, token};
use ibverbs_sys::*;
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

thread_local! {
    /// Result of the functions with an errno value as result.
    pub(crate) static ERROR: Cell<c_int> = const { Cell::new(0) };
    /// Completion queue and context of the next event.
    pub(crate) static EVENT: Cell<(*mut ibv_cq, *mut c_void)> =
        const { Cell::new((std::ptr::null_mut(), std::ptr::null_mut())) };
}

/// Registration. In C, a registration without optional flags calls the older function, with the same effect.
fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_uint) -> *mut ibv_mr {
    called("reg_mr", &[format!("{pd:?} {addr:?} {length} {access}")]);
    token(50)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    register(pd, addr, length, access)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    assert_eq!(iova, addr.addr() as u64);
    register(pd, addr, length, access)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    called("dereg_mr", &[format!("{mr:?}")]);
    ERROR.get()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    called("get_cq_event", &[format!("{channel:?}")]);
    // SAFETY: the caller's pointers are to local variables.
    unsafe { (*cq, *context) = EVENT.get() };
    -c_int::from(ERROR.get() != 0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    called("ack_cq_events", &[format!("{cq:?} {nevents}")]);
}
