//! Data and shutdown messages that the engine delivers, without further calls of the program.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Waker,
};

use rustix::event::Timespec;

use crate::{connection::Connection, ready_list::ReadyList, waiters::Interest};

/// A delivery in progress.
#[derive(Clone, Debug)]
pub(crate) enum Delivery {
    /// Data of a connection closed by the program.
    Data(Arc<Connection>),
    /// A shutdown message without room.
    Shutdown(Weak<Connection>),
}

impl Delivery {
    fn connection(&self) -> Option<Arc<Connection>> {
        match self {
            Self::Data(connection) => Some(Arc::clone(connection)),
            Self::Shutdown(connection) => connection.upgrade(),
        }
    }

    /// Whether the delivery is complete, or impossible.
    fn is_over(&self, connection: &Connection) -> bool {
        let is_over = match self {
            Self::Data(_) => connection.is_flushed(),
            Self::Shutdown(_) => connection.has_sent_shutdown(),
        };
        is_over.unwrap_or(true)
    }
}

/// The deliveries of the engine. A connection is processed at its completions only.
#[derive(Debug)]
pub(crate) struct Unsent {
    list: Arc<ReadyList>,
    /// With the tasks that list the deliveries.
    deliveries: Mutex<HashMap<u64, (Delivery, Waker)>>,
    next_name: AtomicU64,
}

impl Unsent {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            list: ReadyList::new()?,
            deliveries: Mutex::default(),
            next_name: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, (Delivery, Waker)>> {
        let deliveries = self.deliveries.lock();
        deliveries.unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a delivery. Returns its name.
    pub(crate) fn add(&self, delivery: Delivery) -> u64 {
        let name = self.next_name.fetch_add(1, Relaxed);
        if let Some(connection) = delivery.connection() {
            // Without kernel memory for the event source, only the deadline ends the delivery.
            drop(self.list.watch(name, connection.shared().source()));
        }
        let task = self.list.task(name);
        self.lock().insert(name, (delivery, task));
        self.list.push(name);
        name
    }

    /// Continues the deliveries with completions.
    pub(crate) fn serve(&self) {
        for name in self.list.take(Some(&Timespec::default())) {
            let known = self.lock().get(&name).cloned();
            let Some((delivery, task)) = known else {
                continue;
            };
            let is_over = delivery.connection().is_none_or(|connection| {
                // Listed again at the next completion, also at one that another thread processes.
                let armed = connection.shared().begin_wait(Interest::ANY, &task);
                armed.is_err() || delivery.is_over(&connection)
            });
            if is_over {
                self.end(name);
            }
        }
    }

    /// Ends a delivery.
    pub(crate) fn end(&self, name: u64) {
        let known = self.lock().remove(&name);
        if let Some((delivery, task)) = known
            && let Some(connection) = delivery.connection()
        {
            self.list.unwatch(connection.shared().source());
            connection.shared().end_wait(&task);
        }
    }
}

impl AsFd for Unsent {
    /// Readable when a delivery may continue.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.list.as_fd()
    }
}
