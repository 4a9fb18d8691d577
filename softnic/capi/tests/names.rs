//! Names and rates, compared with those of the installed libibverbs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem,
};

extern crate softnic_capi as _;

unsafe extern "C" {
    fn ibv_wc_status_str(value: c_int) -> *const c_char;
    fn ibv_node_type_str(value: c_int) -> *const c_char;
    fn ibv_port_state_str(value: c_int) -> *const c_char;
    fn ibv_event_type_str(value: c_int) -> *const c_char;
    fn ibv_rate_to_mult(value: c_int) -> c_int;
    fn mult_to_ibv_rate(value: c_int) -> c_int;
    fn ibv_rate_to_mbps(value: c_int) -> c_int;
    fn mbps_to_ibv_rate(value: c_int) -> c_int;
}

type Name = unsafe extern "C" fn(c_int) -> *const c_char;
type Number = unsafe extern "C" fn(c_int) -> c_int;

/// The function of the installed library.
fn installed(name: &str) -> *mut c_void {
    // SAFETY: a terminated string. The library has no state that matters here, and stays loaded.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "libibverbs is not installed");
    let name = CString::new(name).unwrap();
    // SAFETY: a loaded library, and a terminated string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

fn text(name: *const c_char) -> String {
    // SAFETY: names are terminated strings, which last.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().unwrap().to_owned()
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn names_are_those_of_libibverbs() {
    let functions: [(&str, Name); 4] = [
        ("ibv_wc_status_str", ibv_wc_status_str),
        ("ibv_node_type_str", ibv_node_type_str),
        ("ibv_port_state_str", ibv_port_state_str),
        ("ibv_event_type_str", ibv_event_type_str),
    ];
    for (name, ours) in functions {
        // SAFETY: the function has this type in C.
        let theirs = unsafe { mem::transmute::<*mut c_void, Name>(installed(name)) };
        for value in -2..40 {
            // SAFETY: any value is allowed.
            let our_name = unsafe { ours(value) };
            // SAFETY: any value is allowed.
            let their_name = unsafe { theirs(value) };
            assert_eq!(text(our_name), text(their_name), "{name} {value}");
        }
    }
}

#[cfg_attr(without_programs, ignore = "needs rdmacm-utils and perftest")]
#[test]
fn rates_are_those_of_libibverbs() {
    let functions: [(&str, Number); 4] = [
        ("ibv_rate_to_mult", ibv_rate_to_mult),
        ("mult_to_ibv_rate", mult_to_ibv_rate),
        ("ibv_rate_to_mbps", ibv_rate_to_mbps),
        ("mbps_to_ibv_rate", mbps_to_ibv_rate),
    ];
    for (name, ours) in functions {
        // SAFETY: the function has this type in C.
        let theirs = unsafe { mem::transmute::<*mut c_void, Number>(installed(name)) };
        for value in -2..1_300_000 {
            // SAFETY: any value is allowed.
            let our_value = unsafe { ours(value) };
            // SAFETY: any value is allowed.
            let their_value = unsafe { theirs(value) };
            assert_eq!(our_value, their_value, "{name} {value}");
        }
    }
}
