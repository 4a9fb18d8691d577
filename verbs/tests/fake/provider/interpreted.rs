//! libibverbs functions of a fake device for Miri only: elsewhere the library's own are used.

use std::ffi::{c_char, c_int};

use ibverbs_sys as ffi;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char {
    // SAFETY: a device of the fake's list.
    unsafe { &raw const (*device).name }.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    ctx: *mut ffi::ibv_context,
    port: u8,
    attr: *mut ffi::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: as the caller promised; a fake's port takes the older, shorter struct, too.
    unsafe {
        super::device::query_port(
            ctx,
            port,
            attr.cast(),
            size_of::<ffi::_compat_ibv_port_attr>(),
        )
    }
}
