//! The functions of `rsocket(7)` for C, on top of the crate [`rsocket`](mod@rsocket).
//!
//! Programs written for librdmacm's rsockets are built with `include/rsocket.h` and linked with
//! `librsocket.so`, a copy of the program `librsocket` of this package, which is a shared library. The functions, their
//! arguments and the constants are the same.
//!
//! # Where it is better
//! - No state of a socket crashes a call: without a connection, calls fail with `ENOTCONN`.
//! - `rsend` fails with `EPIPE` or `ECONNRESET` when the connection has ended. A failure is not reported as
//!   an orderly end.
//! - `rpoll` respects its timeout. A new connection wakes a waiter at once.
//! - Datagrams also work over RoCE; overlong ones are refused, and a connected socket receives only from its
//!   peer. `rsendmsg` and `rwritev` send one datagram, and `rshutdown` ends a direction.
//! - `rreadv`, `rrecvmsg` and `rsendmsg` use all buffers; flags apply to the call.
//! - `SOCK_NONBLOCK` and `SOCK_CLOEXEC` are supported. Accepted sockets start in blocking mode.
//! - `rclose` is bounded: ten seconds, or the time set by `SO_LINGER`.
//! - At `exit` and at the return from `main`, sockets not closed are disconnected in an orderly way: the process
//!   waits until the peers have acknowledged the data, at most ten seconds, or the time set by `SO_LINGER` or,
//!   in seconds, by the environment variable `RS_EXIT_LINGER`. With librdmacm, the data is lost, and the peer's
//!   calls fail. `_exit` and the death by a signal lose the data here, too.
//! - Linux options without semantic effect, such as `TCP_CORK`, are accepted; options a program would rely on
//!   fail with `ENOPROTOOPT`, as from a kernel without them. `OPTIONS.md` beside the sources has the decision for each. `rrecvmsg` accepts a
//!   control buffer and leaves the buffer empty.
//! - `TCP_MAXSEG` and `TCP_INFO` report at most the maximum length of a datagram.
//! - `repoll_*` return -1 and set `errno`. Closed sockets leave the set.
//!
//! # `RSOCKET_C_COMPAT`
//! With this variable set to `1`, harmless quirks of librdmacm are preserved: `rclose` returns the number
//! `EBADF`, `raccept` fails with `EBADF` on a socket not listening, `rconnect` succeeds again on a connected
//! socket, buffer sizes are doubled when set, and `repoll_ctl` and `repoll_wait` return error numbers.
//!
//! # Limits
//! - `AF_IB` fails with `ENOTSUP`.
//! - `rfcntl` is declared with a variable argument in C and has an `int` here; the two are equivalent on
//!   x86-64 and arm64.
//! - `EPOLLET` has no effect on rsockets: events are level-triggered.
//! - `PROT_NONE` maps nothing.
//!
//! All calls wait in the calling thread: this library has no thread of its own, except the connection thread
//! of [`rsocket`](mod@rsocket).

mod address;
mod api;
mod errno;
mod exit;
mod noted;
mod options;
mod table;

interpose::cancellation!();

pub use api::*;
pub use exit::disconnect_all;
