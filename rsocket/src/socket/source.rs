//! The event source of a socket: depends on the phase.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Weak},
    task::Waker,
};

use verbs::waiting::EventFd;

use super::{Phase, Socket, poll::FAILED};
use crate::{
    connection::Connection,
    datagram::DatagramSocket,
    listener::Listener,
    proto::stream::Readiness,
    ready_list::ReadyList,
    waiters::Interest,
    waiting::{EventSource, Pollable, Shared},
};

/// Parts of a phase relevant for its events.
#[derive(Debug)]
pub(super) enum SocketSource {
    Quiet,
    Connecting(Arc<EventFd>),
    Listening(Arc<Listener>),
    Stream(Arc<Connection>),
    Datagram(Arc<DatagramSocket>),
    Failed,
    Replaced { readable: bool },
    Ended,
    Closed,
}

impl SocketSource {
    /// Descriptor readable at the events of this subject.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Connecting(event_fd) => Some(event_fd.as_fd()),
            Self::Listening(listener) => Some(listener.as_fd()),
            Self::Stream(connection) => Some(connection.shared().channel()),
            Self::Datagram(datagram) => Some(datagram.shared().channel()),
            Self::Quiet | Self::Failed | Self::Replaced { .. } | Self::Ended | Self::Closed => None,
        }
    }

    /// Returns the operations possible without blocking, and wakes a task at completions processed by other
    /// threads.
    pub(super) fn begin_wait(&self, interest: Interest, task: &Waker) -> io::Result<Readiness> {
        match self {
            Self::Stream(connection) => connection.shared().begin_wait(interest, task),
            Self::Datagram(datagram) => datagram.shared().begin_wait(interest, task),
            _ => Ok(Readiness::default()),
        }
    }

    /// Removes a task.
    pub(super) fn end_wait(&self, task: &Waker) {
        match self {
            Self::Stream(connection) => connection.shared().end_wait(task),
            Self::Datagram(datagram) => datagram.shared().end_wait(task),
            _ => {}
        }
    }
}

impl Socket {
    pub(super) fn event_source(&self) -> SocketSource {
        match &self.lock().phase {
            Phase::Idle(_) => SocketSource::Quiet,
            Phase::Connecting(connecting) => {
                SocketSource::Connecting(Arc::clone(connecting.event_fd()))
            }
            Phase::Listening(listener) => SocketSource::Listening(Arc::clone(listener)),
            Phase::Connected(stream) => SocketSource::Stream(Arc::clone(stream.connection())),
            Phase::Datagram(datagram) => SocketSource::Datagram(Arc::clone(datagram)),
            Phase::Failed => SocketSource::Failed,
            Phase::Replaced { readable } => SocketSource::Replaced {
                readable: *readable,
            },
            Phase::Ended(_) => SocketSource::Ended,
            Phase::Closed => SocketSource::Closed,
        }
    }
}

/// A watched event source. Keeps no connection alive: closing removes the source.
#[derive(Debug)]
enum Source {
    /// End of a connection attempt.
    Connecting(Arc<EventFd>),
    /// A connection to accept.
    Listening(Arc<EventFd>),
    /// Completions.
    Stream(Weak<Connection>),
    Datagram(Weak<DatagramSocket>),
}

/// Lists a socket at its events: at those of its source, and at completions processed by other threads.
#[derive(Debug)]
pub(super) struct Watch {
    list: Arc<ReadyList>,
    name: u64,
    task: Waker,
    source: Option<Source>,
}

impl Watch {
    /// `name` is the socket's in the list.
    pub(super) fn new(list: &Arc<ReadyList>, name: u64) -> Self {
        Self {
            task: list.task(name),
            list: Arc::clone(list),
            name,
            source: None,
        }
    }

    pub(super) fn name(&self) -> u64 {
        self.name
    }

    /// Lists the socket when woken.
    pub(super) fn task(&self) -> &Waker {
        &self.task
    }

    /// Stops watching.
    pub(super) fn end(&mut self) {
        match self.source.take() {
            Some(Source::Connecting(event_fd) | Source::Listening(event_fd)) => {
                self.list.unwatch(&event_fd);
            }
            Some(Source::Stream(connection)) => {
                if let Some(connection) = connection.upgrade() {
                    self.unwatch(connection.shared());
                }
            }
            Some(Source::Datagram(datagram)) => {
                if let Some(datagram) = datagram.upgrade() {
                    self.unwatch(datagram.shared());
                }
            }
            None => {}
        }
    }

    fn unwatch<S: Pollable, C: EventSource>(&self, shared: &Shared<S, C>) {
        self.list.unwatch(shared.source());
        shared.end_wait(&self.task);
    }

    fn watch(&mut self, source: Source, events: &impl EventSource) -> io::Result<()> {
        self.end();
        self.list.watch(self.name, events)?;
        self.source = Some(source);
        Ok(())
    }

    /// Returns the readiness of a socket, after switching to the event source of the phase. `register` lists
    /// the socket at the next change too.
    pub(super) fn readiness(
        &mut self,
        event_source: SocketSource,
        interest: Interest,
        register: bool,
    ) -> io::Result<Readiness> {
        match event_source {
            SocketSource::Quiet | SocketSource::Closed => Ok(Readiness::default()),
            SocketSource::Failed => {
                self.end();
                Ok(FAILED)
            }
            SocketSource::Replaced { readable } => {
                self.end();
                Ok(Readiness {
                    readable,
                    writable: true,
                    ..Readiness::default()
                })
            }
            SocketSource::Ended => {
                self.end();
                // Not hung up, which is final for a mirror: the listener may listen again.
                Ok(Readiness {
                    readable: true,
                    writable: true,
                    ..Readiness::default()
                })
            }
            SocketSource::Connecting(event_fd) => {
                if !matches!(self.source, Some(Source::Connecting(_))) {
                    self.watch(Source::Connecting(Arc::clone(&event_fd)), &event_fd)?;
                }
                Ok(Readiness::default())
            }
            SocketSource::Listening(listener) => {
                if !matches!(self.source, Some(Source::Listening(_))) {
                    let event_fd = listener.event_fd();
                    self.watch(Source::Listening(Arc::clone(event_fd)), event_fd)?;
                }
                Ok(Readiness {
                    readable: listener.is_ready(),
                    ..Readiness::default()
                })
            }
            SocketSource::Stream(connection) => {
                let is_new = !matches!(self.source, Some(Source::Stream(_)));
                if is_new {
                    let source = Source::Stream(Arc::downgrade(&connection));
                    self.watch(source, connection.shared().source())?;
                }
                self.of(connection.shared(), interest, register || is_new)
            }
            SocketSource::Datagram(datagram) => {
                let is_new = !matches!(self.source, Some(Source::Datagram(_)));
                if is_new {
                    let source = Source::Datagram(Arc::downgrade(&datagram));
                    self.watch(source, datagram.shared().source())?;
                }
                let mut ready = self.of(datagram.shared(), interest, register || is_new)?;
                // A datagram error does not end the socket; the next call returns the error.
                ready.readable |= ready.failed;
                ready.writable |= ready.failed;
                ready.failed = false;
                Ok(ready)
            }
        }
    }

    fn of<S: Pollable, C: EventSource>(
        &self,
        shared: &Shared<S, C>,
        interest: Interest,
        register: bool,
    ) -> io::Result<Readiness> {
        if register {
            shared.begin_wait(interest, &self.task)
        } else {
            shared.readiness_armed()
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}
