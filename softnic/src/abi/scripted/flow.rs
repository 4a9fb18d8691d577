//! Flow steering and its counters.

use std::{ffi::c_int, slice};

use ibverbs_sys as ffi;

use super::state::{state_of, state_of_context};
use crate::abi::null;

/// A flow, with the bytes given to the device.
pub(super) struct Flow {
    pub(super) attr: ffi::ibv_flow_attr,
    /// The specifications behind the attributes: the type and all bytes of each.
    pub(super) specs: Vec<(u32, Vec<u8>)>,
}

pub(in crate::abi) unsafe extern "C" fn create_flow(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_flow_attr,
) -> *mut ffi::ibv_flow {
    // SAFETY: live.
    let ctx = unsafe { (*qp).context };
    // SAFETY: the caller's attributes.
    let fixed = unsafe { *attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    // SAFETY: as the caller promises: `size` bytes from the attributes on.
    let all = unsafe { slice::from_raw_parts(attr.cast::<u8>(), fixed.size.into()) };
    let mut unparsed = &all[size_of::<ffi::ibv_flow_attr>()..];
    let mut specs = Vec::new();
    for _ in 0..fixed.num_of_specs {
        // Each begins with a type and a size.
        let kind = u32::from_ne_bytes(unparsed[..4].try_into().unwrap());
        let size = u16::from_ne_bytes(unparsed[4..6].try_into().unwrap());
        let (spec, rest) = unparsed.split_at(size.into());
        specs.push((kind, spec.to_vec()));
        unparsed = rest;
    }
    if !unparsed.is_empty() {
        return null(libc::EINVAL);
    }
    let flow = state.make(
        "ibv_create_flow",
        &[qp.addr()],
        |flow: &mut ffi::ibv_flow, number| {
            flow.context = ctx;
            flow.handle = number;
        },
    );
    state.flows.insert(flow.addr(), Flow { attr: fixed, specs });
    flow
}

pub(in crate::abi) unsafe extern "C" fn destroy_flow(flow: *mut ffi::ibv_flow) -> c_int {
    // SAFETY: live.
    let ctx = unsafe { (*flow).context };
    // SAFETY: the context of a live object is open.
    let mut state = unsafe { state_of_context(ctx) };
    let ret = state.unmake("ibv_destroy_flow", flow);
    if ret == 0 {
        state.flows.remove(&flow.addr());
    }
    ret
}

pub(in crate::abi) unsafe extern "C" fn create_counters(
    ctx: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_counters_init_attr,
) -> *mut ffi::ibv_counters {
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    let counters = state.make(
        "ibv_create_counters",
        &[],
        |counters: &mut ffi::ibv_counters, _| {
            counters.context = ctx;
        },
    );
    state.counters.insert(counters.addr(), Vec::new());
    counters
}

pub(in crate::abi) unsafe extern "C" fn destroy_counters(
    counters: *mut ffi::ibv_counters,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(counters) };
    state.unmake("ibv_destroy_counters", counters)
}

pub(in crate::abi) unsafe extern "C" fn attach_counters(
    counters: *mut ffi::ibv_counters,
    attr: *mut ffi::ibv_counter_attach_attr,
    flow: *mut ffi::ibv_flow,
) -> c_int {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(counters) };
    state.used("ibv_attach_counters_point_flow", flow.addr());
    let attached = state.counters.get_mut(&counters.addr()).unwrap();
    attached.push((attr.index, attr.counter_desc.0));
    0
}

/// A counter reads as 100 times the index, plus the code of the counted quantity.
pub(in crate::abi) unsafe extern "C" fn read_counters(
    counters: *mut ffi::ibv_counters,
    values: *mut u64,
    count: u32,
    _flags: u32,
) -> c_int {
    // SAFETY: an object of the device.
    let state = unsafe { state_of(counters) };
    // SAFETY: the caller's array.
    let values = unsafe { slice::from_raw_parts_mut(values, count as usize) };
    for (index, kind) in &state.counters[&counters.addr()] {
        if let Some(value) = values.get_mut(*index as usize) {
            *value = u64::from(index * 100 + kind);
        }
    }
    0
}
