//! An in-memory device with one object of each kind, and the observable outcome of a call. Shared by both -sys crates.

use ibverbs_sys::*;
use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

macro_rules! world {
    ($($object:ident: $type:ident $(. $($context:ident).+)?;)*) => {
        /// The objects. Their context pointers refer to the last field of `vctx`.
        pub(crate) struct World {$(
            pub(crate) $object: $type,
        )*}

        impl World {
            pub(crate) fn new() -> Box<Self> {
                // SAFETY: the structs consist of integers, pointers and optional functions; zero is valid.
                let world: Self = unsafe { MaybeUninit::zeroed().assume_init() };
                let mut world = Box::new(world);
                world.vctx.sz = size_of::<verbs_context>();
                world.vctx.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
                let context = &raw mut world.vctx.context;
                $($(world.$object.$($context).+ = context;)?)*
                world
            }
        }
    };
}

world! {
    vctx: verbs_context;
    pd: ibv_pd.context;
    td: ibv_td.context;
    xrcd: ibv_xrcd.context;
    mr: ibv_mr.context;
    mw: ibv_mw.context;
    dm: ibv_dm.context;
    cq: ibv_cq.context;
    cq_ex: ibv_cq_ex.context;
    qp: ibv_qp.context;
    qp_ex: ibv_qp_ex.qp_base.context;
    srq: ibv_srq.context;
    wq: ibv_wq.context;
    rwq_ind_table: ibv_rwq_ind_table.context;
    flow: ibv_flow.context;
    flow_action: ibv_flow_action.context;
    counters: ibv_counters.context;
}

/// A pointer value that is passed on and never dereferenced.
pub(crate) fn token<T>(number: usize) -> *mut T {
    ptr::without_provenance_mut(0x1000 * number)
}

thread_local! {
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records a call of the provider or the library.
pub(crate) fn called(function: &str, arguments: &[String]) {
    CALLS.with_borrow_mut(|calls| calls.push(format!("{function}({})", arguments.join(", "))));
}

/// Observable outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Return value, or the panic's message.
    pub(crate) returned: Result<String, String>,
    pub(crate) errno: c_int,
    /// Recorded calls of the provider and the library.
    pub(crate) calls: Vec<String>,
}

pub(crate) fn observe(call: impl FnOnce() -> String) -> Outcome {
    CALLS.take();
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = 0 };
    let returned = catch_unwind(AssertUnwindSafe(call))
        .map_err(|panic| panic.downcast_ref::<String>().unwrap().clone());
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    Outcome {
        returned,
        errno,
        calls: CALLS.take(),
    }
}
