//! Access of peers to a memory region or a queue pair.

use bitflags::bitflags;
use ibverbs_sys::ibv_access_flags;

bitflags! {
    /// `ibv_access_flags`—Access of peers, by requests with the RKey. Empty by default. Unknown bits reach no device, since
    /// they may be options of a registration.
    #[doc(alias = "ibv_access_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RemoteAccess: u32 {
        /// RDMA write.
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        const WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// RDMA read.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        const READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// Compare-and-swap, and fetch-and-add.
        #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
        const ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// [Flush](crate::op::Flush) to global visibility. Since rdma-core 45.
        const FLUSH_GLOBAL = ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0;
        /// [Flush](crate::op::Flush) to persistence. Since rdma-core 45.
        const FLUSH_PERSISTENT = ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0;
    }
}

impl RemoteAccess {
    /// The known rights, for C.
    pub(crate) fn rights(self) -> u32 {
        self.intersection(Self::all()).bits()
    }
}
