//! Functions of a library that is loaded at the first call (feature `dlopen`).
//!
//! The build script turns the declarations of the bindings into calls of [`loaded!`](crate::loaded), so the names and
//! signatures are those of other builds. [`late`](crate::late) finds functions of a loaded library too, since its
//! symbols are global.

use core::any::Any;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

/// Text in place of the names of constants, which the library's functions return.
const NO_TEXT: &CStr = c"(libibverbs or librdmacm is not installed)";

/// Defines a function that calls the library's function of this name, or fails if there is none.
#[doc(hidden)]
#[macro_export]
macro_rules! loaded {
    // A function with variable arguments cannot be forwarded: a program that calls it has to link the library.
    (
        $library:literal;
        $(#[$attr:meta])*
        pub fn $name:ident($($arg:ident: $type:ty,)* ...) $(-> $ret:ty)?;
    ) => {
        unsafe extern "C" {
            $(#[$attr])*
            pub fn $name($($arg: $type,)* ...) $(-> $ret)?;
        }
    };
    (
        $library:literal;
        $(#[$attr:meta])*
        pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?;
    ) => {
        $(#[$attr])*
        /// C's function of this name, in a library that is loaded at the first call.
        ///
        /// # Safety
        /// As in C.
        pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $ret)? {
            type Function = unsafe extern "C" fn($($type),*) $(-> $ret)?;
            static FUNCTION: ::std::sync::OnceLock<Option<Function>> = ::std::sync::OnceLock::new();
            let function = FUNCTION.get_or_init(|| {
                const NAME: &str = concat!(stringify!($name), "\0");
                let symbol = $crate::loaded::symbol($library, NAME);
                // SAFETY: NULL is `None`; otherwise the symbol of this name is a function, whose
                // signature the header of rdma-core gives, and an `Option` of one has its size.
                unsafe { ::core::mem::transmute::<*mut ::core::ffi::c_void, Option<Function>>(symbol) }
            });
            match function {
                // SAFETY: the caller keeps to the function's contract.
                Some(function) => unsafe { function($($arg),*) },
                // SAFETY: functions of these libraries return nothing, integers, pointers, or transparent structs
                // with an integer, which may all be zero.
                None => unsafe { $crate::loaded::absent($library) },
            }
        }
    };
}

/// Loads a library, unless it is loaded, and looks a symbol up. NULL without the library or the symbol.
#[doc(hidden)]
#[must_use]
pub fn symbol(library: &CStr, name: &'static str) -> *mut c_void {
    let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
        return ptr::null_mut();
    };
    // SAFETY: the name ends with a NUL. Initializers of libibverbs and librdmacm may run at any time, in any thread.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the handle is a library's, never closed; the name ends with a NUL.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// The result of a function that is missing: NULL or a negative number, with `errno` set to `ELIBACC`. libibverbs'
/// functions return an error number or -1; readers of both conventions accept the negated number.
///
/// # Safety
///
/// A value of type `T` may consist of zeros.
#[doc(hidden)]
#[must_use]
pub unsafe fn absent<T: Any>(library: &CStr) -> T {
    // SAFETY: `__errno_location` returns a valid pointer to this thread's `errno`.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: see above; no other thread can reach the location.
    unsafe { *errno = libc::ELIBACC };
    let value = MaybeUninit::<T>::zeroed();
    // SAFETY: zeros are a value of this type, by the caller's contract.
    let mut value = unsafe { value.assume_init() };
    let any: &mut dyn Any = &mut value;
    if let Some(number) = any.downcast_mut::<c_int>() {
        *number = if library == c"libibverbs.so.1" {
            -libc::ELIBACC
        } else {
            -1
        };
    } else if let Some(size) = any.downcast_mut::<isize>() {
        *size = -1;
    } else if let Some(text) = any.downcast_mut::<*const c_char>() {
        *text = NO_TEXT.as_ptr();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_function_fails_in_the_way_of_its_type() {
        let (ibverbs, rdmacm) = (c"libibverbs.so.1", c"librdmacm.so.1");
        // SAFETY: zero is a number.
        assert_eq!(unsafe { absent::<c_int>(ibverbs) }, -libc::ELIBACC);
        // SAFETY: see above.
        assert_eq!(unsafe { absent::<c_int>(rdmacm) }, -1);
        // SAFETY: see above.
        assert_eq!(unsafe { absent::<isize>(rdmacm) }, -1);
        // SAFETY: a pointer may be NULL.
        assert!(unsafe { absent::<*mut c_void>(ibverbs) }.is_null());
        let errno = std::io::Error::last_os_error().raw_os_error();
        assert_eq!(errno, Some(libc::ELIBACC));
        // SAFETY: see above.
        let text = unsafe { absent::<*const c_char>(ibverbs) };
        // SAFETY: not NULL, and a constant string.
        assert_eq!(unsafe { CStr::from_ptr(text) }, NO_TEXT);
    }

    #[test]
    fn symbol_of_absent_library_or_name_is_null() {
        assert!(symbol(c"libabsent.so.1", "ibv_get_device_list\0").is_null());
        assert!(symbol(c"libc.so.6", "ibv_no_such_function\0").is_null());
        assert!(!symbol(c"libc.so.6", "getpid\0").is_null());
    }
}
