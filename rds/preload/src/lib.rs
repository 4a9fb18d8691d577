//! Runs unchanged programs for the kernel's RDS sockets on RDS in user space:
//!
//! ```sh
//! LD_PRELOAD=librdspreload.so rds-ping 10.9.0.2
//! ```
//!
//! The dynamic linker splits `LD_PRELOAD` at spaces and colons: give a library in such a folder by a link.
//!
//! `socket(AF_RDS, SOCK_SEQPACKET, 0)` then returns an [`rds::Socket`], and the kernel needs no
//! RDS. The module `rds_rdma` must not be loaded, because the module owns the port. Without an RDMA
//! device, sockets are the kernel's.
//!
//! # Supported
//! `bind`, `connect`, `getsockname`, `getpeername`, all calls to send and receive one message,
//! control messages, the options of `SOL_SOCKET` for datagram sockets, the options of `SOL_RDS`,
//! `RDS_INFO_*`, `SIOCRDSSETTOS` and `SIOCRDSGETTOS`, `poll`, `ppoll`, `select`, `fcntl`, and
//! duplicated descriptors. Errors have the kernel's `errno`.
//!
//! # Limits
//! - One process per address: see [`rds::Engine`].
//! - After a fork, sockets of the parent are unusable in the child. The child can create sockets if
//!   none of the parent's was used before the fork, or after `exec`. To permit a probing `bind`
//!   before a fork, the first bind of a process is deferred until the first use of the socket, or
//!   for 100 ms; only then is use of the address by another process reported.
//! - `RDS_INFO_*` covers the calling process only.
//! - Signals that arrive during a call are handled at its end, or end its wait. A cancelled thread leaves its call first.
//! - `epoll` reports readable sockets correctly, and every socket as writable.
//! - `RDS_GET_MR` succeeds without a connection, where the kernel's needs one of the destination (`ENODEV`, or `EOPNOTSUPP`): the
//!   memory is that of the engine, and any connection reaches it.
//! - Not interposed: `sendmmsg`, `recvmmsg`, `io_uring`.

mod address;
mod binding;
mod control;
mod files;
mod ioctl;
mod memory;
mod messages;
mod options;
mod sockets;
mod table;
mod wait;

interpose::cancellation!();
