//! Reliable Datagram Sockets in user space, wire-compatible with the Linux kernel's RDS over IB.
//!
//! A [`Socket`] sends messages to any other, in the manner of [`std::net::UdpSocket`], but each
//! arrives, once, and in order. The other may be a socket of a Linux kernel with the module
//! `rds_rdma`.
//!
//! ```no_run
//! let socket = rds::Socket::bind("10.9.0.1:4000")?;
//! socket.send_to(b"hello", "10.9.0.2:4000".parse().unwrap())?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! An [`Engine`] has what sockets share. An address belongs to one engine on a host: programs that
//! use RDS at the same time have an address each, as in `ip address add 10.9.0.77/24 dev eth0`. Where
//! the kernel's module `rds_rdma` is loaded, it has all of them.
//!
//! Memory for peers to read and write is made by [`Socket::alloc`] and [`Socket::export`]. Tasks wait
//! with [`AsyncSocket`], under any runtime. Where a device is removed, sockets wait until there is
//! one again at their address; memory has to be made and exported anew.
//!
//! The protocol itself, without any input or output, is in [`proto`].
//!
//! | tested | where |
//! |---|---|
//! | frames, private data, control messages | beside each in `src/proto`; `tests/fuzz` |
//! | connections: once, in order, and what may go wrong | `src/proto/connection/tests`; `tests/simulator` |
//! | dialling, giving way, waiting | `src/proto/link.rs`; `tests/simulator` |
//! | what hosts tell, as kernels lay it out | `src/info` |
//! | sockets, congestion | `src/proto/node/tests.rs`; `tests/simulator`; `tests/device` |
//! | all of it against a kernel | `kernel_rds/interop.rs` in `examples/tests/two_hosts` |
//!
//! `tests/cases.md` says which case is shown by which test.
//!
//! Not in it: credits, which kernels do not advertise, and fragments of other sizes than 4096.
#![forbid(unsafe_code)]

mod asynchronous;
mod device;
mod engine;
mod errno;
mod event_fd;
mod ib_connection;
pub mod info;
mod loopback;
mod outbound;
pub mod proto;
mod slots;
mod socket;

pub use asynchronous::AsyncSocket;
pub use engine::{Engine, EngineOptions};
pub use errno::errno;
pub use proto::{connection::Status, wire::Cookie};
pub use socket::{
    Atomic, ExportOptions, Interest, Latency, Message, Notification, Rdma, RdmaBuffer, Readiness,
    Received, SendOptions, Sent, Socket,
};
