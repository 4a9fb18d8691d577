//! Invalidation.

use ibverbs_sys as ffi;

use super::{Describe, Emit, ExtendedRequest, Parts, SendRequest, common_options, keeps_work};
use crate::{qp::Connected, work::SgeList};

/// `IBV_WR_LOCAL_INV`—Invalidates a local RKey: one of a memory window of type 2.
///
/// The work is only kept; its bytes are not touched.
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_local_inv")]
#[doc(alias = "IBV_WR_LOCAL_INV")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct LocalInvalidate<W> {
    work: W,
    rkey: u32,
    flags: ffi::ibv_send_flags,
}

impl<W> LocalInvalidate<W> {
    /// Invalidates `rkey`; `work` returns with the completion.
    #[inline]
    pub fn new(work: W, rkey: u32) -> Self {
        Self {
            work,
            rkey,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    common_options!();
}

keeps_work!(LocalInvalidate, transport: Connected);

impl<W> Describe for LocalInvalidate<W> {
    #[inline]
    fn describe<E: Emit>(&self, to: &mut E) {
        to.local_inv(self.rkey);
    }
}

impl<T: Connected, W> SendRequest<T> for LocalInvalidate<W> {}
