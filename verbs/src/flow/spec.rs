//! Headers to match, field by field.
//!
//! All numbers are in this machine's order.

use std::net::{Ipv4Addr, Ipv6Addr};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_flow_spec_type as kind;

use super::buffer::Buffer;

/// Fields of a header, and a mask of the bits to compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matching<F> {
    /// The values to match.
    pub value: F,
    /// The bits to compare are set here.
    pub mask: F,
}

/// `ibv_flow_spec`—A header to match.
#[doc(alias = "ibv_flow_spec")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowSpec {
    /// Ethernet.
    #[doc(alias = "IBV_FLOW_SPEC_ETH")]
    Eth(Matching<EthFilter>),
    /// IPv4.
    #[doc(alias = "IBV_FLOW_SPEC_IPV4")]
    Ipv4(Matching<Ipv4Filter>),
    /// IPv4, with more fields.
    #[doc(alias = "IBV_FLOW_SPEC_IPV4_EXT")]
    Ipv4Ext(Matching<Ipv4ExtFilter>),
    /// IPv6.
    #[doc(alias = "IBV_FLOW_SPEC_IPV6")]
    Ipv6(Matching<Ipv6Filter>),
    /// TCP.
    #[doc(alias = "IBV_FLOW_SPEC_TCP")]
    Tcp(Matching<TcpUdpFilter>),
    /// UDP.
    #[doc(alias = "IBV_FLOW_SPEC_UDP")]
    Udp(Matching<TcpUdpFilter>),
    /// The encapsulating security payload of IP.
    #[doc(alias = "IBV_FLOW_SPEC_ESP")]
    Esp(Matching<EspFilter>),
    /// VXLAN.
    #[doc(alias = "IBV_FLOW_SPEC_VXLAN_TUNNEL")]
    Vxlan(Matching<TunnelFilter>),
    /// GRE.
    #[doc(alias = "IBV_FLOW_SPEC_GRE")]
    Gre(Matching<GreFilter>),
    /// MPLS.
    #[doc(alias = "IBV_FLOW_SPEC_MPLS")]
    Mpls(Matching<MplsFilter>),
}

/// `ibv_flow_eth_filter`—The fields of an Ethernet header.
#[doc(alias = "ibv_flow_eth_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthFilter {
    /// The destination.
    pub dst_mac: [u8; 6],
    /// The source.
    pub src_mac: [u8; 6],
    /// The protocol of the frame's payload.
    pub ether_type: u16,
    /// The VLAN tag.
    pub vlan_tag: u16,
}

/// `ibv_flow_ipv4_filter`—The addresses of an IPv4 header.
#[doc(alias = "ibv_flow_ipv4_filter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Filter {
    /// The source.
    pub src_ip: Ipv4Addr,
    /// The destination.
    pub dst_ip: Ipv4Addr,
}

/// `ibv_flow_ipv4_ext_filter`—The fields of an IPv4 header.
#[doc(alias = "ibv_flow_ipv4_ext_filter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4ExtFilter {
    /// The source.
    pub src_ip: Ipv4Addr,
    /// The destination.
    pub dst_ip: Ipv4Addr,
    /// The protocol of the packet's payload.
    pub proto: u8,
    /// The type of service.
    pub tos: u8,
    /// The time to live.
    pub ttl: u8,
    /// The flags.
    pub flags: u8,
}

/// `ibv_flow_ipv6_filter`—The fields of an IPv6 header.
#[doc(alias = "ibv_flow_ipv6_filter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Filter {
    /// The source.
    pub src_ip: Ipv6Addr,
    /// The destination.
    pub dst_ip: Ipv6Addr,
    /// The flow label.
    pub flow_label: u32,
    /// The protocol of the packet's payload.
    pub next_hdr: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
}

/// `ibv_flow_tcp_udp_filter`—The ports of a TCP or UDP header.
#[doc(alias = "ibv_flow_tcp_udp_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpUdpFilter {
    /// The destination.
    pub dst_port: u16,
    /// The source.
    pub src_port: u16,
}

/// `ibv_flow_esp_filter`—The fields of an encapsulating security payload.
#[doc(alias = "ibv_flow_esp_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EspFilter {
    /// The security parameter index.
    pub spi: u32,
    /// The sequence number.
    pub seq: u32,
}

/// `ibv_flow_tunnel_filter`—The field of a VXLAN header.
#[doc(alias = "ibv_flow_tunnel_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelFilter {
    /// The number of the tunnel's network.
    pub tunnel_id: u32,
}

/// `ibv_flow_gre_filter`—The fields of a GRE header.
#[doc(alias = "ibv_flow_gre_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GreFilter {
    /// The flags, and the version.
    pub c_ks_res0_ver: u16,
    /// The protocol of the tunnel's payload.
    pub protocol: u16,
    /// The key.
    pub key: u32,
}

/// `ibv_flow_mpls_filter`—The field of an MPLS header.
#[doc(alias = "ibv_flow_mpls_filter")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MplsFilter {
    /// The label, with its class, bottom bit and time to live.
    pub label: u32,
}

impl Default for Ipv4Filter {
    /// All zeros.
    fn default() -> Self {
        Self {
            src_ip: Ipv4Addr::UNSPECIFIED,
            dst_ip: Ipv4Addr::UNSPECIFIED,
        }
    }
}

impl Default for Ipv4ExtFilter {
    /// All zeros.
    fn default() -> Self {
        Self {
            src_ip: Ipv4Addr::UNSPECIFIED,
            dst_ip: Ipv4Addr::UNSPECIFIED,
            proto: 0,
            tos: 0,
            ttl: 0,
            flags: 0,
        }
    }
}

impl Default for Ipv6Filter {
    /// All zeros.
    fn default() -> Self {
        Self {
            src_ip: Ipv6Addr::UNSPECIFIED,
            dst_ip: Ipv6Addr::UNSPECIFIED,
            flow_label: 0,
            next_hdr: 0,
            traffic_class: 0,
            hop_limit: 0,
        }
    }
}

/// An address in network order, as C's integer.
fn be32(addr: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(addr.octets())
}

impl From<EthFilter> for ffi::ibv_flow_eth_filter {
    fn from(filter: EthFilter) -> Self {
        Self {
            dst_mac: filter.dst_mac,
            src_mac: filter.src_mac,
            ether_type: filter.ether_type.to_be(),
            vlan_tag: filter.vlan_tag.to_be(),
        }
    }
}

impl From<Ipv4Filter> for ffi::ibv_flow_ipv4_filter {
    fn from(filter: Ipv4Filter) -> Self {
        Self {
            src_ip: be32(filter.src_ip),
            dst_ip: be32(filter.dst_ip),
        }
    }
}

impl From<Ipv4ExtFilter> for ffi::ibv_flow_ipv4_ext_filter {
    fn from(filter: Ipv4ExtFilter) -> Self {
        Self {
            src_ip: be32(filter.src_ip),
            dst_ip: be32(filter.dst_ip),
            proto: filter.proto,
            tos: filter.tos,
            ttl: filter.ttl,
            flags: filter.flags,
        }
    }
}

impl From<Ipv6Filter> for ffi::ibv_flow_ipv6_filter {
    fn from(filter: Ipv6Filter) -> Self {
        Self {
            src_ip: filter.src_ip.octets(),
            dst_ip: filter.dst_ip.octets(),
            flow_label: filter.flow_label.to_be(),
            next_hdr: filter.next_hdr,
            traffic_class: filter.traffic_class,
            hop_limit: filter.hop_limit,
        }
    }
}

impl From<TcpUdpFilter> for ffi::ibv_flow_tcp_udp_filter {
    fn from(filter: TcpUdpFilter) -> Self {
        Self {
            dst_port: filter.dst_port.to_be(),
            src_port: filter.src_port.to_be(),
        }
    }
}

impl From<EspFilter> for ffi::ibv_flow_esp_filter {
    fn from(filter: EspFilter) -> Self {
        Self {
            spi: filter.spi.to_be(),
            seq: filter.seq.to_be(),
        }
    }
}

impl From<TunnelFilter> for ffi::ibv_flow_tunnel_filter {
    fn from(filter: TunnelFilter) -> Self {
        Self {
            tunnel_id: filter.tunnel_id.to_be(),
        }
    }
}

impl From<GreFilter> for ffi::ibv_flow_gre_filter {
    fn from(filter: GreFilter) -> Self {
        Self {
            c_ks_res0_ver: filter.c_ks_res0_ver.to_be(),
            protocol: filter.protocol.to_be(),
            key: filter.key.to_be(),
        }
    }
}

impl From<MplsFilter> for ffi::ibv_flow_mpls_filter {
    fn from(filter: MplsFilter) -> Self {
        Self {
            label: filter.label.to_be(),
        }
    }
}

impl FlowSpec {
    /// Adds the specification to a buffer: as a header of a tunnel's payload, if `inner`.
    pub(super) fn write(&self, buffer: &mut Buffer, inner: bool) {
        macro_rules! write {
            ($kind:ident, $spec:ident, $matching:ident) => {{
                let inner = if inner {
                    kind::IBV_FLOW_SPEC_INNER.0
                } else {
                    0
                };
                buffer.push(|size| ffi::$spec {
                    type_: kind(kind::$kind.0 | inner),
                    size,
                    val: $matching.value.into(),
                    mask: $matching.mask.into(),
                });
            }};
        }
        match self {
            Self::Eth(header) => write!(IBV_FLOW_SPEC_ETH, ibv_flow_spec_eth, header),
            Self::Ipv4(header) => write!(IBV_FLOW_SPEC_IPV4, ibv_flow_spec_ipv4, header),
            Self::Ipv4Ext(header) => write!(IBV_FLOW_SPEC_IPV4_EXT, ibv_flow_spec_ipv4_ext, header),
            Self::Ipv6(header) => write!(IBV_FLOW_SPEC_IPV6, ibv_flow_spec_ipv6, header),
            Self::Tcp(header) => write!(IBV_FLOW_SPEC_TCP, ibv_flow_spec_tcp_udp, header),
            Self::Udp(header) => write!(IBV_FLOW_SPEC_UDP, ibv_flow_spec_tcp_udp, header),
            Self::Esp(header) => write!(IBV_FLOW_SPEC_ESP, ibv_flow_spec_esp, header),
            Self::Vxlan(header) => write!(IBV_FLOW_SPEC_VXLAN_TUNNEL, ibv_flow_spec_tunnel, header),
            Self::Gre(header) => write!(IBV_FLOW_SPEC_GRE, ibv_flow_spec_gre, header),
            Self::Mpls(header) => write!(IBV_FLOW_SPEC_MPLS, ibv_flow_spec_mpls, header),
        }
    }
}
