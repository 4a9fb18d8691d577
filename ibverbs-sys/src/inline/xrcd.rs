//! XRC domains.

use super::dispatch;
use crate::{ibv_context, ibv_xrcd, ibv_xrcd_init_attr};
use core::ffi::c_int;

dispatch! {
    /// `ibv_open_xrcd(context, xrcd_init_attr)`—Opens an XRC domain, or joins an existing one.
    pub fn ibv_open_xrcd(
        context: *mut ibv_context,
        xrcd_init_attr: *mut ibv_xrcd_init_attr,
    ) -> *mut ibv_xrcd
        => verbs_get_ctx_op!(context, open_xrcd);

    /// `ibv_close_xrcd(xrcd)`—Closes an XRC domain.
    pub fn ibv_close_xrcd(xrcd: *mut ibv_xrcd) -> c_int
        => verbs_get_ctx_op!((*xrcd).context, close_xrcd);
}
