//! Flushing earlier writes to the peer's memory.

use bitflags::bitflags;
use ibverbs_sys as ffi;

use super::{
    DescribeExtended, EmitExtended, ExtendedRequest, Parts, common_options, keeps_work,
    remote_memory,
};
use crate::{mr::RemoteToken, qp::Reliable, work::SgeList};

bitflags! {
    /// `ibv_placement_type`—The effect of a [`Flush`] on the data.
    #[doc(alias = "ibv_placement_type")]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Placement: u8 {
        /// Global visibility: every reader of the peer's memory sees the data.
        const GLOBAL = 1 << 0;
        /// Persistence: the data survive a power failure of the peer.
        const PERSISTENT = 1 << 1;
    }
}

const _: () =
    assert!(Placement::GLOBAL.bits() as u32 == ffi::ibv_placement_type::IBV_FLUSH_GLOBAL.0);
const _: () =
    assert!(Placement::PERSISTENT.bits() as u32 == ffi::ibv_placement_type::IBV_FLUSH_PERSISTENT.0);

/// `ibv_wr_flush`—Completes when earlier writes to the peer's memory have taken effect.
///
/// The region and the queue pair must allow flushes
/// ([`RemoteAccess::FLUSH_GLOBAL`](crate::RemoteAccess::FLUSH_GLOBAL)). The work is only kept.
/// Since rdma-core 45.
///
/// # References
/// [ibv_wr_flush(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
#[doc(alias = "ibv_wr_flush")]
#[doc(alias = "IBV_WR_FLUSH")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct Flush<W> {
    work: W,
    remote: RemoteToken,
    placement: Placement,
    selectivity: ffi::ibv_selectivity_level,
    flags: ffi::ibv_send_flags,
}

impl<W> Flush<W> {
    /// Flushes the bytes of `remote`; `work` returns with the completion.
    #[inline]
    pub fn new(work: W, remote: RemoteToken, placement: Placement) -> Self {
        Self {
            work,
            remote,
            placement,
            selectivity: ffi::ibv_selectivity_level::IBV_FLUSH_RANGE,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    /// `IBV_FLUSH_MR`—Flushes the whole region.
    #[doc(alias = "IBV_FLUSH_MR")]
    #[inline]
    pub fn whole_region(mut self) -> Self {
        self.selectivity = ffi::ibv_selectivity_level::IBV_FLUSH_MR;
        self
    }

    common_options!();
    remote_memory!();
}

keeps_work!(Flush, transport: Reliable);

impl<W> DescribeExtended for Flush<W> {
    #[inline]
    fn describe_extended<E: EmitExtended>(&self, to: &mut E) {
        // 0 or 1.
        let selectivity = u8::try_from(self.selectivity.0).unwrap_or(0);
        to.flush(self.remote, self.placement.bits(), selectivity);
    }
}
