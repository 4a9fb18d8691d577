//! The C originals: a shared library that makes a pointer to each static inline public. Shared by
//! both -sys crates.

use crate::compiler::{Compiler, includes};
use crate::{HEADERS, INCLUDE, NAMES, NEWER};
use std::ffi::{CStr, CString, c_void};
use std::fmt::Write;
use std::sync::OnceLock;

/// The original of this name, as a function of this type.
macro_rules! original {
    ($name:expr) => {
        // SAFETY: the compiler made a function of the header's signature, which the bindings of
        // the same header have for the slot that it calls, and the case has too.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, _>($crate::original::address($name)) }
    };
}
pub(crate) use original;

/// Where the original called `name` is.
pub(crate) fn address(name: &str) -> *mut c_void {
    let symbol = CString::new(format!("original_{name}")).unwrap();
    // SAFETY: the library is never closed, and the symbol is a variable with a pointer in it.
    unsafe {
        let variable = libc::dlsym(library().0, symbol.as_ptr());
        assert!(!variable.is_null(), "{name} has no original");
        *variable.cast::<*mut c_void>()
    }
}

/// A handle that dlopen gave, for every thread.
struct Library(*mut c_void);
// SAFETY: the dynamic linker locks.
unsafe impl Send for Library {}
// SAFETY: the dynamic linker locks.
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
        // SAFETY: the name ends with a NUL; the library runs nothing when it is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: dlopen has just failed, so that there is a message.
        assert!(!handle.is_null(), "{:?}", unsafe {
            CStr::from_ptr(libc::dlerror())
        });
        Library(handle)
    })
}
