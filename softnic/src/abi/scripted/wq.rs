//! Work queues and indirection tables.

use std::{collections::VecDeque, ffi::c_int, slice};

use ibverbs_sys as ffi;

use super::{
    cq::{Extra, wc},
    post::{PostedReceive, post_receives},
    state::{State, state_of, state_of_context},
};
use crate::failure::Call;

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

pub(in crate::abi) unsafe extern "C" fn create_wq(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_wq_init_attr,
) -> *mut ffi::ibv_wq {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    let wq = state.make(
        "ibv_create_wq",
        &[attr.pd.addr(), attr.cq.addr()],
        |wq: &mut ffi::ibv_wq, number| {
            wq.context = ctx;
            wq.pd = attr.pd;
            wq.cq = attr.cq;
            wq.wq_num = number;
            wq.handle = number;
            wq.state = ffi::ibv_wq_state::IBV_WQS_RESET;
            wq.wq_type = attr.wq_type;
            wq.post_recv = Some(post_wq_recv);
        },
    );
    let this = Wq {
        receives: VecDeque::new(),
        max_wr: attr.max_wr,
        cq: attr.cq.addr(),
    };
    state.wqs.insert(wq.addr(), this);
    wq
}

pub(in crate::abi) unsafe extern "C" fn modify_wq(
    wq: *mut ffi::ibv_wq,
    attr: *mut ffi::ibv_wq_attr,
) -> c_int {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: live.
    let from = unsafe { (*wq).state };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(wq) };
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

pub(in crate::abi) unsafe extern "C" fn destroy_wq(wq: *mut ffi::ibv_wq) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(wq) };
    // SAFETY: an object of the device, whose memory is kept.
    state.lock_cq("ibv_destroy_wq", unsafe { (*wq).cq }.addr());
    let ret = state.unmake("ibv_destroy_wq", wq);
    if ret == 0
        && let Some(removed) = state.wqs.remove(&wq.addr())
    {
        for receive in &removed.receives {
            state.touch("a work queue", &receive.sges);
        }
    }
    ret
}

impl State {
    /// Takes a receive, or returns the error of posting.
    fn take_wq_receive(&mut self, wq: usize, posted: PostedReceive) -> c_int {
        self.check_receive(&posted);
        if let Err(errno) = self.attempt(Call::PostWqRecv) {
            return errno;
        }
        let this = self.wqs.get_mut(&wq).unwrap();
        if this.receives.len() >= this.max_wr as usize {
            return libc::ENOMEM;
        }
        this.receives.push_back(posted);
        0
    }
}

unsafe extern "C" fn post_wq_recv(
    wq: *mut ffi::ibv_wq,
    wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(wq) };
    let take = |state: &mut State, posted| state.take_wq_receive(wq.addr(), posted);
    // SAFETY: the caller's chain and place.
    unsafe { post_receives(&mut state, wr, bad, take) }
}

pub(in crate::abi) unsafe extern "C" fn create_rwq_ind_table(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_rwq_ind_table_init_attr,
) -> *mut ffi::ibv_rwq_ind_table {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    // SAFETY: the caller's table has `1 << log_ind_tbl_size` entries.
    let queues = unsafe { slice::from_raw_parts(attr.ind_tbl, 1 << attr.log_ind_tbl_size) };
    let parents: Vec<_> = queues.iter().map(|wq| wq.addr()).collect();
    state.make(
        "ibv_create_rwq_ind_table",
        &parents,
        |table: &mut ffi::ibv_rwq_ind_table, number| {
            table.context = ctx;
            table.ind_tbl_num = number as c_int;
            table.ind_tbl_handle = number as c_int;
        },
    )
}

pub(in crate::abi) unsafe extern "C" fn destroy_rwq_ind_table(
    table: *mut ffi::ibv_rwq_ind_table,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(table) };
    state.unmake("ibv_destroy_rwq_ind_table", table)
}
