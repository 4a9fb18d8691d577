//! The C originals, from a shared library that exports a pointer to each static inline. Shared by both -sys crates.

use crate::compiler::{Compiler, includes};
use crate::{HEADERS, INCLUDE, NAMES, NEWER};
use std::ffi::{CStr, CString, c_void};
use std::fmt::Write;
use std::sync::OnceLock;

/// The C original of a name, as a function of the expected type.
macro_rules! original {
    ($name:expr) => {
        // SAFETY: the function has the header's signature; the bindings of the same header give the slot's signature,
        // and the test case uses the slot's.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, _>($crate::original::address($name)) }
    };
}
pub(crate) use original;

/// Address of the C original of `name`.
pub(crate) fn address(name: &str) -> *mut c_void {
    let symbol = CString::new(format!("original_{name}")).unwrap();
    // SAFETY: the library is never closed, and the symbol is a variable of pointer type.
    unsafe {
        let variable = libc::dlsym(library().0, symbol.as_ptr());
        assert!(!variable.is_null(), "{name} has no original");
        *variable.cast::<*mut c_void>()
    }
}

/// A handle of `dlopen`, usable from every thread.
struct Library(*mut c_void);
// SAFETY: `dlsym` is thread-safe.
unsafe impl Send for Library {}
// SAFETY: `dlsym` is thread-safe.
unsafe impl Sync for Library {}

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut source = includes(HEADERS);
        for name in NAMES.split_whitespace().chain(NEWER.iter().copied()) {
            writeln!(source, "__typeof__({name}) *original_{name} = {name};").unwrap();
        }
        let compiler = Compiler::new(INCLUDE);
        let path = compiler.file("originals.so");
        compiler.compile(
            &source,
            &["-shared", "-fPIC", "-O1", "-o", path.to_str().unwrap()],
        );
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a NUL; the library has no initializers.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: dlopen has just failed, so dlerror returns a message.
        assert!(!handle.is_null(), "{:?}", unsafe {
            CStr::from_ptr(libc::dlerror())
        });
        Library(handle)
    })
}
