//! Flow steering: rules for the packets a queue pair receives.

mod buffer;
mod rule;
mod spec;
mod steering;

pub use rule::{FlowFlags, FlowKind, FlowRule};
pub use spec::{
    EspFilter, EthFilter, FlowSpec, GreFilter, Ipv4ExtFilter, Ipv4Filter, Ipv6Filter, Matching,
    MplsFilter, TcpUdpFilter, TunnelFilter,
};
pub use steering::{Flow, FlowTarget};

pub(crate) use steering::Steerable;
