//! Messages.

use std::io::IoSlice;

use ibverbs_sys as ffi;

use super::{
    Describe, Emit, ExtendedRequest, Inline, InlineList, Parts, SendRequest, common_options,
    request,
};
use crate::{
    qp::Connected,
    work::{Gather, SgeList},
};

/// `IBV_WR_SEND` and its variants—A message to a receive posted by the peer.
///
/// ```
/// # let (_peer, mut qp, _cq) = doctest::connected();
/// # let buf = qp.pd().alloc_buf(5)?;
/// use verbs::op;
/// qp.post(op::Send::new(buf).imm_data(7).solicited())?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_send")]
#[doc(alias = "ibv_wr_send_imm")]
#[doc(alias = "ibv_wr_send_inv")]
#[doc(alias = "IBV_WR_SEND")]
#[doc(alias = "IBV_WR_SEND_WITH_IMM")]
#[doc(alias = "IBV_WR_SEND_WITH_INV")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct Send<W> {
    work: W,
    rider: Rider,
    flags: ffi::ibv_send_flags,
}

/// The extra operation of a message.
#[derive(Clone, Copy, Debug)]
enum Rider {
    None,
    ImmData(u32),
    Invalidate(u32),
}

impl<W: Gather> Send<W> {
    /// A message of the bytes of `work`, whose completion is signaled.
    #[inline]
    pub fn new(work: W) -> Self {
        Self {
            work,
            rider: Rider::None,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    /// Sends a number with the message, reported in the receiver's completion.
    #[inline]
    pub fn imm_data(mut self, imm_data: u32) -> Self {
        self.rider = Rider::ImmData(imm_data);
        self
    }

    /// Invalidates an RKey of the receiver before delivery of the message. Replaces immediate data.
    #[inline]
    pub fn invalidate(mut self, rkey: u32) -> Self {
        self.rider = Rider::Invalidate(rkey);
        self
    }

    /// Sets the solicited event: notifies a receiver armed for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_SOLICITED;
        self
    }

    /// Sends `data` instead of the work's bytes: the data are copied when the request is posted,
    /// and need not be registered. The work is kept until the completion all the same.
    #[inline]
    pub fn inline(self, data: &[u8]) -> Inline<'_, Self> {
        Inline::new(self, data)
    }

    /// Sends several pieces of data, one after the other, instead of the bytes of the work; see
    /// [`Send::inline`](super::Send::inline). Each counts as an element.
    #[inline]
    pub fn inline_list<'d>(self, data: &'d [IoSlice<'d>]) -> InlineList<'d, Self> {
        InlineList::new(self, data)
    }

    common_options!();
}

request!(Send, transport: Connected, work: Gather, |this, to| {
    match this.rider {
        Rider::None => to.send(),
        Rider::ImmData(imm_data) => to.send_imm(imm_data),
        Rider::Invalidate(rkey) => to.send_inv(rkey),
    }
});
