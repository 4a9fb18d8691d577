//! The functions that were there before.

use std::{ffi::CStr, io, os::fd::BorrowedFd};

use libc::{c_int, c_void};

/// The number of the last error.
pub(crate) fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Leaves a number where C looks for it.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the call has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's.
    unsafe { *place = errno };
}

/// A descriptor of the program's.
pub(crate) fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: not negative. It is only given to calls of the kernel's, which say so if it is not
    // open; that it stays open is the program's affair, as with those calls themselves.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Finds a function behind this library: that of the C library, or of another that is preloaded.
pub(crate) fn find(name: &CStr) -> *mut c_void {
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
macro_rules! real {
    ($name:ident: $type:ty) => {{
        use std::sync::atomic::{AtomicPtr, Ordering};
        static FOUND: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut found = FOUND.load(Ordering::Acquire);
        if found.is_null() {
            let name = concat!(stringify!($name), "\0");
            let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c"");
            found = $crate::real::find(name);
            FOUND.store(found, Ordering::Release);
        }
        // SAFETY: the function of that name, which has this type.
        unsafe { std::mem::transmute::<*mut libc::c_void, $type>(found) }
    }};
}

/// Puts a function in the place of C's: for a descriptor that is an rsocket, `$with` is called with
/// the rsocket's own descriptor; for others, the function that was there before. What is an rsocket,
/// `$find` knows.
macro_rules! interpose {
    ($find:path:) => {};
    ($find:path:
        fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)* $(,)?) -> $ret:ty => $with:path;
        $($rest:tt)*
    ) => {
        /// # Safety
        /// As for the function of the same name.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($fd: libc::c_int $(, $arg: $type)*) -> $ret {
            if let Some(held) = $find($fd) {
                // SAFETY: as the caller promises.
                return unsafe { $with(held.fd() $(, $arg)*) };
            }
            let real = $crate::real::real!(
                $name: unsafe extern "C" fn(libc::c_int $(, $type)*) -> $ret
            );
            // SAFETY: as the caller promises.
            unsafe { real($fd $(, $arg)*) }
        }
        $crate::real::interpose! { $find: $($rest)* }
    };
}

pub(crate) use {interpose, real};
