//! Receive work queues and their indirection tables.

use super::dispatch;
use crate::{
    ibv_context, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr,
    ibv_wq_init_attr,
};
use core::ffi::c_int;
use core::ptr;

dispatch! {
    /// `ibv_post_wq_recv(wq, recv_wr, bad_recv_wr)`—Posts receives.
    pub fn ibv_post_wq_recv(
        wq: *mut ibv_wq,
        recv_wr: *mut ibv_recv_wr,
        bad_recv_wr: *mut *mut ibv_recv_wr,
    ) -> c_int
        => (*wq).post_recv;
}

/// `ibv_create_wq(context, wq_init_attr)`—Creates a work queue.
///
/// # Safety
///
/// `context` and the objects in `wq_init_attr` are live.
#[inline]
pub unsafe fn ibv_create_wq(
    context: *mut ibv_context,
    wq_init_attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: as the caller promised.
    let wq = unsafe { create_wq(context, wq_init_attr) };
    if !wq.is_null() {
        // SAFETY: no other reference to the new queue exists, and the provider leaves these fields to this function.
        unsafe {
            (*wq).wq_context = (*wq_init_attr).wq_context;
            (*wq).events_completed = 0;
            libc::pthread_mutex_init(&raw mut (*wq).mutex, ptr::null());
            libc::pthread_cond_init(&raw mut (*wq).cond, ptr::null());
        }
    }
    wq
}

dispatch! {
    /// The provider's part of [`ibv_create_wq`].
    fn create_wq(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq
        => verbs_get_ctx_op!(context, create_wq);

    /// `ibv_modify_wq(wq, wq_attr)`—Changes the state of a work queue.
    pub fn ibv_modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int
        => verbs_get_ctx_op!((*wq).context, modify_wq);

    /// `ibv_destroy_wq(wq)`—Destroys a work queue.
    pub fn ibv_destroy_wq(wq: *mut ibv_wq) -> c_int
        => verbs_get_ctx_op!((*wq).context, destroy_wq);

    /// `ibv_create_rwq_ind_table(context, init_attr)`—Creates an indirection table of receive work queues.
    pub fn ibv_create_rwq_ind_table(
        context: *mut ibv_context,
        init_attr: *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table
        => verbs_get_ctx_op!(context, create_rwq_ind_table);

    /// `ibv_destroy_rwq_ind_table(rwq_ind_table)`—Destroys an indirection table.
    pub fn ibv_destroy_rwq_ind_table(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int
        => verbs_get_ctx_op!((*rwq_ind_table).context, destroy_rwq_ind_table);
}
