//! Safe RDMA connection management: librdmacm, typed by phase.
//!
//! For blocking use, the API resembles [`std::net`]: [`connect`] and [`Listener::bind`] create an [`Endpoint`],
//! a queue pair with all resources.
//!
//! ```
//! # let _server = doctest::server();
//! let mut endpoint = cm::connect("10.9.0.1:7471")?;
//! endpoint.post_send(endpoint.reg_msgs(*b"hello")?)?;
//! endpoint.send_comp()?.ok().expect("the send failed");
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! All other use is driven by events. An identifier is one end of a future connection. Asynchronous calls
//! consume the identifier, and the final event returns the identifier in the next phase. Calls invalid in a
//! phase do not compile.
//!
//! ```
//! # let _server = doctest::server();
//! use std::{net::SocketAddr, time::Duration};
//!
//! use cm::{ConnParam, Event, EventChannel};
//! use verbs::op;
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
//! let qp = id.init_qp(pd.qp_builder::<verbs::Rc>(&cq, &cq).create()?)?;
//! id.resolve_route(TIMEOUT)?;
//! let Event::RouteResolved(id) = channel.wait()? else { panic!("no route") };
//! id.connect(&qp, &ConnParam::new())?;
//! let Event::ConnectResponse(response) = channel.wait()? else { panic!("not accepted") };
//! let mut connection = response.establish(qp)?;
//! connection.qp_mut().post(op::Send::new(pd.register_buf(*b"hello")?))?;
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! [`event_loop`] runs a protocol over any number of connections on one thread, on top of these events.
//!
//! # The phases of an identifier
//!
//! ```text
//! active:   Idle ─resolve_addr▶ AddrResolved ─resolve_route▶ RouteResolved
//!           ─connect▶ Responded ─establish▶ Connection
//!
//! passive:  Idle ─listen▶ Listening, and for each request of a peer:
//!           Requested ─accept▶ Connected ─Connection::new▶ Connection
//! ```
//!
//! Datagrams ([`PortSpace::Udp`]) need an exchange of addresses instead of a connection:
//!
//! ```text
//! active:   … RouteResolved ─resolve_service▶ ServiceResolved, and a DatagramPeer
//!
//! passive:  Requested ─accept▶ Answered
//! ```
//!
//! An identifier with a resolved address can also [join](CmId::join_multicast) multicast groups.
//!
//! Each arrow except `listen`, `establish`, `Connection::new`, and `accept` for datagrams, ends with an
//! [`Event`]. In between the identifier belongs to the [`EventChannel`], where the call can be
//! [cancelled](EventChannel::cancel). After a failed resolution the identifier returns in the previous phase;
//! after a failed connection the identifier is [`Closed`](phases::Closed), and can only be dropped.
//!
//! The program owns the queue pair at all times: `verbs` creates the queue pair, and this crate moves the
//! queue pair to RTS with the attributes of the connection manager. librdmacm never accesses the queue pair.
//!
//! # Ends of connections
//!
//! A connection ends by a disconnect of either side, without a cause, or by a [`ConnectFailure`]. Every way of using connections
//! has the cause:
//!
//! | connection | cause |
//! |---|---|
//! | [`Endpoint`], on private or shared queues; `tokio::Endpoint`, `tokio::SendHalf` and `tokio::RecvHalf` | `end_cause`, and [`ConnectFailure::of`] the error `NotConnected` of calls without requests in flight |
//! | [`DatagramEndpoint`] | the same, at the removal of the device |
//! | [`event_loop`] | [`Failure::Connect`](event_loop::Failure::Connect) in [`connection_failed`](event_loop::Protocol::connection_failed) |
//! | identifiers of a channel | the `cause` of [`Event::Disconnected`], [`Event::DeviceRemoval`] |
//! | [`Listener`] | [`ConnectFailure::of`] the error of `request` and `accept`, at the removal of the device |
//!
//! # Safety guarantees
//!
//! - Events own all data. Events are acknowledged when read, so no call waits for an acknowledgement, and an
//!   identifier can be dropped at any time, in any phase.
//! - Events come from the kernel, some triggered by a peer. An event without meaning in the identifier's
//!   phase is reported, and changes nothing.
//! - An identifier keeps the channel alive, and a [`Context`](verbs::Context) keeps librdmacm's device open.
//!
//! # Features
//!
//! - `bindgen` (default): regenerate the bindings from the installed headers; see `ibverbs-sys`.
//! - `dlopen`: libibverbs and librdmacm are loaded at the first call; see `verbs`.
//! - `tokio`: connecting, accepting and waiting in tasks. Import names of this crate one by one: `use cm::*` would import the
//!   module `tokio` too, and hide the crate `tokio`.
//! - `tracing`: a span for each identifier, with events; see below.
//!
//! # Tracing
//!
//! With the feature `tracing`, each identifier, so each connection, has a span `cm_id` of the crate `tracing`, with the
//! identifier's [key](CmId::key), the peer's address and the number of the queue pair. Steps are events at the level `DEBUG`, and
//! failures at `WARN`, with the target `cm`. The feature also enables the events of [`verbs`]. Posting and polling emit nothing.
//!
//! The example `kv-client`, with `RUST_LOG=cm=debug`, without the times:
//!
//! ```text
//! DEBUG cm_id{key=1}: cm: created space=Tcp
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480}: cm: resolving the address
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480}: cm: address resolved local=10.9.0.2:32768 gid=::ffff:10.9.0.2
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480}: cm: resolving the route
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480}: cm: route resolved gid=::ffff:10.9.0.2 peer_gid=::ffff:10.9.0.1
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480 qp=0xab04fc}: cm: requesting the connection
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480 qp=0xab04fc}: cm: accepted by the peer peer_qp=0xcb9f33
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480 qp=0xab04fc}: cm: queue pair ready to send peer_qp=0xcb9f33 peer_gid=::ffff:10.9.0.1 mtu=4096
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480 qp=0xab04fc}: cm: established
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480 qp=0xab04fc}: cm: disconnecting
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480 qp=0xab04fc}: cm: disconnected
//! DEBUG cm_id{key=1 peer=10.9.0.1:7480 qp=0xab04fc}: cm: destroyed
//! ```
//!
//! No lock of this crate is held while a subscriber runs.
//!
//! # Coming from C
//!
//! A search of this documentation for the name of a C function finds the counterpart; [`functions`] has a
//! table of all.
//!
//! # Limits
//!
//! Extended reliable connections ([`EventChannel::create_xrc_id`]) and InfiniBand addresses ([`IbAddr`]) need
//! a device with such support. Soft-RoCE has none, so tests cover only the requests for the former, compared
//! with C, and for the latter the layout and the errors.

mod accept;
mod addr;
mod addrinfo;
mod by_address;
mod channel;
mod connect;
mod connection;
mod contexts;
mod datagram;
mod depths;
mod device;
mod dial;
mod endpoint;
mod event;
pub mod event_loop;
#[doc = include_str!("../FUNCTIONS.md")]
pub mod functions {}
mod dispatch;
mod half_open;
mod ib_addr;
mod id;
mod migrate;
mod multicast;
mod options;
mod param;
mod path;
mod phase;
pub mod phases;
mod port_space;
mod posted;
mod qp;
mod reaper;
mod registry;
mod resolve;
#[cfg(feature = "tokio")]
pub mod tokio;
mod trace;
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
    DatagramEndpoint, Endpoint, EndpointBuilder, Incoming, Listener, Outgoing, PrivateQueues,
    QueueChoice, Refusals, SharedQueues, connect,
};
pub use event::{ConnectFailure, Event, event_name};
pub use ib_addr::IbAddr;
pub use id::CmId;
pub use multicast::{Membership, MulticastGroup};
pub use param::{ConnParam, PeerParam};
pub use path::PathRecord;
pub use port_space::PortSpace;
pub use reaper::Reaper;
pub use registry::Key;
pub use verbs::{
    Error, Result,
    error::{PostError, Refused},
};
pub use xrc::{XrcConnection, XrcEnd};
