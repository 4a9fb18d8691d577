//! Functions of libibverbs and librdmacm that softnic's devices do not need: names of values, rates, files of sysfs, and
//! functions that fail.
//!
//! Together with those of `softnic`, they are all functions of rdma-core 65, in the program `softnic-verbs`, which is a
//! shared library.

mod buffers;
pub mod command;
mod device_files;
mod files;
mod keeper;
mod names;
mod providers;
mod rates;
mod unsupported;

/// Sets `errno`.
fn set_errno(errno: i32) {
    // SAFETY: no arguments; returns the address of this thread's `errno`.
    let errno_of_thread = unsafe { libc::__errno_location() };
    // SAFETY: this thread's `errno` exists as long as the thread.
    unsafe { *errno_of_thread = errno };
}
