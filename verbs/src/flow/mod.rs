//! Flow steering: rules for the packets a queue pair receives.
//!
//! | item | is |
//! |---|---|
//! | [`FlowRule`], [`FlowKind`], [`FlowFlags`] | a rule |
//! | [`FlowSpec`], [`Matching`] | a condition of a rule, on fields of a packet |
//! | [`EthFilter`], [`Ipv4Filter`], [`Ipv4ExtFilter`], [`Ipv6Filter`], [`TcpUdpFilter`] | fields of headers |
//! | [`EspFilter`], [`GreFilter`], [`MplsFilter`], [`TunnelFilter`] | fields of tunnels and encryption |
//! | [`Flow`], [`FlowTarget`] | a rule in force; its queue pair |
//!
//! # References
//! [ibv_create_flow(3)](https://man7.org/linux/man-pages/man3/ibv_create_flow.3.html)

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
