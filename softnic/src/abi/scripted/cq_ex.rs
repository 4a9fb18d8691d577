//! Extended completion queues.

use std::ffi::c_int;

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    state::{State, state_of, state_of_context},
};
use crate::{
    abi::{cq_ex, null},
    failure::Call,
};

pub(in crate::abi) unsafe extern "C" fn create_cq_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    if attr.cqe < 1 || attr.comp_vector > 1 {
        return null(libc::EINVAL);
    }
    if attr.wc_flags & !ffi::IBV_CREATE_CQ_SUP_WC_FLAGS != 0 {
        return null(libc::EOPNOTSUPP);
    }
    let has = |field: ffi::ibv_cq_init_attr_mask| attr.comp_mask & field.0 != 0;
    let domain = match has(ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD) {
        true => attr.parent_domain.addr(),
        false => 0,
    };
    let flags = match has(ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS) {
        true => attr.flags,
        false => 0,
    };
    let parents = [attr.channel.addr(), domain];
    let cq = state.make(
        "ibv_create_cq_ex",
        &parents,
        |queue: &mut ffi::ibv_cq_ex, number| {
            queue.context = ctx;
            queue.channel = attr.channel;
            queue.cq_context = attr.cq_context;
            queue.cqe = attr.cqe as c_int;
            queue.handle = number;
            queue.start_poll = Some(start_poll);
            queue.next_poll = Some(next_poll);
            queue.end_poll = Some(end_poll);
            cq_ex::fill(queue, attr.wc_flags);
        },
    );
    state.adopt_cq(cq.cast(), attr.channel);
    state.cq_mut(cq.addr()).flags = flags;
    cq
}

/// Shows the first completion, if there is one.
///
/// # Safety
/// - `cq` is an extended queue of the device, and its state is locked.
unsafe fn show(state: &mut State, cq: *mut ffi::ibv_cq_ex) -> c_int {
    let first = state.cq_mut(cq.addr()).ready.front().copied();
    match first {
        Some((wc, _)) => {
            state.copy_polled(cq.addr(), wc.wr_id);
            // SAFETY: the caller's promise.
            unsafe { cq_ex::show(cq, &wc) };
            0
        }
        None => libc::ENOENT,
    }
}

unsafe extern "C" fn start_poll(
    cq: *mut ffi::ibv_cq_ex,
    _attr: *mut ffi::ibv_poll_cq_attr,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    state.used("ibv_start_poll", cq.addr());
    state.lock_send_queues("ibv_start_poll", cq.addr());
    if let Err(errno) = state.attempt(Call::StartPoll) {
        return errno;
    }
    if state.cq_mut(cq.addr()).polling {
        state.complain("`ibv_start_poll` on a queue that is being polled".to_owned());
    }
    // SAFETY: an extended queue, locked.
    let ret = unsafe { show(&mut state, cq) };
    state.cq_mut(cq.addr()).polling = ret == 0;
    ret
}

unsafe extern "C" fn next_poll(cq: *mut ffi::ibv_cq_ex) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    state.next_polls += 1;
    if let Err(errno) = state.attempt(Call::NextPoll) {
        return errno;
    }
    let queue = state.cq_mut(cq.addr());
    queue.ready.pop_front();
    if !queue.polling {
        state.complain("`ibv_next_poll` on a queue that is not being polled".to_owned());
    }
    // SAFETY: an extended queue, locked.
    unsafe { show(&mut state, cq) }
}

unsafe extern "C" fn end_poll(cq: *mut ffi::ibv_cq_ex) {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(cq) };
    let queue = state.cq_mut(cq.addr());
    // The current completion is consumed, unless the queue had run empty.
    queue.ready.pop_front();
    if !std::mem::take(&mut queue.polling) {
        state.complain("`ibv_end_poll` on a queue that is not being polled".to_owned());
    }
}

/// The completion being shown by a poll.
///
/// # Safety
/// - `cq` is a queue of the device.
pub(in crate::abi) unsafe fn current(cq: *mut ffi::ibv_cq_ex) -> (ffi::ibv_wc, Extra) {
    // SAFETY: the caller's promise.
    let mut state = unsafe { state_of(cq) };
    let queue = state.cq_mut(cq.addr());
    assert!(queue.polling, "a field was read outside of a poll");
    *queue.ready.front().unwrap()
}
