//! Reliable Datagram Sockets without I/O: frames, completions and connection events in, requests out.
//!
//! The wire format is that of RDS 3.1 and 4.1 over RDMA in Linux: the private data of a connection, the
//! 48-byte header of each frame with its extensions, and congestion maps (`net/rds/rds.h` and
//! `net/rds/ib.h` in the kernel). Control messages and `RDS_INFO_*` have the layouts of
//! `include/uapi/linux/rds.h`.
//!
//! This crate depends on no device, thread or clock. A driver such as the crate `rds` owns these and
//! the memory, posts the requests, and reports completions and the time. So the same code runs over
//! RDMA, in a simulator (`tests/simulator`) and under a fuzzer (`tests/fuzz`). Input from peers cannot
//! cause a panic.
//!
//! | module | is |
//! |---|---|
//! | [`wire`] | wire formats: headers, extensions, private data, congestion maps |
//! | [`connection`] | reliable messages between two hosts, across losses of the RDMA connection |
//! | [`link`] | when to dial, and which of two crossing requests wins |
//! | [`node`] | the sockets of a process, and its connections |
//! | [`control`], [`info`] | control messages and `RDS_INFO_*` of the kernel's socket API |
//!
//! One message between two hosts:
//!
//! ```
//! use std::{num::NonZero, time::Duration};
//!
//! use rds_proto::SocketId;
//! use rds_proto::connection::{Body, Connection, Draft, Message, Received, Request, Settings};
//! use rds_proto::wire::{CongestionMap, Flags, Header};
//!
//! let settings = Settings::default();
//! let mut sender = Connection::<&[u8], &[u8]>::new(&settings, NonZero::new(100).unwrap());
//! let mut receiver = Connection::<&[u8], &[u8]>::new(&settings, NonZero::new(200).unwrap());
//! sender.established(Duration::ZERO, 0);
//! receiver.established(Duration::ZERO, 0);
//!
//! let draft = Draft::new(5, &b"hello"[..]);
//! let message = Message { owner: SocketId(1), from: 4000, to: 4001, draft };
//! assert!(matches!(sender.send(message, false), Ok(100)));
//!
//! let map = CongestionMap::default();
//! let mut received = Vec::new();
//! // Each request is a frame to post; the congestion map of the sender comes first.
//! while let Some(work) = sender.transmit(u32::MAX, || &map) {
//!     let Request::Frame { header, body, .. } = work.request else {
//!         unreachable!("the message has no operation");
//!     };
//!     if let Body::Message { payload, .. } = body {
//!         assert_eq!(Header::decode(&header, false).unwrap().sequence, 100);
//!         let message = receiver.received(Duration::ZERO, &header, payload)?;
//!         let Some(Received::Message(message)) = message else {
//!             unreachable!("one frame is the whole message");
//!         };
//!         received.extend_from_slice(message.bodies.as_slice()[0]);
//!     }
//! }
//! assert_eq!(received, b"hello");
//! # Ok::<(), rds_proto::connection::Violation>(())
//! ```
#![forbid(unsafe_code)]

pub mod connection;
pub mod control;
mod host;
pub mod info;
pub mod link;
pub mod node;
mod pending_set;
mod socket_id;
pub mod wire;

pub use host::Host;
pub use pending_set::PendingSet;
pub use socket_id::SocketId;
