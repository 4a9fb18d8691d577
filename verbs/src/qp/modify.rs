//! The call behind every transition, and the meaning of its failures.

use std::io;

use ibverbs_sys as ffi;

use super::{
    legal, query,
    state::{QpState, State},
    transport::Transport,
};
use crate::{
    context::Context,
    error::{Error, Result, cvt_errno},
};

/// Checks for a target state in attributes of this mask. Those of
/// [`Attributes::from_raw`](super::Attributes::from_raw) need not. On iWARP the kernel makes
/// transitions itself, and the connection manager's attributes for the last one name no state.
pub(super) fn check_target(ctx: &Context, mask: u32, to: &'static str) -> Result<()> {
    let names_it = mask & ffi::ibv_qp_attr_mask::IBV_QP_STATE.0 != 0;
    if names_it || ctx.is_iwarp() {
        return Ok(());
    }
    let reason = format!("to {to}, but the mask is {mask:#x}, without IBV_QP_STATE");
    Err(Error::refused(
        "ibv_modify_qp",
        io::ErrorKind::InvalidInput,
        reason,
    ))
}

/// Modifies a queue pair of transport `T`, brought to the state `S` by the program, on its way to
/// the state `to`.
///
/// # Safety
/// - `qp` exists, and is of `ctx`.
pub(super) unsafe fn modify<T: Transport, S: State>(
    ctx: &Context,
    qp: *mut ffi::ibv_qp,
    mut attr: ffi::ibv_qp_attr,
    mask: u32,
    to: &'static str,
) -> Result<()> {
    ctx.check_process("ibv_modify_qp")?;
    if mask == 0 {
        // Nothing to change: on iWARP the kernel has made the transition itself.
        return Ok(());
    }
    // SAFETY: the queue pair exists, and `attr` is complete. Assumption: C keeps no pointer to the
    // attributes.
    let errno = unsafe { ffi::ibv_modify_qp(qp, &raw mut attr, mask as i32) };
    let modified = cvt_errno("ibv_modify_qp", errno).map_err(|err| {
        let mut detail = format!("{} {} to {to}", T::NAME, S::NAME);
        match legal::complaint(T::RULES, S::RAW, attr.qp_state, mask) {
            Some(complaint) => detail = format!("{detail}, {complaint}"),
            None => {
                // SAFETY: the queue pair exists.
                let now = unsafe { query::query(qp) }.map(|attr| attr.state);
                if let Ok(now) = now
                    && now != QpState(S::RAW.0)
                {
                    detail = format!("{detail}, but it is in {now:?}");
                }
            }
        }
        err.detail(detail)
    });
    #[cfg(feature = "tracing")]
    {
        // SAFETY: the queue pair exists, and its number is constant.
        let qp_num = unsafe { (*qp).qp_num };
        let states = (S::NAME, to);
        crate::trace::transition(qp_num, states, &attr, mask, modified.as_ref().err());
    }
    modified
}
