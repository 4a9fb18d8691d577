//! A descriptor of the caller's own that is waited for.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Poll, ready},
};

use ::tokio::{
    io::{Interest, unix::AsyncFd},
    task::coop,
};

/// A descriptor that the runtime watches for reading, for protocols that keep their own: an
/// `eventfd(2)` that tells what became of their queues, for instance. Making one is safe, other than
/// making tokio's `AsyncFd`: the descriptor cannot be closed or exchanged beneath it.
///
/// It does not have to be non-blocking: nothing here reads it.
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
pub struct WatchedFd(AsyncFd<OwnedFd>);

impl WatchedFd {
    /// Registers the descriptor with the runtime.
    ///
    /// # Errors
    /// Whatever `epoll_ctl(2)` fails with: `EPERM` for a descriptor that cannot be waited for, as
    /// that of a file.
    ///
    /// # Panics
    /// Outside of a runtime with I/O enabled.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` is one descriptor, which is open for as long as it exists. It is
        // never given out other than borrowed, and so not exchanged.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Calls `look` until it finds something, waiting for the descriptor in between. `look` finds
    /// nothing only after it has made the descriptor unreadable, if that was needed: what makes it
    /// readable from then on is not missed.
    ///
    /// Any number of tasks can wait. Cancel safe: what `look` finds is returned at once. A call counts
    /// against the [budget](coop) of its task, which yields when that is used up.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn readable<T>(&self, mut look: impl FnMut() -> Option<T>) -> io::Result<T> {
        coop::consume_budget().await;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            self.0.readable().await?.clear_ready();
        }
    }

    /// [`readable`](Self::readable) for a future written by hand. Only one task can wait: the one that
    /// polled last is woken.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub fn poll_readable<T>(
        &self,
        cx: &mut Context<'_>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Poll<io::Result<T>> {
        let budget = ready!(coop::poll_proceed(cx));
        loop {
            if let Some(found) = look() {
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

    /// How often another task of the same thread runs while a call is made 10,000 times that never waits.
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
