//! Lets a program that uses TCP or UDP use rsockets, unchanged:
//!
//! ```sh
//! LD_PRELOAD=librspreload.so program
//! ```
//!
//! Its sockets over IPv4 and IPv6 are rsockets then, and both ends have to be so. Where that is not
//! possible, they are TCP as before: without an RDMA device, for addresses that are of none, and when
//! a blocking `connect` finds nobody. A socket that was bound is bound again. A socket for datagrams
//! is UDP as before when it connects or sends to somebody whom no RDMA device leads to.
//!
//! # What it heeds
//! - `RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE`: the depths of the queues, and the most bytes that a
//!   request carries itself, for each new socket.
//! - `/etc/rdma/rsocket/preload_config`: lines of a program's name, a domain, a type and a protocol.
//!   If there are any, only sockets that match one are rsockets. `*` is everything; a program's
//!   name may be its beginning.
//! - `RDMAV_FORK_SAFE`: with anything but 0, the program may fork, as servers do for each connection.
//!   Streams begin over TCP then, and are moved to RDMA when there is something to be sent or
//!   received, by whichever process does that. Both ends have to do so. Whoever has accepted moves
//!   before it waits, too, and may have to wait for its peer to do the same.
//!
//! - `RSOCKET_PRELOAD_LOG`: says which sockets use RDMA and which TCP or UDP, and why, with one line for each:
//!   `1` on standard error, anything else in a file of that name. Not set, nothing is said.
//!
//! # Limits
//! - A peer that an RDMA device leads to, but that does not use rsockets, does not understand the
//!   datagrams: see `preload_config`.
//! - In a child, what was an rsocket is none, unless `RDMAV_FORK_SAFE` says that there are children and it has
//!   not been used yet: calls on it fail with `ENOTCONN`, and standard error says why. rsync is one such
//!   program, since two of its processes use one connection.
//!   What a child hands on by `exec` before it has used it stays TCP.
//! - With `RDMAV_FORK_SAFE`, a client that speaks first waits for a server that does not know of
//!   this, as with the original. At each port, one connection is moved at a time.
//! - A listener does not take TCP connections as well.
//! - A nonblocking `connect` that fails does not turn to TCP.
//! - Not seen: `splice`, `dprintf`, `io_uring`, and system calls past the C library. A write to an rsocket by
//!   such a call fails, with `ENOTCONN` or `EPIPE`, or with `EAGAIN` until there is room; a read finds nothing
//!   (`EAGAIN`) or an end. Where a read has found an end that was none, standard error says so when the socket
//!   is closed. Calls by `syscall(2)` are seen, but one that makes a socket.
//! - Programs of Go's own compiler (`gc`) call the kernel past the C library for everything, and most are linked
//!   statically, so that no library can be loaded into them: their sockets stay TCP. Those that load this library
//!   say so where `RSOCKET_PRELOAD_LOG` is set. Built with `gccgo` (or `go build -compiler gccgo`), the same
//!   programs use rsockets.
//!
//! # Waiting
//! To the kernel, what stands for an rsocket is a local socket, which is ready when the rsocket is. So an
//! `epoll` with rsockets is as any other: it may be duplicated, inherited, in another one, and waited for by
//! `select`; and it tells of edges and ends (`EPOLLET`, `EPOLLRDHUP`). A thread of this library keeps it up to
//! date from the first `epoll_ctl` on; until then, and for `poll` and `select`, the calling thread looks
//! itself.
//!
//! `read` and the like on what is not an rsocket cost one look at a table, which takes no lock, so
//! that they can be called in signal handlers as before.

mod config;
mod datagrams;
mod epoll;
mod files;
mod fork;
mod golang;
mod inherited;
mod log;
mod numbered;
mod sockets;
mod stdio;
mod table;
mod wait;
