//! Kinds of devices.

use ibverbs_sys::{ibv_node_type, ibv_transport_type};

use crate::named::named;

named! {
    /// `ibv_node_type`—The role of a device in its network.
    #[doc(alias = "ibv_node_type_str")]
    #[doc(alias = "ibv_node_type")]
    NodeType(i32) {
        /// Not known.
        #[doc(alias = "IBV_NODE_UNKNOWN")]
        UNKNOWN = ibv_node_type::IBV_NODE_UNKNOWN.0;
        /// A channel adapter: InfiniBand, or RoCE.
        #[doc(alias = "IBV_NODE_CA")]
        CA = ibv_node_type::IBV_NODE_CA.0;
        /// A switch.
        #[doc(alias = "IBV_NODE_SWITCH")]
        SWITCH = ibv_node_type::IBV_NODE_SWITCH.0;
        /// A router.
        #[doc(alias = "IBV_NODE_ROUTER")]
        ROUTER = ibv_node_type::IBV_NODE_ROUTER.0;
        /// An iWARP network card.
        #[doc(alias = "IBV_NODE_RNIC")]
        RNIC = ibv_node_type::IBV_NODE_RNIC.0;
        /// A Cisco usNIC.
        #[doc(alias = "IBV_NODE_USNIC")]
        USNIC = ibv_node_type::IBV_NODE_USNIC.0;
        /// A Cisco usNIC over UDP.
        #[doc(alias = "IBV_NODE_USNIC_UDP")]
        USNIC_UDP = ibv_node_type::IBV_NODE_USNIC_UDP.0;
        /// Something else.
        #[doc(alias = "IBV_NODE_UNSPECIFIED")]
        UNSPECIFIED = ibv_node_type::IBV_NODE_UNSPECIFIED.0;
    }

    /// `ibv_transport_type`—The family of transports of a device.
    #[doc(alias = "ibv_transport_type")]
    TransportType(i32) {
        /// Not known.
        #[doc(alias = "IBV_TRANSPORT_UNKNOWN")]
        UNKNOWN = ibv_transport_type::IBV_TRANSPORT_UNKNOWN.0;
        /// InfiniBand, also over Ethernet.
        #[doc(alias = "IBV_TRANSPORT_IB")]
        IB = ibv_transport_type::IBV_TRANSPORT_IB.0;
        /// iWARP.
        #[doc(alias = "IBV_TRANSPORT_IWARP")]
        IWARP = ibv_transport_type::IBV_TRANSPORT_IWARP.0;
        /// Cisco usNIC.
        #[doc(alias = "IBV_TRANSPORT_USNIC")]
        USNIC = ibv_transport_type::IBV_TRANSPORT_USNIC.0;
        /// Cisco usNIC over UDP.
        #[doc(alias = "IBV_TRANSPORT_USNIC_UDP")]
        USNIC_UDP = ibv_transport_type::IBV_TRANSPORT_USNIC_UDP.0;
        /// Something else.
        #[doc(alias = "IBV_TRANSPORT_UNSPECIFIED")]
        UNSPECIFIED = ibv_transport_type::IBV_TRANSPORT_UNSPECIFIED.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_node_types_are_kept() {
        assert_eq!(format!("{:?}", NodeType(4)), "RNIC");
        assert_eq!(format!("{:?}", TransportType::IB), "IB");
        assert_eq!(format!("{:?}", TransportType(-7)), "TransportType(-7)");
    }
}
