//! Work queues and indirection tables.

use std::{collections::VecDeque, ffi::c_int, slice};

use ibverbs_sys as ffi;

use super::{
    post::PostedReceive,
    state::{device_of, device_of_context, null},
};

/// A receive work queue.
pub(super) struct Wq {
    pub(super) receives: VecDeque<PostedReceive>,
    max_wr: u32,
}

pub(super) unsafe extern "C" fn create_wq(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_wq_init_attr,
) -> *mut ffi::ibv_wq {
    // SAFETY: an open context, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of_context(ctx), &*attr) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_create_wq") {
        return null(errno);
    }
    let wq: *mut ffi::ibv_wq = state.make("ibv_create_wq", &[attr.pd.addr(), attr.cq.addr()]);
    // SAFETY: fresh.
    unsafe {
        (*wq).context = ctx;
        (*wq).pd = attr.pd;
        (*wq).cq = attr.cq;
        (*wq).wq_num = state.next();
        (*wq).handle = state.next();
        (*wq).state = ffi::ibv_wq_state::IBV_WQS_RESET;
        (*wq).wq_type = attr.wq_type;
        (*wq).post_recv = Some(post_wq_recv);
    }
    let receives = VecDeque::new();
    let max_wr = attr.max_wr;
    state.wqs.insert(wq.addr(), Wq { receives, max_wr });
    wq
}

pub(super) unsafe extern "C" fn modify_wq(
    wq: *mut ffi::ibv_wq,
    attr: *mut ffi::ibv_wq_attr,
) -> c_int {
    // SAFETY: one of the fake's, and the caller's attributes.
    let (shared, attr, from) = unsafe { (device_of(wq), &*attr, (*wq).state) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_modify_wq") {
        return errno;
    }
    use ffi::ibv_wq_state as at;
    if attr.attr_mask & ffi::ibv_wq_attr_mask::IBV_WQ_ATTR_STATE.0 != 0 {
        let legal = matches!(
            (from, attr.wq_state),
            (_, at::IBV_WQS_RESET | at::IBV_WQS_ERR) | (at::IBV_WQS_RESET, at::IBV_WQS_RDY)
        );
        if !legal {
            return libc::EINVAL;
        }
        // SAFETY: live, and the field is the provider's to write.
        unsafe { (*wq).state = attr.wq_state };
    }
    0
}

pub(super) unsafe extern "C" fn destroy_wq(wq: *mut ffi::ibv_wq) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(wq) };
    let mut state = shared.lock();
    let ret = state.unmake("ibv_destroy_wq", wq);
    if ret == 0 {
        state.wqs.remove(&wq.addr());
    }
    ret
}

unsafe extern "C" fn post_wq_recv(
    wq: *mut ffi::ibv_wq,
    mut wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(wq) };
    let mut state = shared.lock();
    while !wr.is_null() {
        // SAFETY: the caller's chain of requests.
        let posted = unsafe { PostedReceive::read(&*wr) };
        state.check_receive(&posted);
        let failed = state.attempt("ibv_post_wq_recv");
        let this = state.wqs.get_mut(&wq.addr()).unwrap();
        let ret = match failed {
            Err(errno) => errno,
            Ok(()) if this.receives.len() >= this.max_wr as usize => libc::ENOMEM,
            Ok(()) => 0,
        };
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return ret;
        }
        this.receives.push_back(posted);
        // SAFETY: the caller's chain of requests.
        wr = unsafe { (*wr).next };
    }
    0
}

pub(super) unsafe extern "C" fn create_rwq_ind_table(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_rwq_ind_table_init_attr,
) -> *mut ffi::ibv_rwq_ind_table {
    // SAFETY: an open context, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of_context(ctx), &*attr) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_create_rwq_ind_table") {
        return null(errno);
    }
    // SAFETY: the caller's table has so many entries.
    let queues = unsafe { slice::from_raw_parts(attr.ind_tbl, 1 << attr.log_ind_tbl_size) };
    let parents: Vec<_> = queues.iter().map(|wq| wq.addr()).collect();
    let table: *mut ffi::ibv_rwq_ind_table = state.make("ibv_create_rwq_ind_table", &parents);
    // SAFETY: fresh.
    unsafe {
        (*table).context = ctx;
        (*table).ind_tbl_num = state.next() as c_int;
        (*table).ind_tbl_handle = state.next() as c_int;
    }
    table
}

pub(super) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ffi::ibv_rwq_ind_table) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(table) };
    shared.lock().unmake("ibv_destroy_rwq_ind_table", table)
}
