//! Datagrams.

use std::io::IoSlice;

use ibverbs_sys as ffi;

use super::{
    Describe, Emit, ExtendedRequest, Inline, InlineList, Parts, SendRequest, common_options,
    request,
};
use crate::{
    ah::{AddressHandle, HasAddress},
    bounded::QpNum,
    qp::Datagram,
    work::{Gather, SgeList},
};

/// Work for sending as a datagram: readable memory with an address.
pub trait DatagramWork: Gather + HasAddress {}

impl<W: Gather + HasAddress> DatagramWork for W {}

/// `IBV_WR_SEND`, `IBV_WR_SEND_WITH_IMM` on a datagram queue pair—A message of at most one packet,
/// to one queue pair of an address.
///
/// The work is [`Addressed`](crate::ah::Addressed), alone or [`With`](crate::work::With) a context,
/// and keeps its address handle until returned. A successful completion does not guarantee
/// delivery.
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_set_ud_addr")]
#[doc(alias = "IBV_WR_SEND")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct SendTo<W> {
    work: W,
    remote_qp: QpNum,
    qkey: u32,
    imm_data: Option<u32>,
    flags: ffi::ibv_send_flags,
}

impl<W: DatagramWork> SendTo<W> {
    /// Sends the bytes of `work` to the queue pair `remote_qp`, whose Q_Key is `qkey`.
    #[inline]
    pub fn new(work: W, remote_qp: QpNum, qkey: u32) -> Self {
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        Self {
            work,
            remote_qp,
            qkey,
            imm_data: None,
            flags,
        }
    }

    /// Sends a number with the message, reported in the receiver's completion.
    #[inline]
    pub fn imm_data(mut self, imm_data: u32) -> Self {
        self.imm_data = Some(imm_data);
        self
    }

    /// Sets the solicited event: notifies a receiver armed for solicited completions only.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_SOLICITED;
        self
    }

    /// Sends `data` instead of the bytes of the work; see [`Send::inline`](super::Send::inline).
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

    /// The queue pair of the receiver.
    pub fn remote_qp(&self) -> QpNum {
        self.remote_qp
    }

    /// The Q_Key of the receiver.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    common_options!();
}

request!(SendTo, transport: Datagram, work: DatagramWork, parts: {
    #[inline]
    fn address(&self) -> Option<&AddressHandle> {
        Some(self.work.ah())
    }
}, |this, to| {
    match this.imm_data {
        None => to.send(),
        Some(imm_data) => to.send_imm(imm_data),
    }
    to.ud_addr(this.work.ah(), this.remote_qp, this.qkey);
});
