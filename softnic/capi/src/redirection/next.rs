//! The next definitions of functions: those of the C library, or of another library loaded first.
//!
//! As `real!` of the package `interpose`, which needs the headers of rdma-core.

use std::ffi::{CStr, c_void};

/// Finds the next definition of a function after this library. Ends the program if there is none, which then could not have
/// been linked. A function that is found is found without an allocation.
pub(super) fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated string, and `RTLD_NEXT` is a handle.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // SAFETY: no preconditions.
        unsafe { libc::abort() };
    }
    found
}

/// The next definition of a function, by name and type, looked up by the first call.
macro_rules! next {
    ($name:ident: $type:ty) => {{
        use std::sync::atomic::{AtomicPtr, Ordering};
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut found = FOUND.load(Ordering::Acquire);
        if found.is_null() {
            let name = concat!(stringify!($name), "\0");
            let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c"");
            found = $crate::redirection::next::find(name);
            FOUND.store(found, Ordering::Release);
        }
        // SAFETY: a function of the C library has the type of its manual page. The mode of `open` is variable there, and passed as
        // a fixed argument by the calling conventions of Linux's architectures.
        unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
    }};
}
pub(super) use next;
