//! The functions that were there before.

use std::ffi::CStr;

use libc::c_void;

/// Finds a function behind this library: that of the C library, or of another that is preloaded.
/// The program ends if there is none.
#[must_use]
pub fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero, and the handle is one that there always is.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // A program cannot have called what there is not, so this is no program's error.
        // SAFETY: it has no preconditions.
        unsafe { libc::abort() };
    }
    found
}

/// A function of C's by its name and type. It is looked up at its first use, whenever that is:
/// other libraries may call it before this one has been set up.
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
        // SAFETY: the function of that name, which has this type.
        unsafe { std::mem::transmute::<*mut $crate::libc::c_void, $type>(found) }
    }};
}
