//! Makes an unchanged program use rsockets instead of TCP and UDP:
//!
//! ```sh
//! LD_PRELOAD=librspreload.so program
//! ```
//!
//! The dynamic linker splits `LD_PRELOAD` at spaces and colons: give a library in such a folder by a link.
//!
//! IPv4 and IPv6 sockets become rsockets; both ends must use this library or rsockets. Sockets fall back to
//! TCP where RDMA is impossible: without an RDMA device, for addresses of other interfaces, and when
//! `connect` finds no rsocket listener; a nonblocking one tries TCP in the background. A bound socket is bound again, with the options set before. A datagram socket falls back
//! to UDP when it connects or sends to an address beyond the reach of any RDMA device. At loopback addresses, such as
//! 127.0.0.1 and `::1`, all sockets are TCP and UDP.
//!
//! # Configuration
//! - `RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE`: queue depths, and the maximum number of bytes sent inline, for
//!   each new socket.
//! - `/etc/rdma/rsocket/preload_config`: lines with a program name, a domain, a type and a protocol. With at
//!   least one line, only matching sockets become rsockets. `*` matches everything; a program name matches as
//!   a prefix.
//! - `RDMAV_FORK_SAFE`: with any value but 0, the program may fork, for instance for each connection of a
//!   server. Streams start over TCP, and the first process to send or receive on a stream, or to wait for it, moves the
//!   stream to RDMA. Both ends must use this library with the variable; other peers get TCP without a difference.
//!   `CALLS.md` describes the move and its promises.
//! - `RS_FORK_WAIT`: for how many seconds a call to send waits for the peer's part of a move before the stream stays
//!   TCP; 1 if not set.
//! - `RS_FORK_PEER`: with the value `librdmacm`, streams are moved by the protocol of librdmacm's preload library, for
//!   peers that use it. That protocol cannot distinguish two connections of one host, makes clients wait without a
//!   limit, and moves one connection of a port at a time: not for servers that strangers reach.
//! - `RS_EXIT_LINGER`: how many seconds the exit of a process may wait for peers; 10 if not set.
//! - `RSOCKET_PRELOAD_LOG`: logs for each socket whether RDMA, TCP or UDP is used, and why, in one line: `1`
//!   on standard error, any other value in a file of that name. Not set, nothing is logged.
//!
//! # Limits
//! - A peer with an RDMA device but without rsockets does not understand the datagrams: see `preload_config`.
//! - A child cannot use inherited rsockets, except with `RDMAV_FORK_SAFE` before the first use: calls fail
//!   with `ENOTCONN`, and standard error has the reason. rsync is such a program: two of its processes share
//!   a connection. A stream passed on through `exec` by a child before its use stays TCP.
//! - With `RDMAV_FORK_SAFE`, TCP connections have a maximum segment size of 1213 bytes (clients) or 1209 (servers), by
//!   which peers know this library, and `TCP_DEFER_ACCEPT` has no effect. A program that sets a lower `TCP_MAXSEG` gets TCP.
//! - A process killed by a signal, `abort`, or `exec` by a process with rsockets discards data that the peer has
//!   not acknowledged, as with librdmacm, and the peer's calls fail with `ECONNRESET`.
//! - After `setuid` and its kin, a listener made before fails with `EACCES`, except with `RDMAV_FORK_SAFE`: see `CALLS.md`.
//! - A process whose main thread calls `pthread_exit` does not end with its other threads, because the threads of
//!   this library continue.
//! - An rsocket cannot be passed to another process by a message (`SCM_RIGHTS`): `sendmsg` fails with `EOPNOTSUPP`, and
//!   standard error has the reason. With `RDMAV_FORK_SAFE`, a stream passed before its use stays TCP there.
//! - A write to an ended stream fails with `EPIPE` and raises no `SIGPIPE`, as with librdmacm: the first write after
//!   the peer's end fails, where TCP's succeeds, so that the signal would end programs that TCP lets live.
//! - A listener does not accept TCP connections. Bound to all addresses (0.0.0.0 or `::`), a listener is reachable at the
//!   addresses of RDMA devices, and not at 127.0.0.1 or `::1`, except with `RDMAV_FORK_SAFE`.
//! - There is no urgent data: `MSG_OOB` sends its bytes as others. Datagrams have no control messages: `sendmsg` with one,
//!   such as `IPV6_HOPLIMIT`, fails.
//! - A datagram over 2032 bytes (IPv6: 2020) fails with `EMSGSIZE`.
//! - `splice` with an rsocket fails with `EINVAL`, so that programs copy the data themselves. `io_uring_setup` through
//!   `syscall(2)`, as libuv makes it, fails with `ENOSYS`. `freopen` of a `FILE` on an rsocket closes it and fails.
//!   `aio_read` and its kin fail with `EOPNOTSUPP`. `CALLS.md` lists all calls with a descriptor.
//! - Not intercepted: `dprintf`, system calls bypassing the C library, such as liburing's, and a `FILE` that was opened
//!   before its descriptor became an rsocket, such as `stdout` after `dup2`.
//!   Such a write to an rsocket fails with `ENOTCONN` or `EPIPE`, or with `EAGAIN` until there is room; such a read
//!   fails with `EAGAIN` or finds an end of stream. After a false end of stream, standard error has a message when the
//!   socket is closed.
//!   Calls through `syscall(2)` are intercepted, except the creation of sockets.
//! - Programs built by Go's own compiler (`gc`) make all system calls directly, and most are linked
//!   statically and cannot load a library: their sockets stay TCP. Programs that do load this library log the
//!   fact with `RSOCKET_PRELOAD_LOG`. Built with `gccgo` (or `go build -compiler gccgo`), the same programs
//!   use rsockets.
//!
//! # Exit
//! TCP continues to send after the exit of a process. An rsocket ends with its process, so the exit waits until the
//! peers have acknowledged all data, and then ends the streams as `close` would: at most for `RS_EXIT_LINGER` or the
//! time set by `SO_LINGER`, and not at all if that is 0. This holds for the return from `main`, `exit`, `_exit`,
//! `quick_exit` and `exit_group`, also in a signal handler. In the meantime, calls of other threads on rsockets stay
//! blocked. Destructors of libraries loaded after this one find the streams ended.
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

mod address;
mod aio;
mod attempts;
mod config;
mod connects;
mod datagrams;
mod epoll;
mod exit;
mod files;
mod fork;
mod golang;
mod inherited;
mod ioctl;
mod log;
mod loopback;
mod move_options;
mod passing;
mod ports;
mod replacement;
mod sendfile;
mod set_options;
mod sockets;
mod stdio;
mod syscall;
mod table;
mod transfers;
mod vectored;
mod wait;
