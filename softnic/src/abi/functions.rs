//! The functions with an object of an open device: each calls the engine's function or the one of scripted devices.
//!
//! Functions of libibverbs are exported under their C names. The inline functions of `verbs.h` call the others by the
//! tables of a context. Functions of posting and polling are in the tables without a detour over this module.

use std::ffi::{c_int, c_uint, c_void};

use ibverbs_sys::{
    self as ffi, __be16, ibv_advise_mr_advice, ibv_ah, ibv_ah_attr, ibv_alloc_dm_attr,
    ibv_async_event, ibv_comp_channel, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr,
    ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_cq, ibv_cq_ex,
    ibv_cq_init_attr_ex, ibv_device_attr, ibv_device_attr_ex, ibv_dm, ibv_ece, ibv_flow,
    ibv_flow_attr, ibv_gid, ibv_gid_entry, ibv_grh, ibv_modify_cq_attr, ibv_mr, ibv_mw,
    ibv_mw_bind, ibv_mw_type, ibv_parent_domain_init_attr, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attach_comp_cntr_attr, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_open_attr, ibv_qp_rate_limit_attr, ibv_query_device_ex_input, ibv_rwq_ind_table,
    ibv_rwq_ind_table_init_attr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, ibv_td, ibv_td_init_attr, ibv_values_ex, ibv_wc, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr, ibv_wr_opcode, ibv_xrcd, ibv_xrcd_init_attr,
};

use super::{
    ah, channel,
    context::{self, OpenDevice},
    cq, cq_ex, event, mr, mw, null, pd, qp, qp_ex, query,
    scripted::{Shared, functions as scripted},
    set_errno, srq, unsupported, xrcd,
};
use crate::failure::Call;

/// Kind of a device.
pub(super) enum Kind<'a> {
    Engine(&'a OpenDevice),
    Scripted(&'a Shared),
}

impl Kind<'_> {
    /// The kind of a context's device.
    ///
    /// # Safety
    /// - `ctx` is an open context of this crate while the result is used.
    pub(super) unsafe fn of(ctx: *mut ibv_context) -> Self {
        // SAFETY: the caller's promise: contexts of this crate are extended ones.
        let verbs = unsafe { ffi::verbs_get_ctx(ctx) };
        // SAFETY: open; the field does not change.
        let shared: *const Shared = unsafe { (*verbs).priv_ }.cast_const().cast();
        // SAFETY: null for the engine; otherwise a device with the context as an owner.
        match unsafe { shared.as_ref() } {
            Some(shared) => Self::Scripted(shared),
            // SAFETY: the caller's promise.
            None => Self::Engine(unsafe { context::device(ctx) }),
        }
    }

    /// Counts a call, and returns its failure, if requested.
    fn called(&self, call: Call) -> Result<(), i32> {
        match self {
            Self::Engine(device) => device.port.attempt(call),
            Self::Scripted(device) => device.called(call),
        }
    }
}

/// A pointer to an object of C with a context.
trait OfContext {
    /// Reads the object's context.
    ///
    /// # Safety
    /// - The object is live.
    unsafe fn context(self) -> *mut ibv_context;
}

impl OfContext for *mut ibv_context {
    unsafe fn context(self) -> *mut ibv_context {
        self
    }
}

macro_rules! of_context {
    ($($name:ident)*) => {$(
        impl OfContext for *mut ffi::$name {
            unsafe fn context(self) -> *mut ibv_context {
                // SAFETY: the caller's promise; the field does not change.
                unsafe { (*self).context }
            }
        }
    )*};
}

of_context! {
    ibv_ah ibv_comp_channel ibv_comp_cntr ibv_counters ibv_cq ibv_dm ibv_flow ibv_mr ibv_mw ibv_pd ibv_qp
    ibv_rwq_ind_table ibv_srq ibv_td ibv_wq ibv_xrcd
}

/// Return value of a C function.
trait Answer {
    /// The value for a failure.
    fn failed(errno: i32) -> Self;

    /// The value for a failure of a call by its manual page: some return -1, and set `errno`.
    fn failed_call(_call: Call, errno: i32) -> Self
    where
        Self: Sized,
    {
        Self::failed(errno)
    }

    /// Sets `errno` to the value of a failure, as the kernel's call below libibverbs does.
    fn noted(self) -> Self
    where
        Self: Sized,
    {
        self
    }
}

impl<T> Answer for *mut T {
    fn failed(errno: i32) -> Self {
        null(errno)
    }
}

impl Answer for c_int {
    fn failed(errno: i32) -> Self {
        errno
    }

    fn failed_call(call: Call, errno: i32) -> Self {
        match call {
            Call::CloseDevice | Call::InitAhFromWc => {
                set_errno(errno);
                -1
            }
            _ => errno,
        }
    }

    fn noted(self) -> Self {
        if self > 0 {
            set_errno(self);
        }
        self
    }
}

impl Answer for isize {
    fn failed(errno: i32) -> Self {
        c_int::wrapping_neg(errno) as Self
    }
}

impl Answer for () {
    fn failed(_errno: i32) {}
}

macro_rules! engine {
    (none, $($arg:ident)*) => {
        Answer::failed(libc::EOPNOTSUPP)
    };
    ($module:ident::$function:ident, $($arg:ident)*) => {
        // SAFETY: the caller's arguments, for an object of the engine.
        unsafe { $module::$function($($arg),*) }
    };
}

/// Declares functions which first let a requested failure happen, and are recorded by scripted devices.
macro_rules! functions {
    ($(
        $(#[$attr:meta])*
        fn $name:ident($first:ident: $first_type:ty $(, $arg:ident: $type:ty)* $(,)?) $(-> $ret:ty)?
            = $module:ident $(::$engine:ident)?, $scripted:ident;
    )*) => {$(
        $(#[$attr])*
        pub(super) unsafe extern "C" fn $name($first: $first_type $(, $arg: $type)*) $(-> $ret)? {
            // SAFETY: the caller's object is live.
            let ctx = unsafe { $first.context() };
            // SAFETY: the context of a live object is open.
            let kind = unsafe { Kind::of(ctx) };
            const CALL: Call = Call::of(stringify!($name));
            if let Err(errno) = kind.called(CALL) {
                return Answer::noted(Answer::failed_call(CALL, errno));
            }
            Answer::noted(match kind {
                Kind::Engine(_) => engine!($module $(::$engine)?, $first $($arg)*),
                // SAFETY: the caller's arguments, for an object of a scripted device.
                Kind::Scripted(_) => unsafe { scripted::$scripted($first $(, $arg)*) },
            })
        }
    )*};
}

/// Declares such functions under their C names.
macro_rules! exported_functions {
    ($(
        fn $name:ident $args:tt $(-> $ret:ty)? = $module:ident $(::$engine:ident)?, $scripted:ident;
    )*) => {
        functions! {$(
            #[unsafe(no_mangle)]
            fn $name $args $(-> $ret)? = $module $(::$engine)?, $scripted;
        )*}
    };
}

/// Declares functions which cannot fail on request, or interpret failures themselves.
macro_rules! plain_functions {
    ($(
        fn $name:ident($first:ident: $first_type:ty $(, $arg:ident: $type:ty)* $(,)?) $(-> $ret:ty)?
            = $module:ident::$engine:ident, $scripted:ident;
    )*) => {$(
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($first: $first_type $(, $arg: $type)*) $(-> $ret)? {
            // SAFETY: the caller's object is live.
            let ctx = unsafe { $first.context() };
            // SAFETY: the context of a live object is open.
            match unsafe { Kind::of(ctx) } {
                Kind::Engine(_) => engine!($module::$engine, $first $($arg)*),
                // SAFETY: the caller's arguments, for an object of a scripted device.
                Kind::Scripted(_) => unsafe { scripted::$scripted($first $(, $arg)*) },
            }
        }
    )*};
}

plain_functions! {
    fn ibv_query_gid(ctx: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int
        = query::query_gid, query_gid;
    fn ibv_query_pkey(ctx: *mut ibv_context, port: u8, index: c_int, pkey: *mut __be16) -> c_int
        = query::query_pkey, query_pkey;
    fn ibv_get_pkey_index(ctx: *mut ibv_context, port: u8, pkey: __be16) -> c_int
        = query::get_pkey_index, get_pkey_index;
    fn ibv_get_async_event(ctx: *mut ibv_context, event: *mut ibv_async_event) -> c_int
        = event::ibv_get_async_event, get_async_event;
    fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int
        = channel::ibv_get_cq_event, get_cq_event;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) = channel::ibv_ack_cq_events, ack_cq_events;
    fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int
        = qp::ibv_query_qp_data_in_order, query_qp_data_in_order;
    fn ibv_rereg_mr(
        mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int,
    ) -> c_int = unsupported::ibv_rereg_mr, rereg_mr;
}

exported_functions! {
    fn ibv_close_device(ctx: *mut ibv_context) -> c_int = context::ibv_close_device, close_device;
    fn ibv_query_device(ctx: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int
        = query::query_device, query_device;
    fn _ibv_query_gid_ex(
        ctx: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32, size: usize,
    ) -> c_int = query::query_gid_ex, query_gid_ex;
    fn _ibv_query_gid_table(
        ctx: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, size: usize,
    ) -> isize = query::query_gid_table, query_gid_table;
    fn ibv_alloc_pd(ctx: *mut ibv_context) -> *mut ibv_pd = pd::ibv_alloc_pd, alloc_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int = pd::ibv_dealloc_pd, dealloc_pd;
    fn ibv_import_pd(ctx: *mut ibv_context, handle: u32) -> *mut ibv_pd = none, import_pd;
    fn ibv_unimport_pd(pd: *mut ibv_pd) = none, unimport_pd;
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah = ah::ibv_create_ah, create_ah;
    fn ibv_init_ah_from_wc(
        ctx: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, attr: *mut ibv_ah_attr,
    ) -> c_int = ah::ibv_init_ah_from_wc, init_ah_from_wc;
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int = ah::ibv_destroy_ah, destroy_ah;
    fn ibv_resolve_eth_l2_from_gid(
        ctx: *mut ibv_context, attr: *mut ibv_ah_attr, eth_mac: *mut u8, vid: *mut u16,
    ) -> c_int = none, resolve_eth_l2_from_gid;
    fn ibv_create_comp_channel(ctx: *mut ibv_context) -> *mut ibv_comp_channel
        = channel::ibv_create_comp_channel, create_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int
        = channel::ibv_destroy_comp_channel, destroy_comp_channel;
    fn ibv_create_cq(
        ctx: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int,
    ) -> *mut ibv_cq = cq::ibv_create_cq, create_cq;
    fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int = cq::ibv_resize_cq, resize_cq;
    fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int = cq::ibv_destroy_cq, destroy_cq;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr
        = mr::ibv_reg_mr, reg_mr;
    fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: c_int) -> *mut ibv_mr
        = mr::ibv_reg_mr_iova, reg_mr_iova;
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, len: usize, iova: u64, access: c_uint) -> *mut ibv_mr
        = mr::ibv_reg_mr_iova2, reg_mr_iova2;
    fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr
        = mr::ibv_reg_dmabuf_mr, reg_dmabuf_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int = mr::ibv_dereg_mr, dereg_mr;
    fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr = none, import_mr;
    fn ibv_unimport_mr(mr: *mut ibv_mr) = none, unimport_mr;
    fn ibv_import_dm(ctx: *mut ibv_context, handle: u32) -> *mut ibv_dm = none, import_dm;
    fn ibv_unimport_dm(dm: *mut ibv_dm) = none, unimport_dm;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp = qp::ibv_create_qp, create_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int = qp::ibv_modify_qp, modify_qp;
    fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int
        = qp::ibv_query_qp, query_qp;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int = qp::ibv_destroy_qp, destroy_qp;
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex = qp::ibv_qp_to_qp_ex, qp_to_qp_ex;
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int
        = qp::ibv_attach_mcast, attach_mcast;
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int
        = qp::ibv_detach_mcast, detach_mcast;
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int = none, set_ece;
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int = none, query_ece;
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq
        = srq::ibv_create_srq, create_srq;
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int
        = srq::ibv_modify_srq, modify_srq;
    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int = srq::ibv_query_srq, query_srq;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int = srq::ibv_destroy_srq, destroy_srq;
}

// Completion counters, of rdma-core 65. `ibverbs-sys` looks the functions up at run time.
exported_functions! {
    fn _ibv_query_comp_cntr_caps(ctx: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, size: usize) -> c_int
        = none, query_comp_cntr_caps;
    fn ibv_create_comp_cntr(ctx: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr
        = none, create_comp_cntr;
    fn ibv_destroy_comp_cntr(cntr: *mut ibv_comp_cntr) -> c_int = none, destroy_comp_cntr;
    fn ibv_set_comp_cntr(cntr: *mut ibv_comp_cntr, value: u64) -> c_int = none, set_comp_cntr;
    fn ibv_set_err_comp_cntr(cntr: *mut ibv_comp_cntr, value: u64) -> c_int = none, set_err_comp_cntr;
    fn ibv_inc_comp_cntr(cntr: *mut ibv_comp_cntr, amount: u64) -> c_int = none, inc_comp_cntr;
    fn ibv_inc_err_comp_cntr(cntr: *mut ibv_comp_cntr, amount: u64) -> c_int = none, inc_err_comp_cntr;
    fn ibv_read_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int = none, read_comp_cntr;
    fn ibv_read_err_comp_cntr(cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int = none, read_err_comp_cntr;
    fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp, cntr: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int = none, qp_attach_comp_cntr;
}

// Called by the tables of a context, under the names of their inline functions.
functions! {
    fn ibv_query_device_ex(
        ctx: *mut ibv_context, input: *const ibv_query_device_ex_input, attr: *mut ibv_device_attr_ex, size: usize,
    ) -> c_int = query::query_device_ex, query_device_ex;
    fn query_port(ctx: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: usize) -> c_int
        = query::query_port, query_port;
    fn ibv_query_rt_values_ex(ctx: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = query::query_rt_values, query_rt_values;
    fn ibv_create_cq_ex(ctx: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = cq_ex::create_cq_ex, create_cq_ex;
    fn ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int = cq::modify_cq, modify_cq;
    fn ibv_create_qp_ex(ctx: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp
        = qp_ex::create_qp_ex, create_qp_ex;
    fn ibv_open_qp(ctx: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp = qp::open_qp, open_qp;
    fn ibv_modify_qp_rate_limit(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int
        = none, modify_qp_rate_limit;
    fn ibv_create_srq_ex(ctx: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq
        = srq::create_srq_ex, create_srq_ex;
    fn ibv_get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int = srq::get_srq_num, get_srq_num;
    fn ibv_open_xrcd(ctx: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = xrcd::open_xrcd, open_xrcd;
    fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int = xrcd::close_xrcd, close_xrcd;
    fn ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw = mw::alloc_mw, alloc_mw;
    fn ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int = mw::dealloc_mw, dealloc_mw;
    fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int = mw::bind_mw, bind_mw;
    fn ibv_alloc_td(ctx: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td = none, alloc_td;
    fn ibv_dealloc_td(td: *mut ibv_td) -> c_int = none, dealloc_td;
    fn ibv_alloc_parent_domain(ctx: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd
        = none, alloc_parent_domain;
    fn ibv_alloc_dm(ctx: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm = none, alloc_dm;
    fn ibv_free_dm(dm: *mut ibv_dm) -> c_int = none, free_dm;
    fn ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, len: usize, access: c_uint) -> *mut ibv_mr
        = none, reg_dm_mr;
    fn ibv_alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr = none, alloc_null_mr;
    fn ibv_advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sges: *mut ibv_sge, count: u32) -> c_int
        = none, advise_mr;
    fn ibv_create_counters(ctx: *mut ibv_context, attr: *mut ibv_counters_init_attr) -> *mut ibv_counters
        = none, create_counters;
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int = none, destroy_counters;
    fn ibv_attach_counters_point_flow(
        counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow,
    ) -> c_int = none, attach_counters;
    fn ibv_read_counters(counters: *mut ibv_counters, values: *mut u64, count: u32, flags: u32) -> c_int
        = none, read_counters;
    fn ibv_create_flow(qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow = none, create_flow;
    fn ibv_destroy_flow(flow: *mut ibv_flow) -> c_int = none, destroy_flow;
    fn ibv_create_wq(ctx: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq = none, create_wq;
    fn ibv_modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int = none, modify_wq;
    fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int = none, destroy_wq;
    fn ibv_create_rwq_ind_table(ctx: *mut ibv_context, attr: *mut ibv_rwq_ind_table_init_attr) -> *mut ibv_rwq_ind_table
        = none, create_rwq_ind_table;
    fn ibv_destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int = none, destroy_rwq_ind_table;
}
