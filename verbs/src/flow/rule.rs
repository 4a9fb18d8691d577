//! Flow rules: matching packets, and their destination.

use std::{fmt, io, sync::Arc};

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::{
    ibv_flow_attr_type, ibv_flow_flags, ibv_flow_spec_action_drop, ibv_flow_spec_action_tag,
    ibv_flow_spec_counter_action, ibv_flow_spec_type as SpecType,
};

use super::{
    buffer::Buffer,
    spec::{EthFilter, FlowSpec, Ipv4Filter, Ipv6Filter, Matching, TcpUdpFilter},
};
use crate::{
    counters::{Counters, CountersInner},
    error::{Error, Result},
    named::named,
};

named! {
    /// `ibv_flow_attr_type`—The kind of a rule.
    #[doc(alias = "ibv_flow_attr_type")]
    FlowKind(u32) {
        /// Packets with matching headers.
        #[doc(alias = "IBV_FLOW_ATTR_NORMAL")]
        NORMAL = ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL.0;
        /// All packets not matched by another rule.
        #[doc(alias = "IBV_FLOW_ATTR_ALL_DEFAULT")]
        ALL_DEFAULT = ibv_flow_attr_type::IBV_FLOW_ATTR_ALL_DEFAULT.0;
        /// All multicast packets not matched by another rule.
        #[doc(alias = "IBV_FLOW_ATTR_MC_DEFAULT")]
        MC_DEFAULT = ibv_flow_attr_type::IBV_FLOW_ATTR_MC_DEFAULT.0;
        /// Copies of all packets, in addition to their normal destination.
        #[doc(alias = "IBV_FLOW_ATTR_SNIFFER")]
        SNIFFER = ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER.0;
    }
}

bitflags! {
    /// `ibv_flow_flags`—How a rule applies.
    #[doc(alias = "ibv_flow_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlowFlags: u32 {
        /// Other rules see the packet as well.
        #[doc(alias = "IBV_FLOW_ATTR_FLAGS_DONT_TRAP")]
        const DONT_TRAP = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_DONT_TRAP.0;
        /// For sent packets, rather than received ones.
        #[doc(alias = "IBV_FLOW_ATTR_FLAGS_EGRESS")]
        const EGRESS = ibv_flow_flags::IBV_FLOW_ATTR_FLAGS_EGRESS.0;
    }
}

/// `ibv_flow_attr`—A rule: matching packets, and the action for them.
///
/// The headers are given from the outermost to the innermost.
///
/// # Examples
/// TCP to a port of an address:
/// ```
/// use verbs::flow::{FlowRule, Ipv4Filter, Matching, TcpUdpFilter};
/// let to = Ipv4Filter { dst_ip: [10, 9, 0, 1].into(), ..Ipv4Filter::default() };
/// let all_bits = Ipv4Filter { dst_ip: [255; 4].into(), ..Ipv4Filter::default() };
/// let port = TcpUdpFilter { dst_port: 80, ..TcpUdpFilter::default() };
/// let port_bits = TcpUdpFilter { dst_port: !0, ..TcpUdpFilter::default() };
/// let rule = FlowRule::new(1)
///     .ipv4(Matching { value: to, mask: all_bits })
///     .tcp(Matching { value: port, mask: port_bits });
/// ```
///
/// # References
/// [ibv_create_flow(3)](https://man7.org/linux/man-pages/man3/ibv_create_flow.3.html)
#[doc(alias = "ibv_flow_attr")]
#[derive(Clone, Debug)]
pub struct FlowRule {
    port: u8,
    priority: u16,
    kind: FlowKind,
    flags: FlowFlags,
    /// The headers, each with a flag for the inner headers of a tunnel.
    headers: Vec<(FlowSpec, bool)>,
    tag: Option<u32>,
    drop: bool,
    counters: Option<Arc<CountersInner>>,
}

impl FlowRule {
    /// A rule for all packets on a port, counting from 1.
    pub fn new(port: u8) -> Self {
        Self {
            port,
            priority: 0,
            kind: FlowKind::NORMAL,
            flags: FlowFlags::empty(),
            headers: Vec::new(),
            tag: None,
            drop: false,
            counters: None,
        }
    }

    /// The priority among rules; 0, the highest, if not set.
    #[must_use]
    pub fn priority(mut self, priority: u16) -> Self {
        self.priority = priority;
        self
    }

    /// The kind of the rule; [`NORMAL`](FlowKind::NORMAL) if not set.
    #[must_use]
    pub fn kind(mut self, kind: FlowKind) -> Self {
        self.kind = kind;
        self
    }

    /// The flags of the rule.
    #[must_use]
    pub fn flags(mut self, flags: FlowFlags) -> Self {
        self.flags |= flags;
        self
    }

    /// Adds a header to match.
    #[must_use]
    pub fn header(mut self, header: FlowSpec) -> Self {
        self.headers.push((header, false));
        self
    }

    /// Adds a header to match in the payload of a tunnel.
    #[doc(alias = "IBV_FLOW_SPEC_INNER")]
    #[must_use]
    pub fn inner_header(mut self, header: FlowSpec) -> Self {
        self.headers.push((header, true));
        self
    }

    /// Adds an Ethernet header.
    #[must_use]
    pub fn eth(self, header: Matching<EthFilter>) -> Self {
        self.header(FlowSpec::Eth(header))
    }

    /// Adds an IPv4 header.
    #[must_use]
    pub fn ipv4(self, header: Matching<Ipv4Filter>) -> Self {
        self.header(FlowSpec::Ipv4(header))
    }

    /// Adds an IPv6 header.
    #[must_use]
    pub fn ipv6(self, header: Matching<Ipv6Filter>) -> Self {
        self.header(FlowSpec::Ipv6(header))
    }

    /// Adds a TCP header.
    #[must_use]
    pub fn tcp(self, header: Matching<TcpUdpFilter>) -> Self {
        self.header(FlowSpec::Tcp(header))
    }

    /// Adds a UDP header.
    #[must_use]
    pub fn udp(self, header: Matching<TcpUdpFilter>) -> Self {
        self.header(FlowSpec::Udp(header))
    }

    /// Marks the packets: their completions carry the
    /// [tag](crate::cq::ExtendedCompletion::flow_tag).
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_TAG")]
    #[must_use]
    pub fn tag(mut self, tag: u32) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Drops the packets.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_DROP")]
    #[must_use]
    pub fn drop_packets(mut self) -> Self {
        self.drop = true;
        self
    }

    /// Counts the packets.
    #[doc(alias = "IBV_FLOW_SPEC_ACTION_COUNT")]
    #[must_use]
    pub fn count(mut self, counters: &Counters) -> Self {
        self.counters = Some(counters.share());
        self
    }

    /// The counters, for the flow to keep.
    pub(super) fn counters(&self) -> Option<Arc<CountersInner>> {
        self.counters.clone()
    }

    /// Calls `f` with the C form of the rule.
    pub(super) fn with_raw<R>(&self, f: impl FnOnce(*mut ffi::ibv_flow_attr) -> R) -> Result<R> {
        let mut buffer = Buffer::new();
        for (header, inner) in &self.headers {
            header.write(&mut buffer, *inner);
        }
        if let Some(tag_id) = self.tag {
            buffer.push(|size| ibv_flow_spec_action_tag {
                type_: SpecType::IBV_FLOW_SPEC_ACTION_TAG,
                size,
                tag_id,
            });
        }
        if self.drop {
            buffer.push(|size| ibv_flow_spec_action_drop {
                type_: SpecType::IBV_FLOW_SPEC_ACTION_DROP,
                size,
            });
        }
        if let Some(counters) = &self.counters {
            buffer.push(|size| ibv_flow_spec_counter_action {
                type_: SpecType::IBV_FLOW_SPEC_ACTION_COUNT,
                size,
                counters: counters.raw.as_ptr(),
            });
        }
        let (specs, size) = buffer.counts();
        let (Ok(num_of_specs), Ok(size)) = (u8::try_from(specs), u16::try_from(size)) else {
            let reason = format!("a rule of {specs} parts");
            let kind = io::ErrorKind::InvalidInput;
            return Err(Error::refused("ibv_create_flow", kind, reason));
        };
        let mut attr = ffi::ibv_flow_attr::zeroed();
        attr.type_ = ibv_flow_attr_type(self.kind.0);
        attr.size = size;
        attr.priority = self.priority;
        attr.num_of_specs = num_of_specs;
        attr.port = self.port;
        attr.flags = self.flags.bits();
        Ok(f(buffer.finish(attr)))
    }
}

impl fmt::Display for FlowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, port, headers) = (self.kind, self.port, self.headers.len());
        write!(f, "{kind:?}, port {port}, {headers} headers")
    }
}
