//! Memory registrations with a wrong local key: a receive into such memory fails, together with its queue
//! pair.
//!
//! The linker prefers a program's own function to a library's, so every registration in these tests passes
//! through here.

use std::{
    ffi::{CStr, c_char, c_uint, c_void},
    mem,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ibverbs_sys as ffi;

type Register =
    unsafe extern "C" fn(*mut ffi::ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ffi::ibv_mr;

/// Length in bytes of registrations with a wrong key; 0 for none.
static WRONG_LEN: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Returns the library's function.
fn library() -> Register {
    static FOUND: OnceLock<Register> = OnceLock::new();
    *FOUND.get_or_init(|| {
        const NAME: &CStr = c"ibv_reg_mr_iova2";
        // `RTLD_NEXT`: the next definition after this program's.
        let next = std::ptr::without_provenance_mut(usize::MAX);
        // SAFETY: a valid pseudo-handle and a terminated name.
        let found = unsafe { dlsym(next, NAME.as_ptr()) };
        assert!(!found.is_null(), "libibverbs has no {NAME:?}");
        // SAFETY: the function of that name has this type.
        unsafe { mem::transmute::<*mut c_void, Register>(found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ffi::ibv_mr {
    // SAFETY: as the caller promises.
    let mr = unsafe { library()(pd, addr, length, iova, access) };
    if !mr.is_null() && length == WRONG_LEN.load(Relaxed) {
        // SAFETY: just registered and not shared yet. Deregistration uses the handle, not the key.
        unsafe { (*mr).lkey ^= 0x55 };
    }
    mr
}

/// Runs `work` with a wrong key for registrations of `len` bytes.
pub(crate) fn with_wrong_keys<T>(len: usize, work: impl FnOnce() -> T) -> T {
    WRONG_LEN.store(len, Relaxed);
    let done = work();
    WRONG_LEN.store(0, Relaxed);
    done
}
