//! Makes an unchanged program use rsockets instead of TCP and UDP:
//!
//! ```sh
//! LD_PRELOAD=librspreload.so program
//! ```
//!
//! IPv4 and IPv6 sockets become rsockets; both ends must use this library or rsockets. Sockets fall back to
//! TCP where RDMA is impossible: without an RDMA device, for addresses of other interfaces, and when a
//! blocking `connect` finds no rsocket listener. A bound socket is bound again. A datagram socket falls back
//! to UDP when it connects or sends to an address beyond the reach of any RDMA device.
//!
//! # Configuration
//! - `RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE`: queue depths, and the maximum number of bytes sent inline, for
//!   each new socket.
//! - `/etc/rdma/rsocket/preload_config`: lines with a program name, a domain, a type and a protocol. With at
//!   least one line, only matching sockets become rsockets. `*` matches everything; a program name matches as
//!   a prefix.
//! - `RDMAV_FORK_SAFE`: with any value but 0, the program may fork, for instance for each connection of a
//!   server. Streams start over TCP, and the first process to send or receive on a stream moves the stream to
//!   RDMA. Both ends must set the variable. The accepting side also moves the stream before waiting, and may
//!   block until the peer does the same.
//! - `RSOCKET_PRELOAD_LOG`: logs for each socket whether RDMA, TCP or UDP is used, and why, in one line: `1`
//!   on standard error, any other value in a file of that name. Not set, nothing is logged.
//!
//! # Limits
//! - A peer with an RDMA device but without rsockets does not understand the datagrams: see `preload_config`.
//! - A child cannot use inherited rsockets, except with `RDMAV_FORK_SAFE` before the first use: calls fail
//!   with `ENOTCONN`, and standard error has the reason. rsync is such a program: two of its processes share
//!   a connection. A stream passed on through `exec` by a child before its use stays TCP.
//! - With `RDMAV_FORK_SAFE`, a client that sends first blocks if the server does not use the library, as with
//!   librdmacm. At each port, one connection is moved at a time.
//! - The exit of a process discards data that the peer's device has not acknowledged, as with librdmacm, if the
//!   socket was not closed before. `socat -u` is such a program: on a busy machine, the end of a file may be lost.
//! - A listener does not accept TCP connections.
//! - A nonblocking `connect` does not fall back to TCP.
//! - Not intercepted: `splice`, `dprintf`, `io_uring`, and system calls bypassing the C library. Such a write
//!   to an rsocket fails with `ENOTCONN` or `EPIPE`, or with `EAGAIN` until there is room; such a read fails
//!   with `EAGAIN` or finds an end of stream. After a false end of stream, standard error has a message when
//!   the socket is closed. Calls through `syscall(2)` are intercepted, except the creation of sockets.
//! - Programs built by Go's own compiler (`gc`) make all system calls directly, and most are linked
//!   statically and cannot load a library: their sockets stay TCP. Programs that do load this library log the
//!   fact with `RSOCKET_PRELOAD_LOG`. Built with `gccgo` (or `go build -compiler gccgo`), the same programs
//!   use rsockets.
//!
//! # Waiting
//! For the kernel, an rsocket's descriptor is a local socket with the readiness of the rsocket. An `epoll`
//! instance with rsockets therefore works as usual: duplicated, inherited, nested, watched by `select`,
//! edge-triggered (`EPOLLET`), and with `EPOLLRDHUP`. From the first `epoll_ctl` on, a thread of this library
//! keeps the readiness up to date; before, and for `poll` and `select`, the calling thread checks the rsocket
//! itself.
//!
//! Intercepted calls on other descriptors, such as `read`, cost one table lookup without a lock, and remain
//! callable in signal handlers.

mod config;
mod datagrams;
mod epoll;
mod files;
mod fork;
mod golang;
mod inherited;
mod ioctl;
mod log;
mod sendfile;
mod sockets;
mod stdio;
mod syscall;
mod table;
mod wait;
