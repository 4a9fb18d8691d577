//! Lets a program that uses the kernel's RDS sockets use RDS in user space, unchanged:
//!
//! ```sh
//! LD_PRELOAD=librdspreload.so rds-ping 10.9.0.2
//! ```
//!
//! What it makes with `socket(AF_RDS, SOCK_SEQPACKET, 0)` is an [`rds::Socket`] then, and the
//! kernel need not know RDS at all: it must not have the module `rds_rdma` loaded, which would have
//! the port. Without an RDMA device, sockets are the kernel's as before.
//!
//! # What works
//! `bind`, `connect`, names, all ways of sending and receiving one message, control messages, the
//! options of `SOL_SOCKET` that sockets for messages have, those of `SOL_RDS`, `RDS_INFO_*`,
//! `SIOCRDSSETTOS` and the like, `poll`, `ppoll` and `select`, `fcntl`, and duplicates of descriptors.
//! What fails does with the number that the kernel gives.
//!
//! # Limits
//! - One process at a time for each address: see [`rds::Engine`].
//! - In a child, what was a socket of its parent's is none. It can make others if none of the parent's
//!   has been used before, or after `exec`. So that this is not too narrow, the first address of a process
//!   is not taken before the socket is used, or for a tenth of a second: that another process has it is
//!   told then.
//! - `RDS_INFO_*` tells of the process itself.
//! - Of several threads that wait in `recv` and the like at once, only one notices a signal. After a handler,
//!   calls go on if all handlers have `SA_RESTART`, since it is not known which has run.
//! - `epoll` sees what can be received; that something can be sent, it always says.
//! - Not seen: `sendmmsg`, `recvmmsg`, `io_uring`.

mod address;
mod binding;
mod control;
mod files;
mod memory;
mod messages;
mod options;
mod sockets;
mod table;
mod wait;
