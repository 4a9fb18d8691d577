//! Lookup of the next definitions of interposed functions.

use std::ffi::CStr;

use libc::c_void;

/// Finds the next definition of a function after this library: in the C library, or in another
/// preloaded library. Aborts the program if there is none.
#[must_use]
pub fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name is terminated by zero, and `RTLD_NEXT` is a handle.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // A program cannot be linked with an undefined function, so this is no error of the program.
        // SAFETY: no preconditions.
        unsafe { libc::abort() };
    }
    found
}

/// A libc function by name and type. It is looked up at its first use, because other libraries may
/// call the function before this library is initialized.
#[macro_export]
macro_rules! real {
    ($name:ident: $type:ty) => {{
        use std::sync::atomic::{AtomicPtr, Ordering};
        static FOUND: AtomicPtr<$crate::libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut found = FOUND.load(Ordering::Acquire);
        if found.is_null() {
            let name = concat!(stringify!($name), "\0");
            let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c"");
            found = $crate::find(name);
            FOUND.store(found, Ordering::Release);
        }
        // SAFETY: as for a call by a C program. Assumption: a function of the C library has the type of its manual page.
        unsafe { std::mem::transmute::<*mut $crate::libc::c_void, $type>(found) }
    }};
}
