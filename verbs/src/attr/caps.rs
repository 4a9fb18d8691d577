//! Capabilities of a device: sets of flags, and groups of limits.

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::{
    ibv_atomic_cap, ibv_device_cap_flags as cap, ibv_odp_general_caps, ibv_odp_transport_cap_bits,
    ibv_pci_atomic_op_size, ibv_qp_type, ibv_raw_packet_caps, ibv_rx_hash_fields as hash,
    ibv_rx_hash_function_flags, ibv_tm_cap_flags,
};

use crate::{named::named, qp::Transport};

named! {
    /// `ibv_atomic_cap`—The scope of a device's atomic operations.
    #[doc(alias = "ibv_atomic_cap")]
    AtomicCap(u32) {
        /// There are none.
        #[doc(alias = "IBV_ATOMIC_NONE")]
        NONE = ibv_atomic_cap::IBV_ATOMIC_NONE.0;
        /// Atomic with respect to other atomics of the same device.
        #[doc(alias = "IBV_ATOMIC_HCA")]
        HCA = ibv_atomic_cap::IBV_ATOMIC_HCA.0;
        /// With everything, the processor included.
        #[doc(alias = "IBV_ATOMIC_GLOB")]
        GLOB = ibv_atomic_cap::IBV_ATOMIC_GLOB.0;
    }
}

bitflags! {
    /// `ibv_device_cap_flags`—Capabilities of a device. Unknown bits are kept.
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DeviceCaps: u64 {
        /// The number of outstanding requests of a queue pair can be changed.
        #[doc(alias = "IBV_DEVICE_RESIZE_MAX_WR")]
        const RESIZE_MAX_WR = cap::IBV_DEVICE_RESIZE_MAX_WR.0 as u64;
        /// Counts violations of P_Keys.
        #[doc(alias = "IBV_DEVICE_BAD_PKEY_CNTR")]
        const BAD_PKEY_CNTR = cap::IBV_DEVICE_BAD_PKEY_CNTR.0 as u64;
        /// Counts violations of Q_Keys.
        #[doc(alias = "IBV_DEVICE_BAD_QKEY_CNTR")]
        const BAD_QKEY_CNTR = cap::IBV_DEVICE_BAD_QKEY_CNTR.0 as u64;
        /// Raw packets to multicast groups.
        #[doc(alias = "IBV_DEVICE_RAW_MULTI")]
        const RAW_MULTI = cap::IBV_DEVICE_RAW_MULTI.0 as u64;
        /// Automatic path migration.
        #[doc(alias = "IBV_DEVICE_AUTO_PATH_MIG")]
        const AUTO_PATH_MIG = cap::IBV_DEVICE_AUTO_PATH_MIG.0 as u64;
        /// The port of a queue pair can be changed.
        #[doc(alias = "IBV_DEVICE_CHANGE_PHY_PORT")]
        const CHANGE_PHY_PORT = cap::IBV_DEVICE_CHANGE_PHY_PORT.0 as u64;
        /// The port of an address handle is enforced.
        #[doc(alias = "IBV_DEVICE_UD_AV_PORT_ENFORCE")]
        const UD_AV_PORT_ENFORCE = cap::IBV_DEVICE_UD_AV_PORT_ENFORCE.0 as u64;
        /// A transition can name its starting state.
        #[doc(alias = "IBV_DEVICE_CURR_QP_STATE_MOD")]
        const CURR_QP_STATE_MOD = cap::IBV_DEVICE_CURR_QP_STATE_MOD.0 as u64;
        /// A port can be shut down.
        #[doc(alias = "IBV_DEVICE_SHUTDOWN_PORT")]
        const SHUTDOWN_PORT = cap::IBV_DEVICE_SHUTDOWN_PORT.0 as u64;
        /// The type of initialisation can be set.
        #[doc(alias = "IBV_DEVICE_INIT_TYPE")]
        const INIT_TYPE = cap::IBV_DEVICE_INIT_TYPE.0 as u64;
        /// Sends an event when a port becomes active.
        #[doc(alias = "IBV_DEVICE_PORT_ACTIVE_EVENT")]
        const PORT_ACTIVE_EVENT = cap::IBV_DEVICE_PORT_ACTIVE_EVENT.0 as u64;
        /// Has a GUID of its system image.
        #[doc(alias = "IBV_DEVICE_SYS_IMAGE_GUID")]
        const SYS_IMAGE_GUID = cap::IBV_DEVICE_SYS_IMAGE_GUID.0 as u64;
        /// Sends an RNR NAK when no receive is posted.
        #[doc(alias = "IBV_DEVICE_RC_RNR_NAK_GEN")]
        const RC_RNR_NAK_GEN = cap::IBV_DEVICE_RC_RNR_NAK_GEN.0 as u64;
        /// The size of a shared receive queue can be changed.
        #[doc(alias = "IBV_DEVICE_SRQ_RESIZE")]
        const SRQ_RESIZE = cap::IBV_DEVICE_SRQ_RESIZE.0 as u64;
        /// Notifies a completion queue's channel after a chosen number of completions.
        #[doc(alias = "IBV_DEVICE_N_NOTIFY_CQ")]
        const N_NOTIFY_CQ = cap::IBV_DEVICE_N_NOTIFY_CQ.0 as u64;
        /// Memory windows.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW")]
        const MEM_WINDOW = cap::IBV_DEVICE_MEM_WINDOW.0 as u64;
        /// Checksums of IP in datagrams.
        #[doc(alias = "IBV_DEVICE_UD_IP_CSUM")]
        const UD_IP_CSUM = cap::IBV_DEVICE_UD_IP_CSUM.0 as u64;
        /// Extended reliable connections.
        #[doc(alias = "IBV_DEVICE_XRC")]
        const XRC = cap::IBV_DEVICE_XRC.0 as u64;
        /// Fast registration, local invalidation, and sending with invalidation.
        #[doc(alias = "IBV_DEVICE_MEM_MGT_EXTENSIONS")]
        const MEM_MGT_EXTENSIONS = cap::IBV_DEVICE_MEM_MGT_EXTENSIONS.0 as u64;
        /// Memory windows of type 2A.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2A")]
        const MEM_WINDOW_TYPE_2A = cap::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0 as u64;
        /// Memory windows of type 2B.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2B")]
        const MEM_WINDOW_TYPE_2B = cap::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0 as u64;
        /// Checksums of IP in connections.
        #[doc(alias = "IBV_DEVICE_RC_IP_CSUM")]
        const RC_IP_CSUM = cap::IBV_DEVICE_RC_IP_CSUM.0 as u64;
        /// Checksums of IP in raw packets.
        #[doc(alias = "IBV_DEVICE_RAW_IP_CSUM")]
        const RAW_IP_CSUM = cap::IBV_DEVICE_RAW_IP_CSUM.0 as u64;
        /// Flow steering by the program.
        #[doc(alias = "IBV_DEVICE_MANAGED_FLOW_STEERING")]
        const MANAGED_FLOW_STEERING = cap::IBV_DEVICE_MANAGED_FLOW_STEERING.0 as u64;
        /// Keeps the frame check sequence of raw packets.
        #[doc(alias = "IBV_DEVICE_RAW_SCATTER_FCS")]
        const RAW_SCATTER_FCS = ffi::IBV_DEVICE_RAW_SCATTER_FCS;
        /// Pads the end of writes over PCI.
        #[doc(alias = "IBV_DEVICE_PCI_WRITE_END_PADDING")]
        const PCI_WRITE_END_PADDING = ffi::IBV_DEVICE_PCI_WRITE_END_PADDING;
    }

    /// `ibv_odp_general_caps`—The kinds of on-demand paging that a device supports.
    #[doc(alias = "ibv_odp_general_caps")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OdpGeneralCaps: u64 {
        /// On-demand paging is supported.
        #[doc(alias = "IBV_ODP_SUPPORT")]
        const SUPPORT = ibv_odp_general_caps::IBV_ODP_SUPPORT.0 as u64;
        /// A region can cover the whole address space.
        #[doc(alias = "IBV_ODP_SUPPORT_IMPLICIT")]
        const IMPLICIT = ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT.0 as u64;
    }

    /// `ibv_odp_transport_cap_bits`—A transport's operations with support for memory paged on
    /// demand.
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OdpTransportCaps: u32 {
        /// Send from on-demand memory.
        #[doc(alias = "IBV_ODP_SUPPORT_SEND")]
        const SEND = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SEND.0;
        /// Receive into on-demand memory.
        #[doc(alias = "IBV_ODP_SUPPORT_RECV")]
        const RECV = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_RECV.0;
        /// RDMA write to on-demand memory.
        #[doc(alias = "IBV_ODP_SUPPORT_WRITE")]
        const WRITE = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE.0;
        /// RDMA read from on-demand memory.
        #[doc(alias = "IBV_ODP_SUPPORT_READ")]
        const READ = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ.0;
        /// Atomics on on-demand memory.
        #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC")]
        const ATOMIC = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC.0;
        /// Receive into on-demand memory from a shared receive queue.
        #[doc(alias = "IBV_ODP_SUPPORT_SRQ_RECV")]
        const SRQ_RECV = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SRQ_RECV.0;
        /// Flushes of on-demand memory.
        #[doc(alias = "IBV_ODP_SUPPORT_FLUSH")]
        const FLUSH = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_FLUSH.0;
        /// Atomic writes to on-demand memory.
        #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC_WRITE")]
        const ATOMIC_WRITE = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_ATOMIC_WRITE.0;
    }

    /// A set of queue pair types.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpTypes: u32 {
        /// Reliable connection.
        const RC = 1 << ibv_qp_type::IBV_QPT_RC.0;
        /// Unreliable connection.
        const UC = 1 << ibv_qp_type::IBV_QPT_UC.0;
        /// Unreliable datagram.
        const UD = 1 << ibv_qp_type::IBV_QPT_UD.0;
        /// Raw packets.
        const RAW_PACKET = 1 << ibv_qp_type::IBV_QPT_RAW_PACKET.0;
        /// Extended reliable connection, sender.
        const XRC_SEND = 1 << ibv_qp_type::IBV_QPT_XRC_SEND.0;
        /// Extended reliable connection, receiver.
        const XRC_RECV = 1 << ibv_qp_type::IBV_QPT_XRC_RECV.0;
    }

    /// `ibv_rx_hash_function_flags`—Hash functions for spreading packets over receive queues.
    #[doc(alias = "ibv_rx_hash_function_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFunctions: u32 {
        /// The Toeplitz hash function.
        #[doc(alias = "IBV_RX_HASH_FUNC_TOEPLITZ")]
        const TOEPLITZ = ibv_rx_hash_function_flags::IBV_RX_HASH_FUNC_TOEPLITZ.0;
    }

    /// `ibv_rx_hash_fields`—The packet fields available for hashing.
    #[doc(alias = "ibv_rx_hash_fields")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFields: u64 {
        /// The source of IPv4.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV4")]
        const SRC_IPV4 = hash::IBV_RX_HASH_SRC_IPV4.0 as u64;
        /// The destination of IPv4.
        #[doc(alias = "IBV_RX_HASH_DST_IPV4")]
        const DST_IPV4 = hash::IBV_RX_HASH_DST_IPV4.0 as u64;
        /// The source of IPv6.
        #[doc(alias = "IBV_RX_HASH_SRC_IPV6")]
        const SRC_IPV6 = hash::IBV_RX_HASH_SRC_IPV6.0 as u64;
        /// The destination of IPv6.
        #[doc(alias = "IBV_RX_HASH_DST_IPV6")]
        const DST_IPV6 = hash::IBV_RX_HASH_DST_IPV6.0 as u64;
        /// The source port of TCP.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_TCP")]
        const SRC_PORT_TCP = hash::IBV_RX_HASH_SRC_PORT_TCP.0 as u64;
        /// The destination port of TCP.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_TCP")]
        const DST_PORT_TCP = hash::IBV_RX_HASH_DST_PORT_TCP.0 as u64;
        /// The source port of UDP.
        #[doc(alias = "IBV_RX_HASH_SRC_PORT_UDP")]
        const SRC_PORT_UDP = hash::IBV_RX_HASH_SRC_PORT_UDP.0 as u64;
        /// The destination port of UDP.
        #[doc(alias = "IBV_RX_HASH_DST_PORT_UDP")]
        const DST_PORT_UDP = hash::IBV_RX_HASH_DST_PORT_UDP.0 as u64;
        /// The security parameter index of IPsec.
        #[doc(alias = "IBV_RX_HASH_IPSEC_SPI")]
        const IPSEC_SPI = hash::IBV_RX_HASH_IPSEC_SPI.0 as u64;
        /// The inner headers of a tunnel, rather than the outer ones.
        #[doc(alias = "IBV_RX_HASH_INNER")]
        const INNER = hash::IBV_RX_HASH_INNER.0 as u64;
    }

    /// `ibv_raw_packet_caps`—Capabilities of a device for raw packets.
    #[doc(alias = "ibv_raw_packet_caps")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RawPacketCaps: u32 {
        /// Strip the VLAN tag from packets, and report the tag.
        #[doc(alias = "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING")]
        const CVLAN_STRIPPING = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING.0;
        /// Keep the frame check sequence.
        #[doc(alias = "IBV_RAW_PACKET_CAP_SCATTER_FCS")]
        const SCATTER_FCS = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_SCATTER_FCS.0;
        /// Compute checksums of IP.
        #[doc(alias = "IBV_RAW_PACKET_CAP_IP_CSUM")]
        const IP_CSUM = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_IP_CSUM.0;
        /// Wait for a receive for a while before dropping a packet.
        #[doc(alias = "IBV_RAW_PACKET_CAP_DELAY_DROP")]
        const DELAY_DROP = ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_DELAY_DROP.0;
    }

    /// `ibv_tm_cap_flags`—The transports with tag matching.
    #[doc(alias = "ibv_tm_cap_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TagMatchingFlags: u32 {
        /// Reliable connections.
        #[doc(alias = "IBV_TM_CAP_RC")]
        const RC = ibv_tm_cap_flags::IBV_TM_CAP_RC.0;
    }

    /// `ibv_pci_atomic_op_size`—The supported operand sizes of PCI atomics.
    #[doc(alias = "ibv_pci_atomic_op_size")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PciAtomicSizes: u32 {
        /// 4 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP")]
        const BYTES_4 = ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP.0;
        /// 8 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP")]
        const BYTES_8 = ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP.0;
        /// 16 bytes.
        #[doc(alias = "IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP")]
        const BYTES_16 = ibv_pci_atomic_op_size::IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP.0;
    }
}

impl QpTypes {
    /// `ibv_is_qpt_supported(caps, qpt)`—Whether the set contains queue pairs of the transport `T`.
    #[doc(alias = "ibv_is_qpt_supported")]
    pub fn has<T: Transport>(self) -> bool {
        ffi::ibv_is_qpt_supported(self.bits(), T::RAW) != 0
    }
}

/// `ibv_odp_caps`—Capabilities for memory paged on demand.
#[doc(alias = "ibv_odp_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OdpCaps {
    /// Support of such memory.
    pub general: OdpGeneralCaps,
    /// By reliable connections.
    pub rc: OdpTransportCaps,
    /// By unreliable connections.
    pub uc: OdpTransportCaps,
    /// By unreliable datagrams.
    pub ud: OdpTransportCaps,
    /// By extended reliable connections.
    pub xrc: OdpTransportCaps,
}

/// `ibv_tso_caps`—Limits of TCP segmentation by the device.
#[doc(alias = "ibv_tso_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TsoCaps {
    /// Maximum number of bytes of one request; 0 if there is no segmentation.
    pub max_tso: u32,
    /// The queue pair types with this support.
    pub supported_qpts: QpTypes,
}

/// `ibv_rss_caps`—Limits of receive-side scaling: packets spread over receive queues.
#[doc(alias = "ibv_rss_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssCaps {
    /// The queue pair types with this support.
    pub supported_qpts: QpTypes,
    /// Maximum number of indirection tables.
    pub max_rwq_indirection_tables: u32,
    /// Maximum number of entries of an indirection table.
    pub max_rwq_indirection_table_size: u32,
    /// The fields available for hashing.
    pub rx_hash_fields: RxHashFields,
    /// The available hash functions.
    pub rx_hash_function: RxHashFunctions,
}

/// `ibv_packet_pacing_caps`—Limits of the send rates of queue pairs.
#[doc(alias = "ibv_packet_pacing_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketPacingCaps {
    /// The lowest limit, in kbit/s.
    pub qp_rate_limit_min: u32,
    /// The highest limit, in kbit/s; 0 if there is no pacing.
    pub qp_rate_limit_max: u32,
    /// The queue pair types with this support.
    pub supported_qpts: QpTypes,
}

/// `ibv_tm_caps`—Limits of tag matching by the device.
#[doc(alias = "ibv_tm_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagMatchingCaps {
    /// Maximum number of bytes of a rendezvous header.
    pub max_rndv_hdr_size: u32,
    /// Maximum number of tags on a list; 0 if there is no tag matching.
    pub max_num_tags: u32,
    /// The transports.
    pub flags: TagMatchingFlags,
    /// Maximum number of outstanding operations.
    pub max_ops: u32,
    /// Maximum number of elements of a tagged buffer.
    pub max_sge: u32,
}

/// `ibv_cq_moderation_caps`—Limits of the moderation of completion queues; 0 if there is none.
#[doc(alias = "ibv_cq_moderation_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqModerationCaps {
    /// Maximum number of completions before an event.
    pub max_cq_count: u16,
    /// Maximum number of microseconds before an event.
    pub max_cq_period: u16,
}

/// `ibv_pci_atomic_caps`—Operand sizes of a device's atomic operations over PCI.
#[doc(alias = "ibv_pci_atomic_caps")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PciAtomicCaps {
    /// Fetch-and-add.
    pub fetch_add: PciAtomicSizes,
    /// Swap.
    pub swap: PciAtomicSizes,
    /// Compare-and-swap.
    pub compare_swap: PciAtomicSizes,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{self, Ud};

    #[test]
    fn qp_types_contain_their_transports() {
        let types = QpTypes::RC | QpTypes::from_bits_retain(1 << 31);
        assert!(types.has::<qp::Rc>() && !types.has::<Ud>());
    }

    #[test]
    fn unknown_flags_are_kept_and_formatted() {
        let caps = DeviceCaps::from_bits_retain(1 << 50 | DeviceCaps::XRC.bits());
        assert!(caps.contains(DeviceCaps::XRC));
        assert_eq!(format!("{caps:?}"), "DeviceCaps(XRC | 0x4000000000000)");
    }
}
