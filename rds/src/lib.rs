//! Reliable Datagram Sockets in user space, wire-compatible with the Linux kernel's RDS over IB.
//!
//! A [`Socket`] sends messages to other sockets like [`std::net::UdpSocket`], but delivery is
//! reliable: each message arrives once and in order. The receiver is another [`Socket`] or an
//! `AF_RDS` socket of a Linux kernel with the module `rds_rdma`.
//!
//! ```
//! # let _fabric = doctest::lasting_host();
//! # let peer = rds::Socket::bind("10.9.0.2:4000")?;
//! let socket = rds::Socket::bind("10.9.0.1:4000")?;
//! socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap())?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! An [`Engine`] owns the state shared by sockets: bound addresses, connections and a thread. An
//! address belongs to one engine per host, so concurrent processes need one address each, for
//! example from `ip address add 10.9.0.77/24 dev eth0`. Binding fails while the kernel module
//! `rds_rdma` is loaded, because the module listens on every address.
//!
//! [`Socket::alloc`] and [`Socket::export`] create memory for RDMA by peers. [`asynchronous::Socket`] wraps
//! a socket for tasks, under any runtime. When an RDMA device is removed, sockets on its addresses
//! reconnect once the device returns; memory must be allocated and exported again.
//!
//! The protocol without I/O is a crate of its own, `rds-proto`, re-exported as [`proto`].
//!
//! # Features
//!
//! - `bindgen` (default): regenerate the bindings from the installed headers; see `ibverbs-sys`.
//! - `dlopen`: libibverbs and librdmacm are loaded at the first call; see [`verbs`].
//! - `tracing`: each connection attempt has a span `connection` of the crate `tracing`, with the addresses. Steps of
//!   connections are events at the level `DEBUG`, and failures at `WARN`, with the target `rds`; those of [`cm`] are enabled
//!   too. Sending and receiving emit nothing. A subscriber must not use sockets of this crate, since it may run while the
//!   engine is locked.
//!
//! # Limits
//!
//! Not implemented: credits, which kernels do not advertise, and fragments of other sizes than 4096
//! bytes.
#![forbid(unsafe_code)]

pub mod asynchronous;
mod device;
mod engine;
mod errno;
mod ib_connection;
mod loopback;
mod outbound;
mod slots;
mod socket;
mod trace;

pub use engine::{Engine, EngineOptions};
pub use errno::errno;
pub use rds_proto as proto;
pub use rds_proto::{
    connection::{ConnectionStats, Status},
    info,
    node::{NodeStats, Route, SocketStats},
    wire::Cookie,
};
pub use socket::{
    Atomic, Event, ExportOptions, Interest, Latency, Message, Notification, Rdma, RdmaBuffer,
    Readiness, RecvMeta, SendOptions, Sent, Socket,
};
