//! The two posting functions of a provider's table.

use std::ptr::NonNull;

use ibverbs_sys as ffi;

type PostSend = unsafe extern "C" fn(
    *mut ffi::ibv_qp,
    *mut ffi::ibv_send_wr,
    *mut *mut ffi::ibv_send_wr,
) -> i32;
type PostRecv = unsafe extern "C" fn(
    *mut ffi::ibv_qp,
    *mut ffi::ibv_recv_wr,
    *mut *mut ffi::ibv_recv_wr,
) -> i32;

/// The provider's functions behind `ibv_post_send` and `ibv_post_recv`, looked up once instead of
/// at each call. A provider fills its table before handing the context out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    // INVARIANT: both belong to the queue pair's provider.
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv,
}

impl Table {
    /// # Safety
    /// - `qp` is a queue pair.
    pub(super) unsafe fn of(qp: NonNull<ffi::ibv_qp>) -> Self {
        // SAFETY: a queue pair names its context for as long as the queue pair exists.
        let ctx = unsafe { (*qp.as_ptr()).context };
        // SAFETY: the context is open for as long as a queue pair exists.
        let ops = unsafe { &raw const (*ctx).ops };
        // SAFETY: see above.
        let post_send = unsafe { (*ops).post_send };
        // SAFETY: see above.
        let post_recv = unsafe { (*ops).post_recv };
        Self {
            post_send: post_send.unwrap_or(lacks_post_send),
            post_recv: post_recv.unwrap_or(lacks_post_recv),
        }
    }
}

/// Stands in for an empty slot of the table.
unsafe extern "C" fn lacks_post_send(
    _: *mut ffi::ibv_qp,
    first: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> i32 {
    // SAFETY: the posting caller provides room for the refused request.
    unsafe { *bad = first };
    libc::EOPNOTSUPP
}

/// Stands in for an empty slot of the table.
unsafe extern "C" fn lacks_post_recv(
    _: *mut ffi::ibv_qp,
    first: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> i32 {
    // SAFETY: the posting caller provides room for the refused request.
    unsafe { *bad = first };
    libc::EOPNOTSUPP
}
