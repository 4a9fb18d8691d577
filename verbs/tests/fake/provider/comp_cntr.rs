//! Completion counters, missing in rdma-core 44: `verbs` looks these functions up.

use std::ffi::c_int;

use ibverbs_sys as ffi;

use super::state::{device_of, device_of_context, null};

/// A counter.
pub(super) struct CompCntr {
    pub(super) unit: u32,
    completions: u64,
    errors: u64,
}

/// The countable operations: all but the peer's.
const SUPPORTED: u32 = 0b01_0111;

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    ctx: *mut ffi::ibv_context,
    caps: *mut ffi::ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_comp_cntr_caps") {
        return errno;
    }
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_cntr(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_comp_cntr_init_attr,
) -> *mut ffi::ibv_comp_cntr {
    // SAFETY: an open context, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of_context(ctx), &*attr) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_create_comp_cntr") {
        return null(errno);
    }
    if attr.comp_mask != 0 || attr.flags != 0 || attr.type_.0 > 1 {
        return null(libc::EINVAL);
    }
    let cntr: *mut ffi::ibv_comp_cntr = state.make("ibv_create_comp_cntr", &[]);
    // SAFETY: fresh.
    unsafe { (*cntr).context = ctx };
    let counter = CompCntr {
        unit: attr.type_.0,
        completions: 0,
        errors: 0,
    };
    state.comp_cntrs.insert(cntr.addr(), counter);
    cntr
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_cntr(cntr: *mut ffi::ibv_comp_cntr) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(cntr) };
    let mut state = shared.lock();
    let attached = |qp: &super::qp::Qp| qp.comp_cntrs.iter().any(|(at, _)| *at == cntr.addr());
    if state.qps.values().any(attached) {
        return libc::EBUSY;
    }
    state.unmake("ibv_destroy_comp_cntr", cntr)
}

/// Applies a call to a counter, unless the call fails.
///
/// # Safety
/// - `cntr` is one of the fake's.
unsafe fn with<T>(
    call: &'static str,
    cntr: *mut ffi::ibv_comp_cntr,
    act: impl FnOnce(&mut CompCntr) -> T,
) -> Result<T, c_int> {
    // SAFETY: the caller's promise.
    let shared = unsafe { device_of(cntr) };
    let mut state = shared.lock();
    state.used(call, cntr.addr());
    state.called(call)?;
    Ok(act(state.comp_cntrs.get_mut(&cntr.addr()).unwrap()))
}

macro_rules! change {
    ($($function:ident, |$counter:ident, $value:ident| $act:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(cntr: *mut ffi::ibv_comp_cntr, $value: u64) -> c_int {
            // SAFETY: one of the fake's.
            let done = unsafe { with(stringify!($function), cntr, |$counter| $act) };
            done.err().unwrap_or(0)
        }
    )*};
}

change! {
    ibv_set_comp_cntr, |counter, value| counter.completions = value;
    ibv_set_err_comp_cntr, |counter, value| counter.errors = value;
    ibv_inc_comp_cntr, |counter, value| counter.completions += value;
    ibv_inc_err_comp_cntr, |counter, value| counter.errors += value;
}

macro_rules! read {
    ($($function:ident, |$counter:ident| $number:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $function(cntr: *mut ffi::ibv_comp_cntr, to: *mut u64) -> c_int {
            // SAFETY: one of the fake's.
            match unsafe { with(stringify!($function), cntr, |$counter| $number) } {
                Ok(number) => {
                    // SAFETY: the caller's place.
                    unsafe { *to = number };
                    0
                }
                Err(errno) => errno,
            }
        }
    )*};
}

read! {
    ibv_read_comp_cntr, |counter| counter.completions;
    ibv_read_err_comp_cntr, |counter| counter.errors;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ffi::ibv_qp,
    cntr: *mut ffi::ibv_comp_cntr,
    attr: *mut ffi::ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: one of the fake's, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of(qp), &*attr) };
    let mut state = shared.lock();
    state.used("ibv_qp_attach_comp_cntr", cntr.addr());
    if let Err(errno) = state.called("ibv_qp_attach_comp_cntr") {
        return errno;
    }
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
