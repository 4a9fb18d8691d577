//! Functions newer than rdma-core 39, looked up at run time.
//!
//! A program linked directly to such a function does not start with a library without the symbol. Each function here
//! returns the library's function, or `None` if the library is too old; the safe crates map `None` to EOPNOTSUPP, as
//! for a provider without the operation. The look-up happens once; later calls cost one load.
//!
//! Covers rdma-core up to 65. A function in the installed headers can also be called directly, under its name at the
//! crate's root.

use crate::{
    ibv_buf, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context, ibv_dm,
    ibv_dmah, ibv_dmah_init_attr, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_qp,
    ibv_qp_attach_comp_cntr_attr,
};
use core::ffi::{c_int, c_void};

/// Declares functions that look up a symbol in the process's libraries.
#[doc(hidden)]
#[macro_export]
macro_rules! late {
    ($(
        $(#[$attr:meta])*
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?;
    )*) => {$(
        $(#[$attr])*
        #[must_use]
        pub fn $name() -> Option<unsafe extern "C" fn($($arg: $type),*) $(-> $ret)?> {
            type Function = unsafe extern "C" fn($($arg: $type),*) $(-> $ret)?;
            static FUNCTION: ::std::sync::OnceLock<Option<Function>> =
                ::std::sync::OnceLock::new();
            *FUNCTION.get_or_init(|| {
                const NAME: &str = concat!(stringify!($name), "\0");
                // SAFETY: NAME ends with a NUL; RTLD_DEFAULT needs no handle.
                let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr().cast()) };
                // SAFETY: NULL is `None`; otherwise the symbol of this name is a function, whose
                // signature the header of rdma-core gives, and an `Option` of one has its size.
                unsafe { ::core::mem::transmute::<*mut ::core::ffi::c_void, Option<Function>>(symbol) }
            })
        }
    )*};
}

late! {
    /// `ibv_query_port_speed(context, port_num, port_speed)`—Reads a port's effective speed, in
    /// 100 Mb/s. Since rdma-core 62.
    fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int;

    /// `ibv_reg_mr_ex(pd, mr_init_attr)`—Registers memory of any kind. Since rdma-core 59.
    fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;

    /// `ibv_dm_export_dmabuf_fd(dm)`—Exports device memory as a dma-buf. Since rdma-core 62.
    fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int;

    /// `_ibv_query_comp_cntr_caps(context, caps, caps_size)`—Reads a device's completion counter capabilities. Since
    /// rdma-core 65.
    fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut ibv_comp_cntr_caps,
        caps_size: usize,
    ) -> c_int;

    /// `ibv_create_comp_cntr(context, cc_attr)`—Creates a completion counter. Since rdma-core 65.
    fn ibv_create_comp_cntr(
        context: *mut ibv_context,
        cc_attr: *mut ibv_comp_cntr_init_attr,
    ) -> *mut ibv_comp_cntr;

    /// `ibv_destroy_comp_cntr(comp_cntr)`—Destroys a completion counter. Since rdma-core 65.
    fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int;

    /// `ibv_set_comp_cntr(comp_cntr, value)`—Sets the number of completions. Since rdma-core 65.
    fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;

    /// `ibv_set_err_comp_cntr(comp_cntr, value)`—Sets the number of errors. Since rdma-core 65.
    fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;

    /// `ibv_inc_comp_cntr(comp_cntr, amount)`—Adds completions. Since rdma-core 65.
    fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;

    /// `ibv_inc_err_comp_cntr(comp_cntr, amount)`—Adds errors. Since rdma-core 65.
    fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;

    /// `ibv_read_comp_cntr(comp_cntr, value)`—Reads the number of completions. Since rdma-core 65.
    fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;

    /// `ibv_read_err_comp_cntr(comp_cntr, value)`—Reads the number of errors. Since rdma-core 65.
    fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;

    /// `ibv_qp_attach_comp_cntr(qp, comp_cntr, attr)`—Counts a queue pair's completions. Since
    /// rdma-core 65.
    fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        comp_cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;

    /// `ibv_alloc_buf(pd, size, buf)`—Lets the provider allocate memory. Since rdma-core 64.
    fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;

    /// `ibv_export_buf_dmabuf_fd(buf)`—Exports a provider's buffer as a dma-buf. Since rdma-core 65.
    fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int;

    /// `ibv_free_buf(buf)`—Frees a provider's buffer. Since rdma-core 64.
    fn ibv_free_buf(buf: *mut ibv_buf);

    /// `ibv_reg_buf_mr(pd, buf, addr, length, access)`—Registers a provider's buffer. Since rdma-core 64.
    fn ibv_reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut ibv_buf,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;

    /// `ibv_alloc_dmah(context, attr)`—Creates a handle for DMA hints. Since rdma-core 59.
    fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah;

    /// `ibv_dealloc_dmah(dmah)`—Destroys a DMA handle. Since rdma-core 59.
    fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int;
}
