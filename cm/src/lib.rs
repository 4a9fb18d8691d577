//! Safe RDMA connection management: the whole of librdmacm, typed by phase.

mod accept;
mod addr;
mod channel;
mod connect;
mod connection;
mod contexts;
mod event;
mod id;
mod param;
mod phase;
mod qp;
mod registry;

pub use accept::ConnectRequest;
pub use channel::EventChannel;
pub use connect::ConnectResponse;
pub use connection::Connection;
pub use event::{ConnectFailure, Event};
pub use id::{CmId, phases};
pub use param::{ConnParam, PeerParam};
pub use registry::Key;
pub use verbs::{Error, Refused, Result};
