//! Replacements of libibverbs functions called by the inlines. The linker resolves both the Rust and the C callers to
//! these definitions. Each has the signature of the replaced function.

use crate::sample::Sample;
use crate::world::called;
use ibverbs_sys::*;
use std::ffi::{c_int, c_uint, c_void};

macro_rules! replaced {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            called(concat!("the library's ", stringify!($name)), &[$(format!("{:?}", $arg)),*]);
            Sample::sample()
        }
    )*};
}

replaced! {
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut c_void) -> c_int;
    fn _ibv_query_gid_ex(
        context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32,
        size: usize
    ) -> c_int;
    fn _ibv_query_gid_table(
        context: *mut ibv_context, entries: *mut ibv_gid_entry, max: usize, flags: u32, size: usize
    ) -> isize;
    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint
    ) -> *mut ibv_mr;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_reg_mr_iova(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int
    ) -> *mut ibv_mr;
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
}
