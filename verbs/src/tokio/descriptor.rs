//! Waiting for a descriptor of the caller.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
    task::{Context, Poll, ready},
};

use ::tokio::{
    io::{Interest, unix::AsyncFd},
    task::coop,
};

use crate::cq::CompletionChannel;

/// A descriptor watched for reading by the runtime, for protocols with a descriptor of their own,
/// such as an `eventfd(2)` that reports the state of queues. Construction is safe, unlike with tokio's
/// `AsyncFd`: the descriptor cannot be closed or replaced in the meantime.
///
/// The descriptor may be blocking: nothing here reads from it.
///
/// ```
/// use std::{io::Write, os::unix::net::UnixStream};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let (ours, mut theirs) = UnixStream::pair()?;
/// let watched = verbs::tokio::WatchedFd::new(ours.into())?;
/// theirs.write_all(b"!")?;
/// watched.readable(|| Some(())).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WatchedFd(AsyncFd<WatchedSource>);

/// Keeps one descriptor open.
#[derive(Debug)]
enum WatchedSource {
    Shared(Arc<OwnedFd>),
    Channel(Arc<CompletionChannel>),
}

impl AsFd for WatchedSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Shared(fd) => fd.as_fd(),
            Self::Channel(channel) => channel.as_fd(),
        }
    }
}

impl AsRawFd for WatchedSource {
    /// The descriptor that the runtime watches: a channel's own, which needs no further one.
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Shared(fd) => fd.as_raw_fd(),
            Self::Channel(channel) => channel.handle().event_fd().as_raw_fd(),
        }
    }
}

impl WatchedFd {
    /// Registers the descriptor with the runtime.
    ///
    /// # Errors
    /// The error of `epoll_ctl(2)`: `EPERM` for a descriptor without support for polling, such as a
    /// file's.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Self::shared(Arc::new(fd))
    }

    /// Registers a descriptor with other owners, like [`new`](Self::new).
    ///
    /// # Errors
    /// - `AlreadyExists`: the runtime watches the descriptor already.
    /// - As for [`new`](Self::new).
    ///
    /// # Panics
    /// As for [`new`](Self::new).
    pub fn shared(fd: Arc<OwnedFd>) -> io::Result<Self> {
        Self::register(WatchedSource::Shared(fd))
    }

    /// Registers a completion channel with other owners. Creates no further descriptor.
    ///
    /// # Errors
    /// As for [`shared`](Self::shared).
    ///
    /// # Panics
    /// As for [`new`](Self::new).
    pub fn channel(channel: Arc<CompletionChannel>) -> io::Result<Self> {
        Self::register(WatchedSource::Channel(channel))
    }

    fn register(source: WatchedSource) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` is one descriptor, and so is that of a channel, open for as long as
        // the value exists. The value is only ever lent by shared reference, and so not replaced.
        let watched = unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Calls `attempt` until there is a result, waiting for the descriptor in between. Before
    /// returning `None`, `attempt` must make the descriptor unreadable, if needed: then no later
    /// readiness is missed.
    ///
    /// Any number of tasks can wait. Cancel safe: a result of `attempt` is returned at once. A call
    /// counts against the [budget](coop) of its task, and yields when the budget is used up.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn readable<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> io::Result<T> {
        coop::consume_budget().await;
        loop {
            if let Some(found) = attempt() {
                return Ok(found);
            }
            self.0.readable().await?.clear_ready();
        }
    }

    /// Polls like [`readable`](Self::readable), for a future written by hand. Only one task can wait: the last
    /// one to poll is woken.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub fn poll_readable<T>(
        &self,
        cx: &mut Context<'_>,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Poll<io::Result<T>> {
        let budget = ready!(coop::poll_proceed(cx));
        loop {
            if let Some(found) = attempt() {
                budget.made_progress();
                return Poll::Ready(Ok(found));
            }
            ready!(self.0.poll_read_ready(cx))?.clear_ready();
        }
    }
}

impl AsFd for WatchedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        os::unix::net::UnixStream,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering::Relaxed},
        },
    };

    use super::*;

    /// The number of turns of another task on the same thread during 10,000 calls that never wait.
    macro_rules! turns_of_another_task {
        ($watched:ident, $call:expr) => {{
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let $watched = WatchedFd::new(ours.into()).unwrap();
            let turns = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&turns);
            let other = ::tokio::spawn(async move {
                loop {
                    counted.fetch_add(1, Relaxed);
                    ::tokio::task::yield_now().await;
                }
            });
            for _ in 0..10_000 {
                $call.await.unwrap();
            }
            other.abort();
            turns.load(Relaxed)
        }};
    }

    #[::tokio::test]
    async fn ready_descriptor_yields_to_other_tasks() {
        let turns = turns_of_another_task!(watched, watched.readable(|| Some(())));
        assert!(turns >= 10, "the other task ran {turns} times");
        let polled = turns_of_another_task!(
            watched,
            poll_fn(|cx| watched.poll_readable(cx, || Some(())))
        );
        assert!(polled >= 10, "the other task ran {polled} times");
    }
}
