//! Work queues and indirection tables.

use std::{collections::VecDeque, ffi::c_int, slice};

use ibverbs_sys as ffi;

use super::{
    cq::{Extra, wc},
    post::{PostedReceive, ring},
    state::{State, device_of, device_of_context, null},
};

/// A receive work queue.
pub(super) struct Wq {
    pub(super) receives: VecDeque<PostedReceive>,
    max_wr: u32,
    cq: usize,
}

impl State {
    /// Completes the oldest receive.
    pub(super) fn complete_wq(&mut self, wq: usize, message: &[u8], status: u32) {
        let this = self.wqs.get_mut(&wq).unwrap();
        let cq = this.cq;
        let posted = this.receives.pop_front().unwrap();
        let mut wc = wc(posted.wr_id, ffi::ibv_wc_opcode::IBV_WC_RECV);
        let delivered = self.deliver_to(wq, cq, &posted, message);
        wc.status = match status {
            0 => delivered,
            status => ffi::ibv_wc_status(status),
        };
        wc.byte_len = message.len() as u32;
        self.push(cq, wc, Extra::default());
    }
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
    let this = Wq {
        receives: VecDeque::new(),
        max_wr: attr.max_wr,
        cq: attr.cq.addr(),
    };
    state.wqs.insert(wq.addr(), this);
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
        match attr.wq_state {
            at::IBV_WQS_RESET => state.wqs.get_mut(&wq.addr()).unwrap().receives.clear(),
            at::IBV_WQS_ERR => {
                let flushed = ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0;
                while !state.wqs[&wq.addr()].receives.is_empty() {
                    state.complete_wq(wq.addr(), b"", flushed);
                }
            }
            _ => {}
        }
    }
    0
}

pub(super) unsafe extern "C" fn destroy_wq(wq: *mut ffi::ibv_wq) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(wq) };
    let mut state = shared.lock();
    // SAFETY: one of the fake's, whose memory is kept.
    state.lock_cq("ibv_destroy_wq", unsafe { (*wq).cq }.addr());
    let ret = state.unmake("ibv_destroy_wq", wq);
    if ret == 0
        && let Some(gone) = state.wqs.remove(&wq.addr())
    {
        for receive in &gone.receives {
            state.touch("a work queue", &receive.sges);
        }
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
    // SAFETY: the caller's place.
    unsafe { ring(&mut state, bad) }
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
    // SAFETY: the caller's table has `1 << log_ind_tbl_size` entries.
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
