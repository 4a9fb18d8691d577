//! Prints the results of the first calls of a program to both libraries.
//!
//! The tests build the program with the feature `dlopen`, and run it with and without the libraries.
#![expect(clippy::print_stdout, reason = "output for the tests")]

use std::ffi::CStr;
use std::io::Error;
use std::ptr;

fn main() {
    // SAFETY: the number of devices may be ignored.
    let list = unsafe { ibverbs_sys::ibv_get_device_list(ptr::null_mut()) };
    println!("device list: {}", result(list.is_null()));
    // SAFETY: has no precondition.
    let ret = unsafe { ibverbs_sys::ibv_fork_init() };
    println!("fork: {ret}");
    // SAFETY: every status has a text.
    let text =
        unsafe { ibverbs_sys::ibv_wc_status_str(ibverbs_sys::ibv_wc_status::IBV_WC_SUCCESS) };
    // SAFETY: the text is a constant string.
    let text = unsafe { CStr::from_ptr(text) };
    println!("text: {}", text.to_string_lossy());
    // SAFETY: has no precondition.
    let channel = unsafe { rdmacm_sys::rdma_create_event_channel() };
    println!("event channel: {}", result(channel.is_null()));
    // SAFETY: has no precondition.
    let socket = unsafe { rdmacm_sys::rsocket(-1, 0, 0) };
    println!("socket: {socket}, {}", result(socket < 0));
}

/// The error of the last call, if it failed.
fn result(failed: bool) -> String {
    if failed {
        Error::last_os_error().to_string()
    } else {
        "success".to_owned()
    }
}
