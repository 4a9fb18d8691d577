//! The rsockets protocol: sockets over RDMA, wire-compatible with librdmacm.
//!
//! A [`Stream`] is a byte stream like [`std::net::TcpStream`], and a [`Listener`] accepts connections like
//! [`std::net::TcpListener`]. RDMA writes carry the bytes into a buffer of the peer. Programs using
//! `rsocket(7)` can be at the other end.
//!
//! ```
//! # let _fabric = doctest::lasting_host();
//! use std::io::{Read, Write};
//!
//! let listener = rsocket::Listener::bind("10.9.0.1:7471")?;
//! let mut client = rsocket::Stream::connect("10.9.0.1:7471")?;
//! let (mut server, _) = listener.accept()?;
//! client.write_all(b"hello")?;
//! let mut hello = [0; 5];
//! server.read_exact(&mut hello)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! [`Socket`] serves programs that choose the kind of socket at run time; [`poll()`] and [`EventSet`] wait
//! for many sockets at once. The C library `rsocket-capi` is built on these.
//!
//! The protocol without I/O is a crate of its own, `rsocket-proto`, re-exported as [`proto`].
//!
//! # Features
//!
//! - `bindgen` (default): regenerate the bindings from the installed headers; see `ibverbs-sys`.
//! - `dlopen`: libibverbs and librdmacm are loaded at the first call; see [`verbs`].
//! - `tokio`: the module of that name, with streams, listeners and datagram sockets for tasks.
//! - `tracing`: each stream has a span `stream` of the crate `tracing`, with the addresses and the number of the queue pair.
//!   Steps of connections are events at the level `DEBUG`, and failures at `WARN`, with the target `rsocket`; those of [`cm`] are
//!   enabled too. Sending and receiving emit nothing. A subscriber must not use sockets of this crate, since it may run while
//!   the state of a stream is locked.
//!
//! # Limits
//!
//! Streams interoperate with the C library over RoCE and iWARP. Datagrams interoperate with other programs
//! on this crate only: over RoCE, the C library's datagrams fail in every version. iWARP has no datagrams.
#![forbid(unsafe_code)]

mod admission;
mod backlog;
mod config;
mod connecting;
mod connection;
mod datagram;
mod device;
mod endpoint;
mod engine;
mod errno;
mod exit;
mod failure;
mod listener;
mod mapped;
mod memory;
mod names;
mod options;
mod queue;
mod ready_list;
mod setup;
mod socket;
mod stream;
mod timers;
#[cfg(feature = "tokio")]
pub mod tokio;
mod trace;
mod unsent;
mod waiters;
mod waiting;

pub use backlog::Refusals;
pub use cm::PathRecord;
pub use datagram::RecvMeta;
pub use device::ProtectionGroup;
pub use errno::errno;
pub use exit::{disconnect_all, disconnect_at_exit, exit_linger};
pub use failure::ConnectionFailure;
pub use listener::{Incoming, Listener};
pub use mapped::MappedBuffer;
pub use options::Options;
pub use rsocket_proto as proto;
pub use rsocket_proto::{datagram::DatagramStats, stream::StreamStats};
pub use socket::{
    Event, EventSet, Family, PollEntry, PollEvents, RecvFlags, Registration, SendOptions, Sleep,
    SleepEntry, Socket, SocketStats, poll, poll_by,
};
pub use stream::Stream;
