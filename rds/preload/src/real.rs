//! The functions that were there before.

use std::{
    ffi::CStr,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use libc::{c_int, c_void};

/// Leaves a number where C looks for it.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the call has no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's.
    unsafe { *place = errno };
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

/// Runs a call: its value, or -1 with `errno` set. A panic must not reach C, and is `EIO`.
pub(crate) fn run<T: From<i8>>(call: impl FnOnce() -> io::Result<T>) -> T {
    // Whatever was locked when it panicked is usable: every lock is taken regardless of panics.
    let result = catch_unwind(AssertUnwindSafe(call));
    let result = result.unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EIO)));
    result.unwrap_or_else(|err| {
        set_errno(rds::errno(&err));
        T::from(-1)
    })
}

/// Puts a function in the place of C's: for a descriptor that is a socket of this crate, `$with` is
/// called with the socket; for others, the function that was there before.
macro_rules! interpose {
    ($(fn $name:ident($fd:ident: c_int $(, $arg:ident: $type:ty)* $(,)?) -> $ret:ty => $with:path;)*) => {
        $(
            /// # Safety
            /// As for the function of the same name.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($fd: libc::c_int $(, $arg: $type)*) -> $ret {
                if let Some(held) = $crate::table::find($fd) {
                    return $crate::real::run(|| {
                        // SAFETY: as the caller promises.
                        unsafe { $with(&held $(, $arg)*) }
                    });
                }
                let real = $crate::real::real!(
                    $name: unsafe extern "C" fn(libc::c_int $(, $type)*) -> $ret
                );
                // SAFETY: as the caller promises.
                unsafe { real($fd $(, $arg)*) }
            }
        )*
    };
}

pub(crate) use {interpose, real};
