//! Streams, listeners and datagram sockets in tasks of [tokio](https://docs.rs/tokio) (feature `tokio`).
//!
//! Each type has the name of the blocking one, as in `cm::tokio` and `verbs::tokio`. No call spawns a task. Every future
//! can be dropped at any time, without a loss of bytes or of connections.

mod datagram;
mod listener;
mod reactor;
mod stream;

use std::{io, os::fd::AsFd};

use verbs::tokio::WatchedFd;

pub use datagram::Datagram;
pub use listener::Listener;
pub use stream::Stream;

/// Watches a descriptor for reading; readability may also mean room to write.
fn watch(fd: impl AsFd) -> io::Result<WatchedFd> {
    WatchedFd::new(fd.as_fd().try_clone_to_owned()?)
}
