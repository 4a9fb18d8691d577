//! Atomic operations on 8 bytes of the peer's memory.

use ibverbs_sys as ffi;

use super::{
    Describe, DescribeExtended, Emit, EmitExtended, ExtendedRequest, Parts, SendRequest,
    common_options, keeps_work, remote_memory, request,
};
use crate::{
    mr::RemoteToken,
    qp::Reliable,
    work::{Gather, Scatter, SgeList},
};

/// `IBV_WR_ATOMIC_CMP_AND_SWP`—Replaces a number in the peer's memory, if the number equals an
/// expected one.
///
/// The number is 8 bytes, at an address that is a multiple of 8, in this machine's byte order. The
/// work must be one element of 8 bytes, and receives the former value.
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_atomic_cmp_swp")]
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
    /// Replaces the number at the start of `remote` by `swap`, if the number equals `compare`.
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
    remote_memory!();
}

request!(CompareSwap, transport: Reliable, work: Scatter, parts: {
    const READS: bool = true;

    #[inline]
    fn exactly(&self) -> Option<u32> {
        Some(8)
    }

    #[inline]
    fn remote_len(&self) -> u64 {
        self.remote.len
    }
}, |this, to| {
    to.atomic_cmp_swp(this.remote, this.compare, this.swap);
});

/// `IBV_WR_ATOMIC_FETCH_AND_ADD`—Adds to a number in the peer's memory.
///
/// See [`CompareSwap`] for the number and the work.
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_atomic_fetch_add")]
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
    remote_memory!();
}

request!(FetchAdd, transport: Reliable, work: Scatter, parts: {
    const READS: bool = true;

    #[inline]
    fn exactly(&self) -> Option<u32> {
        Some(8)
    }

    #[inline]
    fn remote_len(&self) -> u64 {
        self.remote.len
    }
}, |this, to| {
    to.atomic_fetch_add(this.remote, this.add);
});

/// `ibv_wr_atomic_write`—Writes 8 bytes of the peer's memory in one step.
///
/// The address is a multiple of 8. The bytes are copied when the request is posted; the work is
/// only kept. Since rdma-core 44; Soft-RoCE supports atomic writes since kernel 6.2, and fails the
/// request before.
///
/// # References
/// [ibv_wr_atomic_write(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
#[doc(alias = "ibv_wr_atomic_write")]
#[doc(alias = "IBV_WR_ATOMIC_WRITE")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct AtomicWrite<W> {
    work: W,
    remote: RemoteToken,
    value: [u8; 8],
    flags: ffi::ibv_send_flags,
}

impl<W> AtomicWrite<W> {
    /// Writes `value` to the start of `remote`; `work` returns with the completion.
    #[inline]
    pub fn new(work: W, remote: RemoteToken, value: [u8; 8]) -> Self {
        Self {
            work,
            remote,
            value,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    common_options!();
    remote_memory!();
}

keeps_work!(AtomicWrite, transport: Reliable, parts: {
    const REMOTE_BYTES: Option<u64> = Some(8);
    const READS: bool = true;

    #[inline]
    fn remote_len(&self) -> u64 {
        self.remote.len
    }
});

impl<W> DescribeExtended for AtomicWrite<W> {
    #[inline]
    fn describe_extended<E: EmitExtended>(&self, to: &mut E) {
        to.atomic_write(self.remote, &self.value);
    }
}
