//! Flow steering and its counters.

use std::{ffi::c_int, slice};

use ibverbs_sys as ffi;

use super::state::{device_of, device_of_context, null};

/// A flow, with the bytes given to the device.
pub(super) struct Flow {
    pub(super) attr: ffi::ibv_flow_attr,
    /// The specifications behind the attributes: the type and all bytes of each.
    pub(super) specs: Vec<(u32, Vec<u8>)>,
}

pub(super) unsafe extern "C" fn create_flow(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_flow_attr,
) -> *mut ffi::ibv_flow {
    // SAFETY: one of the fake's, and the caller's attributes.
    let (shared, ctx, fixed) = unsafe { (device_of(qp), (*qp).context, *attr) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_create_flow") {
        return null(errno);
    }
    // SAFETY: as the caller promises: `size` bytes from the attributes on.
    let all = unsafe { slice::from_raw_parts(attr.cast::<u8>(), fixed.size.into()) };
    let mut left = &all[size_of::<ffi::ibv_flow_attr>()..];
    let mut specs = Vec::new();
    for _ in 0..fixed.num_of_specs {
        // Each begins with a type and a size.
        let kind = u32::from_ne_bytes(left[..4].try_into().unwrap());
        let size = u16::from_ne_bytes(left[4..6].try_into().unwrap());
        let (spec, rest) = left.split_at(size.into());
        specs.push((kind, spec.to_vec()));
        left = rest;
    }
    if !left.is_empty() {
        return null(libc::EINVAL);
    }
    let flow: *mut ffi::ibv_flow = state.make("ibv_create_flow", &[qp.addr()]);
    // SAFETY: fresh.
    unsafe {
        (*flow).context = ctx;
        (*flow).handle = state.next();
    }
    state.flows.insert(flow.addr(), Flow { attr: fixed, specs });
    flow
}

pub(super) unsafe extern "C" fn destroy_flow(flow: *mut ffi::ibv_flow) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of_context((*flow).context) };
    let mut state = shared.lock();
    let ret = state.unmake("ibv_destroy_flow", flow);
    if ret == 0 {
        state.flows.remove(&flow.addr());
    }
    ret
}

pub(super) unsafe extern "C" fn create_counters(
    ctx: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_counters_init_attr,
) -> *mut ffi::ibv_counters {
    // SAFETY: an open context.
    let shared = unsafe { device_of_context(ctx) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_create_counters") {
        return null(errno);
    }
    let counters: *mut ffi::ibv_counters = state.make("ibv_create_counters", &[]);
    // SAFETY: fresh.
    unsafe { (*counters).context = ctx };
    state.counters.insert(counters.addr(), Vec::new());
    counters
}

pub(super) unsafe extern "C" fn destroy_counters(counters: *mut ffi::ibv_counters) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(counters) };
    shared.lock().unmake("ibv_destroy_counters", counters)
}

pub(super) unsafe extern "C" fn attach_counters(
    counters: *mut ffi::ibv_counters,
    attr: *mut ffi::ibv_counter_attach_attr,
    flow: *mut ffi::ibv_flow,
) -> c_int {
    // SAFETY: one of the fake's, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of(counters), &*attr) };
    let mut state = shared.lock();
    state.used("ibv_attach_counters_point_flow", flow.addr());
    if let Err(errno) = state.called("ibv_attach_counters_point_flow") {
        return errno;
    }
    let attached = state.counters.get_mut(&counters.addr()).unwrap();
    attached.push((attr.index, attr.counter_desc.0));
    0
}

/// A counter reads as 100 times the index, plus the code of the counted quantity.
pub(super) unsafe extern "C" fn read_counters(
    counters: *mut ffi::ibv_counters,
    values: *mut u64,
    count: u32,
    _flags: u32,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(counters) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_read_counters") {
        return errno;
    }
    // SAFETY: the caller's array.
    let values = unsafe { slice::from_raw_parts_mut(values, count as usize) };
    for (index, kind) in &state.counters[&counters.addr()] {
        if let Some(value) = values.get_mut(*index as usize) {
            *value = u64::from(index * 100 + kind);
        }
    }
    0
}
