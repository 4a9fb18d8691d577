//! The connection manager without I/O and without a clock: the communication manager of `InfiniBand` and, above it, the
//! port spaces and IP addresses of `rdma_cm(7)`.
//!
//! A [`Manager`] belongs to one host. It takes calls of the program, messages of peers and the time, and gives messages and
//! events:
//!
//! | in | out |
//! |---|---|
//! | identifiers: [`Manager::create_id`], [`Manager::bind`], [`Manager::connect`] … | [`Manager::poll_event`], events |
//! | messages: [`Manager::handle_message`] | [`Manager::transmit`], messages |
//! | time: [`Manager::handle_timeout`] | [`Manager::next_timeout`], when to call that |
//!
//! Messages are MADs of 256 bytes that travel as datagrams between queue pairs 1; they can be lost, so each that expects an
//! answer is sent again until its retries are used up.
//!
//! Source: InfiniBand Architecture Specification, volume 1, chapter 12, and annex A11 (RDMA IP CM service). States and events
//! are those that Linux's `rdma_cm` shows to programs.
#![forbid(unsafe_code)]

mod active;
mod attributes;
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
mod reply;
mod request;
mod resolve;
mod responses;
mod service;
mod timers;

pub use error::CmError;
pub use event::{CmEvent, GroupId, Occurrence};
pub use id::IdNum;
pub use ip_header::IpCmHeader;
pub use mad::MAD_LEN;
pub use manager::Manager;
pub use message::{CommIds, Message};
pub use param::{ConnParam, Ece};
pub use port_space::PortSpace;
pub use private_data::PrivateData;
pub use reply::Reply;
pub use request::Request;
pub use resolve::Reach;
pub use responses::{Mra, Reject, Rejected};
pub use service::{ServiceReply, ServiceRequest};
