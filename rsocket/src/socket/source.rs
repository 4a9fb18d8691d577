//! The event source of a socket: depends on the phase.

use std::{
    io,
    sync::{Arc, Weak},
    task::Waker,
};

use verbs::waiting::EventFd;

use super::{Phase, Socket, poll::FAILED};
use crate::{
    connection::Connection,
    datagram::DatagramSocket,
    proto::stream::Readiness,
    ready_list::ReadyList,
    waiters::Interest,
    waiting::{EventSource, Pollable, Shared},
};

/// Parts of a phase relevant for its events.
pub(super) enum Subject {
    Quiet,
    Connecting(Arc<EventFd>),
    Listening(Arc<EventFd>, bool),
    Stream(Arc<Connection>),
    Datagram(Arc<DatagramSocket>),
    Failed,
    Ended,
}

impl Socket {
    pub(super) fn subject(&self) -> Subject {
        match &self.lock().phase {
            Phase::Idle(_) | Phase::Closed => Subject::Quiet,
            Phase::Connecting(connecting) => Subject::Connecting(Arc::clone(connecting.event_fd())),
            Phase::Listening(listener) => {
                Subject::Listening(Arc::clone(listener.event_fd()), listener.is_ready())
            }
            Phase::Connected(stream) => Subject::Stream(Arc::clone(stream.connection())),
            Phase::Datagram(datagram) => Subject::Datagram(Arc::clone(datagram)),
            Phase::Failed => Subject::Failed,
            Phase::Ended => Subject::Ended,
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
                    self.list.unwatch(connection.shared().source());
                    connection.shared().end_wait(&self.task);
                }
            }
            Some(Source::Datagram(datagram)) => {
                if let Some(datagram) = datagram.upgrade() {
                    self.list.unwatch(datagram.shared().source());
                    datagram.shared().end_wait(&self.task);
                }
            }
            None => {}
        }
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
        subject: Subject,
        interest: Interest,
        register: bool,
    ) -> io::Result<Readiness> {
        match subject {
            Subject::Quiet => Ok(Readiness::default()),
            Subject::Failed => {
                self.end();
                Ok(FAILED)
            }
            Subject::Ended => {
                self.end();
                Ok(Readiness {
                    failed: false,
                    ..FAILED
                })
            }
            Subject::Connecting(event_fd) => {
                if !matches!(self.source, Some(Source::Connecting(_))) {
                    self.watch(Source::Connecting(Arc::clone(&event_fd)), &event_fd)?;
                }
                Ok(Readiness::default())
            }
            Subject::Listening(event_fd, readable) => {
                if !matches!(self.source, Some(Source::Listening(_))) {
                    self.watch(Source::Listening(Arc::clone(&event_fd)), &event_fd)?;
                }
                Ok(Readiness {
                    readable,
                    ..Readiness::default()
                })
            }
            Subject::Stream(connection) => {
                let is_new = !matches!(self.source, Some(Source::Stream(_)));
                if is_new {
                    let source = Source::Stream(Arc::downgrade(&connection));
                    self.watch(source, connection.shared().source())?;
                }
                self.of(connection.shared(), interest, register || is_new)
            }
            Subject::Datagram(datagram) => {
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
