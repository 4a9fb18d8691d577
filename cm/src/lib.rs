//! Safe RDMA connection management: librdmacm, typed by phase.
//!
//! Where waiting is fine, it reads like `std::net`: [`connect`] and [`Listener::bind`] make an
//! [`Endpoint`], which has a queue pair and everything that it needs.
//!
//! ```no_run
//! let mut endpoint = cm::connect("10.9.0.1:7471")?;
//! endpoint.post_send(endpoint.reg_msgs(*b"hello")?)?;
//! endpoint.send_comp()?.ok().expect("it was sent");
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! Everything else is driven by events.
//! An identifier is one end of a connection to be. What takes time consumes it, and the event that
//! ends it gives it back, in its next phase; what a phase does not allow does not compile.
//!
//! ```no_run
//! use std::{net::SocketAddr, time::Duration};
//!
//! use cm::{ConnParam, Event, EventChannel};
//! use verbs::{Rc, op::Send};
//!
//! const TIMEOUT: Duration = Duration::from_secs(2);
//!
//! let server: SocketAddr = "10.9.0.1:7471".parse().unwrap();
//! let channel = EventChannel::new()?;
//! channel.create_id()?.resolve_addr(None, server, TIMEOUT)?;
//! let Event::AddrResolved(id) = channel.wait()? else { panic!("no such host") };
//! let ctx = id.context()?;
//! let pd = ctx.alloc_pd()?;
//! let mut cq = ctx.cq_builder(16).waitable().create()?;
//! let qp = id.init_qp(pd.qp_builder::<Rc>(&cq, &cq).create()?)?;
//! id.resolve_route(TIMEOUT)?;
//! let Event::RouteResolved(id) = channel.wait()? else { panic!("no way there") };
//! id.connect(&qp, &ConnParam::new())?;
//! let Event::ConnectResponse(response) = channel.wait()? else { panic!("not accepted") };
//! let mut connection = response.establish(qp)?;
//! connection.qp_mut().post(Send::new(pd.register_buf(*b"hello")?))?;
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! # The phases of an identifier
//!
//! ```text
//! active:   Idle ─resolve_addr▶ AddrResolved ─resolve_route▶ RouteResolved ─connect▶ Responded ─establish▶ Connection
//!
//! passive:  Idle ─listen▶ Listening
//!                            └▷ Requested ─accept▶ Connected ─Connection::new▶ Connection
//! ```
//!
//! Datagrams ([`PortSpace::Udp`]) need no connection, but somebody who says where they go:
//!
//! ```text
//! active:   … RouteResolved ─resolve_service▶ ServiceResolved, and a DatagramPeer
//!
//! passive:  Requested ─accept▶ Answered
//! ```
//!
//! An identifier whose address is resolved can also [join](CmId::join_multicast) multicast groups.
//!
//! Each arrow but `listen`, `establish`, `Connection::new`, and `accept` for datagrams, ends with an [`Event`]. Meanwhile the
//! identifier belongs to its [`EventChannel`], where it can be [cancelled](EventChannel::cancel).
//! An address or a route that is not found brings it back as it was; a connection that fails brings
//! it back [`Closed`](phases::Closed), of no more use.
//!
//! The queue pair is the program's all the time: `verbs` makes it, and this crate brings it up with
//! the attributes that the connection manager knows. librdmacm never touches it.
//!
//! # What is safe about it
//!
//! - Events own what they say. They are acknowledged as they are taken, so nothing waits for
//!   somebody to be done with one, and an identifier can be dropped at any time, in any phase.
//! - Events come from the kernel, some at a peer's wish. One that has no meaning for what an
//!   identifier is doing is reported, and changes nothing.
//! - An identifier keeps its channel, and a [`Context`](verbs::Context) keeps the device that
//!   librdmacm has opened.
//!
//! # Features
//!
//! - `bindgen` (default): regenerate the bindings from the installed headers; see `ibverbs-sys`.
//! - `tokio`: connecting, accepting and waiting in tasks.
//!
//! # Coming from C
//!
//! Searching this documentation for the name of a C function finds what it is here; a table of all
//! is in [`functions`].
//!
//! # Limits
//!
//! Extended reliable connections ([`EventChannel::create_xrc_id`]) and InfiniBand's own addresses
//! ([`IbAddr`]) want a device that has them. Soft-RoCE does not, so of the former only that they are
//! asked for as C does is tested, and of the latter their layout and how they fail.

mod accept;
mod addr;
mod addrinfo;
mod channel;
mod connect;
mod connection;
mod contexts;
mod datagram;
mod device;
mod dial;
mod endpoint;
mod event;
#[doc = include_str!("../FUNCTIONS.md")]
pub mod functions {}
mod ib_addr;
mod id;
mod intake;
mod migrate;
mod multicast;
mod options;
mod param;
mod path;
mod phase;
pub mod phases;
mod port_space;
mod qp;
mod registry;
mod resolve;
#[cfg(feature = "tokio")]
pub mod tokio;
mod xrc;

pub use accept::ConnectRequest;
pub use addr::Addr;
pub use addrinfo::{AddrHints, AddrInfo};
pub use channel::EventChannel;
pub use connect::ConnectResponse;
pub use connection::Connection;
pub use contexts::devices;
pub use datagram::{DatagramPeer, Destination, ServiceRequest};
pub use endpoint::{
    DatagramEndpoint, Endpoint, EndpointBuilder, Incoming, Listener, Outgoing, connect,
};
pub use event::{ConnectFailure, Event, event_name};
pub use ib_addr::IbAddr;
pub use id::CmId;
pub use multicast::{Membership, MulticastGroup};
pub use param::{ConnParam, PeerParam};
pub use path::PathRecord;
pub use port_space::PortSpace;
pub use registry::Key;
pub use verbs::{Error, Refused, Result};
pub use xrc::{XrcConnection, XrcEnd};
