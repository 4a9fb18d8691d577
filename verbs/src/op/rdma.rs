//! RDMA writes and reads.

use std::io::IoSlice;

use ibverbs_sys as ffi;

use super::{
    Describe, Emit, ExtendedRequest, Inline, InlineList, Parts, SendRequest, common_options,
    remote_memory, request,
};
use crate::{
    mr::RemoteToken,
    qp::{Connected, Reliable},
    work::{Gather, Scatter, SgeList},
};

/// `IBV_WR_RDMA_WRITE`, `IBV_WR_RDMA_WRITE_WITH_IMM`—Writes into the peer's memory.
///
/// The peer is not notified, except by [immediate data](Self::imm_data), which complete a receive
/// posted by the peer.
///
/// ```
/// # let (peer, mut qp, _cq) = doctest::connected();
/// # let token = peer.token();
/// use verbs::op;
/// // `token` came from the peer: `RemoteRegion::token` there, and the program's message.
/// qp.post(op::Write::new(qp.pd().register_buf(*b"hello")?, token))?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_rdma_write")]
#[doc(alias = "ibv_wr_rdma_write_imm")]
#[doc(alias = "IBV_WR_RDMA_WRITE")]
#[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct Write<W> {
    work: W,
    remote: RemoteToken,
    imm_data: Option<u32>,
    flags: ffi::ibv_send_flags,
}

impl<W: Gather> Write<W> {
    /// Writes the bytes of `work` to the start of the peer's memory `remote`, which is at least as long.
    #[inline]
    pub fn new(work: W, remote: RemoteToken) -> Self {
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        Self {
            work,
            remote,
            imm_data: None,
            flags,
        }
    }

    /// Sends a number with the data, and completes one of the peer's receives after the data have
    /// been written.
    #[inline]
    pub fn imm_data(mut self, imm_data: u32) -> Self {
        self.imm_data = Some(imm_data);
        self
    }

    /// Sets the solicited event: notifies a receiver armed for solicited completions only. Needs
    /// immediate data.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline]
    pub fn solicited(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_SOLICITED;
        self
    }

    /// Writes `data` instead of the bytes of the work; see [`Send::inline`](super::Send::inline).
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
    remote_memory!();
}

request!(Write, transport: Connected, work: Gather, parts: {
    #[inline]
    fn remote_len(&self) -> u64 {
        self.remote.len
    }
}, |this, to| {
    match this.imm_data {
        None => to.rdma_write(this.remote),
        Some(imm_data) => to.rdma_write_imm(this.remote, imm_data),
    }
});

/// `IBV_WR_RDMA_READ`—Reads from the peer's memory.
///
/// The peer is not notified. The number of reads in flight has a limit of its own:
/// [`max_rd_atomic`](crate::qp::Attributes::max_rd_atomic).
///
/// ```
/// # let (peer, mut qp, mut cq) = doctest::connected();
/// # let token = peer.token();
/// use verbs::op;
/// // `token` came from the peer: `RemoteRegion::token` there, and the program's message.
/// qp.post(op::Read::new(qp.pd().alloc_buf(64)?, token.slice(0..64)?))?;
/// for wc in cq.wait(None)? {
///     let done = qp.complete(wc).expect("there is no other queue pair");
///     println!("{done:?}");
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_rdma_read")]
#[doc(alias = "IBV_WR_RDMA_READ")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct Read<W> {
    work: W,
    remote: RemoteToken,
    flags: ffi::ibv_send_flags,
}

impl<W: Scatter> Read<W> {
    /// Fills `work` from the start of the peer's memory `remote`, which is at least as long.
    #[inline]
    pub fn new(work: W, remote: RemoteToken) -> Self {
        Self {
            work,
            remote,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    common_options!();
    remote_memory!();
}

request!(Read, transport: Reliable, work: Scatter, parts: {
    const READS: bool = true;

    #[inline]
    fn remote_len(&self) -> u64 {
        self.remote.len
    }
}, |this, to| {
    to.rdma_read(this.remote);
});
