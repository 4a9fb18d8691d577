//! The connection manager without I/O and without a clock: the communication manager of `InfiniBand` and, above it, the
//! port spaces and IP addresses of `rdma_cm(7)`.
//!
//! A [`Manager`] belongs to one host. Inputs are calls of the program, messages of peers and the time; outputs are
//! messages and events:
//!
//! | in | out |
//! |---|---|
//! | identifiers: [`Manager::create_id`], [`Manager::bind`], [`Manager::connect`] … | [`Manager::poll_event`], events |
//! | messages: [`Manager::handle_message`] | [`Manager::transmit`], messages |
//! | time: [`Manager::handle_timeout`] | [`Manager::next_timeout`], the next deadline |
//!
//! Messages are MADs of 256 bytes, sent as datagrams between queue pairs 1. Messages can be lost, so a message with an
//! expected answer is retransmitted until answered or out of retries.
//!
//! Source: InfiniBand Architecture Specification, volume 1, chapter 12, and annex A11 (RDMA IP CM service). States and
//! events follow Linux's `rdma_cm`.
#![forbid(unsafe_code)]

mod active;
mod attributes;
mod claims;
mod connection;
mod datagram;
mod error;
mod event;
mod id;
mod incoming;
mod ip_header;
mod mad;
mod manager;
mod message;
mod multicast;
mod param;
mod passive;
mod port_space;
mod ports;
mod private_data;
mod remotes;
mod reply;
mod request;
mod resolve;
mod responses;
mod service;
mod timers;
mod timing;

pub use claims::Claims;
pub use error::CmError;
pub use event::{CmEvent, GroupId, Occurrence};
pub use id::IdNum;
pub use ip_header::IpCmHeader;
pub use mad::MAD_LEN;
pub use manager::{Manager, Unbound};
pub use message::{CommIds, Message};
pub use param::{ConnParam, Ece};
pub use port_space::PortSpace;
pub use private_data::PrivateData;
pub use reply::Reply;
pub use request::Request;
pub use resolve::Reach;
pub use responses::{Mra, Reject, RejectInfo, Rejected};
pub use service::{ServiceReply, ServiceRequest};
pub use timing::Timing;
