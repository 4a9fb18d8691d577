//! Functions of the C library whose paths below `/sys/class/infiniband*` and `/dev/infiniband` lead to the folder in
//! `SOFTNIC_FILES`. Other paths are compared with these prefixes, and passed on.
//!
//! The functions allocate nothing, and leave `errno` as the C library does: programs call them in handlers of signals, and
//! libraries before `main`. The first call of each function takes a lock of the loader (`dlsym(3)`), later calls take none. Their
//! own library is a program of this package, as no function for verbs may have a name of the C library.

mod path;

use std::ffi::{c_char, c_int, c_uint, c_void};

use interpose::real;

/// Defines functions of the C library. The argument in brackets is the path.
macro_rules! redirect {
    ($(fn $name:ident($($before:ident: $before_type:ty,)* [$path:ident] $(, $after:ident: $after_type:ty)*) -> $ret:ty;)*) => {
        $(
            /// # Safety
            /// As for the function of the C library.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($before: $before_type,)* $path: *const c_char $(, $after: $after_type)*
            ) -> $ret {
                let next = real!($name: unsafe extern "C-unwind" fn(
                    $($before_type,)* *const c_char $(, $after_type)*) -> $ret);
                // SAFETY: null or a terminated string, as guaranteed by the caller.
                if !unsafe { path::is_of_device($path) } {
                    // SAFETY: guaranteed by the caller.
                    return unsafe { next($($before,)* $path $(, $after)*) };
                }
                let call = |redirected| {
                    // SAFETY: guaranteed by the caller; the path is another one.
                    unsafe { next($($before,)* redirected $(, $after)*) }
                };
                // SAFETY: a terminated string, as guaranteed by the caller.
                unsafe { path::redirected($path, call) }
            }
        )*
    };
}

// The mode of `open` and its variants is passed in C only to make a file. Where it is not, the next function ignores it.
// By the calling conventions of Linux's architectures, a variable argument is passed as a fixed one.
redirect! {
    fn open([path], flags: c_int, mode: c_uint) -> c_int;
    fn open64([path], flags: c_int, mode: c_uint) -> c_int;
    fn __open_2([path], flags: c_int) -> c_int;
    fn __open64_2([path], flags: c_int) -> c_int;
    fn openat(folder: c_int, [path], flags: c_int, mode: c_uint) -> c_int;
    fn openat64(folder: c_int, [path], flags: c_int, mode: c_uint) -> c_int;
    fn __openat_2(folder: c_int, [path], flags: c_int) -> c_int;
    fn __openat64_2(folder: c_int, [path], flags: c_int) -> c_int;
    fn fopen([path], mode: *const c_char) -> *mut c_void;
    fn fopen64([path], mode: *const c_char) -> *mut c_void;
    fn access([path], mode: c_int) -> c_int;
    fn euidaccess([path], mode: c_int) -> c_int;
    fn eaccess([path], mode: c_int) -> c_int;
    fn faccessat(folder: c_int, [path], mode: c_int, flags: c_int) -> c_int;
    fn stat([path], found: *mut c_void) -> c_int;
    fn stat64([path], found: *mut c_void) -> c_int;
    fn lstat([path], found: *mut c_void) -> c_int;
    fn lstat64([path], found: *mut c_void) -> c_int;
    fn fstatat(folder: c_int, [path], found: *mut c_void, flags: c_int) -> c_int;
    fn fstatat64(folder: c_int, [path], found: *mut c_void, flags: c_int) -> c_int;
    fn statx(folder: c_int, [path], flags: c_int, mask: c_uint, found: *mut c_void) -> c_int;
    fn opendir([path]) -> *mut c_void;
    fn scandir([path], list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int;
    fn scandir64([path], list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int;
    fn readlink([path], target: *mut c_char, size: usize) -> isize;
    fn __readlink_chk([path], target: *mut c_char, size: usize, capacity: usize) -> isize;
    fn readlinkat(folder: c_int, [path], target: *mut c_char, size: usize) -> isize;
}

// Called by programs linked with releases of the C library before 2.33.
redirect! {
    fn __xstat(version: c_int, [path], found: *mut c_void) -> c_int;
    fn __xstat64(version: c_int, [path], found: *mut c_void) -> c_int;
    fn __lxstat(version: c_int, [path], found: *mut c_void) -> c_int;
    fn __lxstat64(version: c_int, [path], found: *mut c_void) -> c_int;
    fn __fxstatat(version: c_int, folder: c_int, [path], found: *mut c_void, flags: c_int) -> c_int;
    fn __fxstatat64(version: c_int, folder: c_int, [path], found: *mut c_void, flags: c_int) -> c_int;
}

/// Defines functions that return a resolved path, which begins as the path of the device's file again.
macro_rules! resolve {
    ($(fn $name:ident($($after:ident: $after_type:ty),*);)*) => {
        $(
            /// # Safety
            /// As for the function of the C library.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char $(, $after: $after_type)*) -> *mut c_char {
                let next = real!($name: unsafe extern "C-unwind" fn(
                    *const c_char $(, $after_type)*) -> *mut c_char);
                // SAFETY: null or a terminated string, as guaranteed by the caller.
                if !unsafe { path::is_of_device(path) } {
                    // SAFETY: guaranteed by the caller.
                    return unsafe { next(path $(, $after)*) };
                }
                let call = |redirected| {
                    // SAFETY: guaranteed by the caller; the path is another one.
                    unsafe { next(redirected $(, $after)*) }
                };
                // SAFETY: a terminated string, as guaranteed by the caller.
                let resolved = unsafe { path::redirected(path, call) };
                // SAFETY: null or a terminated string, which the caller may change.
                unsafe { path::restore(resolved) };
                resolved
            }
        )*
    };
}

resolve! {
    fn realpath(resolved: *mut c_char);
    fn __realpath_chk(resolved: *mut c_char, capacity: usize);
    fn canonicalize_file_name();
}
