//! Constants of anonymous enums in `efadv.h`, each with the type required at its place of use.

/// Type of queue pairs of the Scalable Reliable Datagram.
pub const EFADV_QP_DRIVER_TYPE_SRD: u32 = 0;

/// Capability: RDMA reads.
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_READ: u32 = 1 << 0;
/// Capability: the number of RNR retries can be set.
pub const EFADV_DEVICE_ATTR_CAPS_RNR_RETRY: u32 = 1 << 1;
/// Capability: completion queues with source addresses.
pub const EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID: u32 = 1 << 2;
/// Capability: RDMA writes. Since rdma-core 47.
pub const EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE: u32 = 1 << 3;

/// Flag of completion queues: source addresses.
pub const EFADV_WC_EX_WITH_SGID: u64 = 1 << 0;
