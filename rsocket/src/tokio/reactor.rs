//! Tasks waiting for a socket, and the runtime's driver that wakes them.

use std::{
    fmt, io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Wake, Waker, ready},
};

use tokio::task::coop;
use verbs::{cq::CompletionChannel, tokio::WatchedFd};

use crate::{
    connection::{self, Connection},
    datagram::{self, DatagramSocket},
    waiting::{self, EventSource, Shared, WaitMode},
};

/// A socket of any kind.
pub(super) trait ReactorSocket: fmt::Debug + Send + Sync + 'static {
    type State: waiting::Pollable;
    type Channel: EventSource;

    fn shared(&self) -> &Shared<Self::State, Self::Channel>;

    /// Watches the completion channel.
    fn watch(&self) -> io::Result<WatchedFd>;
}

impl ReactorSocket for Connection {
    type State = connection::ConnectionState;
    type Channel = Arc<CompletionChannel>;

    fn shared(&self) -> &Shared<Self::State, Self::Channel> {
        self.shared()
    }

    fn watch(&self) -> io::Result<WatchedFd> {
        WatchedFd::channel(Arc::clone(self.shared().source()))
    }
}

impl ReactorSocket for DatagramSocket {
    type State = datagram::DatagramState;
    type Channel = Arc<OwnedFd>;

    fn shared(&self) -> &Shared<Self::State, Self::Channel> {
        self.shared()
    }

    fn watch(&self) -> io::Result<WatchedFd> {
        WatchedFd::shared(Arc::clone(self.shared().source()))
    }
}

/// Watches a socket. At each event, the runtime's driver processes the completions, and so wakes the tasks
/// whose interest is met.
#[derive(Debug)]
pub(super) struct Reactor<S> {
    fd: WatchedFd,
    socket: Arc<S>,
    /// Woken by the runtime's driver.
    waker: Waker,
}

impl<S: ReactorSocket> Reactor<S> {
    pub(super) fn new(socket: &Arc<S>) -> io::Result<Arc<Self>> {
        let fd = match socket.watch() {
            // Another reactor of the same socket: a duplicate is another member.
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                WatchedFd::new(socket.shared().channel().try_clone_to_owned()?)
            }
            watched => watched,
        }?;
        let socket = Arc::clone(socket);
        let reactor = Arc::new_cyclic(|this| Self {
            fd,
            socket,
            waker: Waker::from(Arc::new(ReactorWaker(Weak::clone(this)))),
        });
        reactor.poll();
        Ok(reactor)
    }

    /// Handles events until there are no more, and waits for the next one.
    fn poll(&self) {
        let mut cx = Context::from_waker(&self.waker);
        let handled = self.fd.poll_readable(&mut cx, || {
            self.socket.shared().poll_for_tasks();
            None::<()>
        });
        // Ready only with an error, while the runtime shuts down and drops all tasks.
        drop(handled);
    }
}

/// Woken by the runtime's driver.
struct ReactorWaker<S>(Weak<Reactor<S>>);

impl<S: ReactorSocket> Wake for ReactorWaker<S> {
    fn wake(self: Arc<Self>) {
        if let Some(reactor) = self.0.upgrade() {
            reactor.poll();
        }
    }
}

/// A waker with an identity of its own, for a task that may move to another [`Waker`].
#[derive(Debug)]
struct TaskWaker(Mutex<Waker>);

impl TaskWaker {
    fn lock(&self) -> MutexGuard<'_, Waker> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let waker = self.lock().clone();
        waker.wake();
    }
}

/// A task waiting for a socket in one direction, until dropped. The last one to poll is woken.
#[derive(Debug)]
pub(super) struct Task<S: ReactorSocket> {
    reactor: Arc<Reactor<S>>,
    latest: Arc<TaskWaker>,
    waker: Waker,
}

impl<S: ReactorSocket> Task<S> {
    pub(super) fn new(reactor: &Arc<Reactor<S>>) -> Self {
        let latest = Arc::new(TaskWaker(Mutex::new(Waker::noop().clone())));
        Self {
            reactor: Arc::clone(reactor),
            waker: Waker::from(Arc::clone(&latest)),
            latest,
        }
    }

    /// Polls a nonblocking attempt. The task is woken when to retry.
    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        attempt: impl FnOnce(WaitMode<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let budget = ready!(coop::poll_proceed(cx));
        self.latest.lock().clone_from(cx.waker());
        match attempt(WaitMode::Task(&self.waker)) {
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            result => {
                budget.made_progress();
                Poll::Ready(result)
            }
        }
    }
}

impl<S: ReactorSocket> Drop for Task<S> {
    fn drop(&mut self) {
        self.reactor.socket.shared().end_wait(&self.waker);
    }
}
