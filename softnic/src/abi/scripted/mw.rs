//! Memory windows.

use std::ffi::c_int;

use ibverbs_sys as ffi;

use super::state::state_of;

pub(in crate::abi) unsafe extern "C" fn alloc_mw(
    pd: *mut ffi::ibv_pd,
    kind: ffi::ibv_mw_type,
) -> *mut ffi::ibv_mw {
    // SAFETY: live.
    let ctx = unsafe { (*pd).context };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    let released = state.released_windows.pop();
    state.make(
        "ibv_alloc_mw",
        &[pd.addr()],
        |mw: &mut ffi::ibv_mw, number| {
            mw.context = ctx;
            mw.pd = pd;
            mw.rkey = released.unwrap_or(number << 8);
            mw.handle = number;
            mw.type_ = kind;
        },
    )
}

pub(in crate::abi) unsafe extern "C" fn dealloc_mw(mw: *mut ffi::ibv_mw) -> c_int {
    // SAFETY: live.
    let rkey = unsafe { (*mw).rkey };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(mw) };
    let ret = state.unmake("ibv_dealloc_mw", mw);
    if ret == 0 {
        // The lower byte is the owner's, and begins again.
        state.released_windows.push(rkey & !0xff);
    }
    ret
}

pub(in crate::abi) unsafe extern "C" fn bind_mw(
    qp: *mut ffi::ibv_qp,
    mw: *mut ffi::ibv_mw,
    bind: *mut ffi::ibv_mw_bind,
) -> c_int {
    // SAFETY: the caller's attributes.
    let bind = unsafe { &*bind };
    // SAFETY: live.
    let rkey = unsafe { (*mw).rkey };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.used("ibv_bind_mw", mw.addr());
    let rkey = ffi::ibv_inc_rkey(rkey);
    let ret = state.post_bind(qp.addr(), bind, rkey);
    if ret == 0 {
        state.bind(mw.addr(), &[bind.bind_info.mr.addr()]);
        // SAFETY: live, with no other user during the call.
        unsafe { (*mw).rkey = rkey };
    }
    ret
}
