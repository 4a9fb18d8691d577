//! Creation flags of queue pairs.

use bitflags::bitflags;
use ibverbs_sys::ibv_qp_create_flags;

bitflags! {
    /// `ibv_qp_create_flags`—Options for a queue pair's handling of packets. Unknown bits reach no device.
    ///
    /// # References
    /// [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)
    #[doc(alias = "ibv_qp_create_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpFlags: u32 {
        /// Does not receive its own multicasts.
        #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
        const BLOCK_SELF_MULTICAST = ibv_qp_create_flags::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB.0;
        /// Keeps the frame check sequence.
        #[doc(alias = "IBV_QP_CREATE_SCATTER_FCS")]
        const SCATTER_FCS = ibv_qp_create_flags::IBV_QP_CREATE_SCATTER_FCS.0;
        /// Takes the VLAN tag out of packets.
        #[doc(alias = "IBV_QP_CREATE_CVLAN_STRIPPING")]
        const CVLAN_STRIPPING = ibv_qp_create_flags::IBV_QP_CREATE_CVLAN_STRIPPING.0;
    }
}
