//! Completion counters, missing in rdma-core 44: `verbs` looks these functions up.

use std::ffi::c_int;

use ibverbs_sys as ffi;

use super::state::{state_of, state_of_context};
use crate::abi::null;

/// A counter.
pub(super) struct CompCntr {
    pub(super) unit: u32,
    completions: u64,
    errors: u64,
}

/// The countable operations: all but the peer's.
const SUPPORTED: u32 = 0b01_0111;

pub(in crate::abi) unsafe extern "C" fn query_comp_cntr_caps(
    _ctx: *mut ffi::ibv_context,
    caps: *mut ffi::ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    assert_eq!(size, size_of::<ffi::ibv_comp_cntr_caps>());
    // SAFETY: the caller's place.
    unsafe {
        *caps = ffi::ibv_comp_cntr_caps {
            max_value: u64::MAX >> 1,
            max_counters: 8,
            supported_qp_attach_ops: SUPPORTED,
        };
    }
    0
}

pub(in crate::abi) unsafe extern "C" fn create_comp_cntr(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_comp_cntr_init_attr,
) -> *mut ffi::ibv_comp_cntr {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    if attr.comp_mask != 0 || attr.flags != 0 || attr.type_.0 > 1 {
        return null(libc::EINVAL);
    }
    let cntr = state.make(
        "ibv_create_comp_cntr",
        &[],
        |cntr: &mut ffi::ibv_comp_cntr, _| {
            cntr.context = ctx;
        },
    );
    let counter = CompCntr {
        unit: attr.type_.0,
        completions: 0,
        errors: 0,
    };
    state.comp_cntrs.insert(cntr.addr(), counter);
    cntr
}

pub(in crate::abi) unsafe extern "C" fn destroy_comp_cntr(cntr: *mut ffi::ibv_comp_cntr) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cntr) };
    let attached =
        |qp: &super::qp::ScriptedQp| qp.comp_cntrs.iter().any(|(at, _)| *at == cntr.addr());
    if state.qps.values().any(attached) {
        return libc::EBUSY;
    }
    state.unmake("ibv_destroy_comp_cntr", cntr)
}

/// Applies a call to a counter.
///
/// # Safety
/// - `cntr` is an object of the device.
unsafe fn with<T>(
    call: &'static str,
    cntr: *mut ffi::ibv_comp_cntr,
    act: impl FnOnce(&mut CompCntr) -> T,
) -> T {
    // SAFETY: the caller's promise.
    let mut state = unsafe { state_of(cntr) };
    state.used(call, cntr.addr());
    act(state.comp_cntrs.get_mut(&cntr.addr()).unwrap())
}

macro_rules! change {
    ($($function:ident, |$counter:ident, $value:ident| $act:expr;)*) => {$(
        pub(in crate::abi) unsafe extern "C" fn $function(
            cntr: *mut ffi::ibv_comp_cntr,
            $value: u64,
        ) -> c_int {
            // SAFETY: an object of the device.
            unsafe { with(stringify!($function), cntr, |$counter| $act) };
            0
        }
    )*};
}

change! {
    set_comp_cntr, |counter, value| counter.completions = value;
    set_err_comp_cntr, |counter, value| counter.errors = value;
    inc_comp_cntr, |counter, value| counter.completions += value;
    inc_err_comp_cntr, |counter, value| counter.errors += value;
}

macro_rules! read {
    ($($function:ident, $field:ident;)*) => {$(
        pub(in crate::abi) unsafe extern "C" fn $function(
            cntr: *mut ffi::ibv_comp_cntr,
            to: *mut u64,
        ) -> c_int {
            // SAFETY: an object of the device.
            let number = unsafe { with(stringify!($function), cntr, |counter| counter.$field) };
            // SAFETY: the caller's place.
            unsafe { *to = number };
            0
        }
    )*};
}

read! {
    read_comp_cntr, completions;
    read_err_comp_cntr, errors;
}

pub(in crate::abi) unsafe extern "C" fn qp_attach_comp_cntr(
    qp: *mut ffi::ibv_qp,
    cntr: *mut ffi::ibv_comp_cntr,
    attr: *mut ffi::ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.used("ibv_qp_attach_comp_cntr", cntr.addr());
    if attr.op_mask & !SUPPORTED != 0 {
        return libc::EOPNOTSUPP;
    }
    let this = state.qp_mut(qp.addr());
    let early = [
        ffi::ibv_qp_state::IBV_QPS_RESET,
        ffi::ibv_qp_state::IBV_QPS_INIT,
    ];
    if attr.comp_mask != 0 || !early.contains(&this.state) {
        return libc::EINVAL;
    }
    if this
        .comp_cntrs
        .iter()
        .any(|(_, ops)| ops & attr.op_mask != 0)
    {
        return libc::EBUSY;
    }
    this.comp_cntrs.push((cntr.addr(), attr.op_mask));
    0
}

impl super::state::State {
    /// Counts a completion of a queue pair, of these operations and of `bytes` bytes.
    pub(super) fn count(&mut self, qp_num: u32, op: u32, bytes: u64, failed: bool) {
        let attached = self.qp(qp_num).comp_cntrs.clone();
        for (cntr, _) in attached.into_iter().filter(|(_, ops)| ops & op != 0) {
            let counter = self.comp_cntrs.get_mut(&cntr).unwrap();
            match (failed, counter.unit) {
                (true, _) => counter.errors += 1,
                (false, 0) => counter.completions += 1,
                (false, _) => counter.completions += bytes,
            }
        }
    }
}
