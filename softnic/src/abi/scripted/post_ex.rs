//! Posting by the extended interface, one call for each part of a request.

use std::ffi::c_int;

use ibverbs_sys as ffi;

use super::{
    post::PostedSend,
    state::{Shared, state_of},
};
use crate::{
    abi::qp_ex::{self, Table},
    failure::Call,
};

/// Fills the table for these operations.
pub(super) fn fill(table: &mut Table, operations: u64) {
    table.ex.wr_start = Some(start);
    table.ex.wr_complete = Some(complete);
    table.ex.wr_abort = Some(abort);
    qp_ex::fill_operations(table, operations);
}

unsafe extern "C" fn start(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.used("ibv_wr_start", qp.addr());
    if state
        .qp_mut(qp.addr())
        .building
        .replace(Vec::new())
        .is_some()
    {
        state.complain("`ibv_wr_start` twice: a device would hang".to_owned());
    }
}

unsafe extern "C" fn complete(qp: *mut ffi::ibv_qp_ex) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    let Some(building) = state.qp_mut(qp.addr()).building.take() else {
        state.complain("`ibv_wr_complete` without `ibv_wr_start`".to_owned());
        return libc::EINVAL;
    };
    state.doorbells += 1;
    if let Err(errno) = state.attempt(Call::WrComplete) {
        return errno;
    }
    // All of them are posted, or none.
    let before = state.qp_mut(qp.addr()).sends.clone();
    for posted in building {
        let ret = state.take_send(qp.addr(), posted);
        if ret != 0 {
            state.qp_mut(qp.addr()).sends = before;
            return ret;
        }
    }
    state.attempt(Call::Doorbell).err().unwrap_or(0)
}

unsafe extern "C" fn abort(qp: *mut ffi::ibv_qp_ex) {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    if state.qp_mut(qp.addr()).building.take().is_none() {
        state.complain("`ibv_wr_abort` without `ibv_wr_start`".to_owned());
    }
}

impl Shared {
    /// Begins a request.
    pub(in crate::abi) fn begin(&self, qp: usize, posted: PostedSend) {
        let mut state = self.lock();
        if let Some((_, rkey, _)) = posted.bind {
            let old = posted.bind_keys.0;
            assert_ne!(old, rkey, "the provider names the window by its old key");
        }
        match &mut state.qp_mut(qp).building {
            Some(building) => building.push(posted),
            None => state.complain(format!("{:?} without `ibv_wr_start`", posted.opcode)),
        }
    }

    /// Adds to the last request begun.
    pub(in crate::abi) fn add(&self, qp: usize, change: impl FnOnce(&mut PostedSend)) {
        let mut state = self.lock();
        let building = state.qp_mut(qp).building.as_mut();
        match building.and_then(|building| building.last_mut()) {
            Some(posted) => change(posted),
            None => state.complain("a part of no request".to_owned()),
        }
    }
}
