//! Atomic operations on 8 bytes of the peer's memory.

use ibverbs_sys as ffi;

use super::{Describe, SendRequest, SendWr, common_options, request};
use crate::{
    mr::RemoteToken,
    qp::Reliable,
    work::{Gather, Scatter, SgeList},
};

/// `IBV_WR_ATOMIC_CMP_AND_SWP`—Replaces a number in the peer's memory, if it is the one expected.
///
/// The number is 8 bytes, at an address that is a multiple of 8, in this machine's order. The work
/// is 8 bytes long, and gets what was there before.
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct CompareSwap<W> {
    work: W,
    remote: RemoteToken,
    compare: u64,
    swap: u64,
    flags: ffi::ibv_send_flags,
}

impl<W: Scatter> CompareSwap<W> {
    /// Replaces the number at the start of `remote` by `swap`, if it is `compare`.
    #[inline]
    pub fn new(work: W, remote: RemoteToken, compare: u64, swap: u64) -> Self {
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        Self {
            work,
            remote,
            compare,
            swap,
            flags,
        }
    }

    common_options!();
}

request!(CompareSwap, transport: Reliable, work: Scatter, |this, wr| {
    wr.opcode(ffi::ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP);
    wr.atomic(this.remote, this.compare, this.swap);
});

/// `IBV_WR_ATOMIC_FETCH_AND_ADD`—Adds to a number in the peer's memory.
///
/// See [`CompareSwap`] for the number and the work.
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct FetchAdd<W> {
    work: W,
    remote: RemoteToken,
    add: u64,
    flags: ffi::ibv_send_flags,
}

impl<W: Scatter> FetchAdd<W> {
    /// Adds `add` to the number at the start of `remote`, wrapping around.
    #[inline]
    pub fn new(work: W, remote: RemoteToken, add: u64) -> Self {
        Self {
            work,
            remote,
            add,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    common_options!();
}

request!(FetchAdd, transport: Reliable, work: Scatter, |this, wr| {
    wr.opcode(ffi::ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
    wr.atomic(this.remote, this.add, 0);
});
