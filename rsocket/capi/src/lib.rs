//! The functions of `rsocket(7)` for C, on top of the crate [`rsocket`](mod@rsocket).
//!
//! A program that was written for librdmacm's rsockets is built with `include/rsocket.h` and linked
//! with `librsocket_capi.so`. The functions, their arguments and the constants are the same.
//!
//! # Where it is better
//! - A call never crashes for the state that a socket is in: without a connection, it is
//!   `ENOTCONN`.
//! - `rsend` fails with `EPIPE` or `ECONNRESET` when the connection has ended. What has failed is
//!   not read as an orderly end.
//! - `rpoll` waits as long as it was told to. A listener wakes it at once.
//! - Datagrams work over RoCE, too; those that are too long are refused, and a connected socket gets
//!   those of its peer only. `rsendmsg` and `rwritev` send one, and `rshutdown` ends a direction.
//! - `rreadv`, `rrecvmsg` and `rsendmsg` take all buffers; flags are those of the call.
//! - `SOCK_NONBLOCK` and `SOCK_CLOEXEC` do what they say. Accepted sockets block.
//! - `rclose` is bounded: ten seconds, or what `SO_LINGER` says.
//! - Options of Linux's that are hints, such as `TCP_CORK`, are accepted; those that a program would rely
//!   on are refused with `ENOTSUP`. `OPTIONS.md` beside the sources has the decision for each. `rrecvmsg` takes
//!   a control buffer, which stays empty.
//! - `TCP_MAXSEG` and `TCP_INFO` say no more than a datagram can have.
//! - `repoll_*` return -1 and set `errno`. Closed sockets leave the set.
//!
//! # `RSOCKET_C_COMPAT`
//! With this variable set to `1`, what is harmless is as it was: `rclose` returns `EBADF` as a
//! number, `raccept` fails with `EBADF` on what does not listen, `rconnect` succeeds once more on
//! what is connected, buffer sizes are doubled when set, and `repoll_ctl` and `repoll_wait` return
//! error numbers.
//!
//! # Limits
//! - `AF_IB` is refused with `ENOTSUP`.
//! - `rfcntl` is declared with a variable argument in C and has an `int` here, which is the same on
//!   x86-64 and arm64.
//! - `EPOLLET` has no effect on rsockets: they are told of as long as there is something.
//! - `PROT_NONE` maps nothing.
//!
//! Which thread waits is the same for every call: nothing here has a thread of its own, but for the
//! one of [`rsocket`](mod@rsocket) that makes connections.

mod address;
mod api;
mod errno;
mod noted;
mod options;
mod table;

pub use api::*;
