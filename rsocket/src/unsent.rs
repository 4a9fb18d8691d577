//! Data and shutdown messages that the engine delivers, without further calls of the program.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Waker,
    time::Instant,
};

use cm::Key;
use rustix::event::Timespec;

use crate::{
    admission::{Admission, Decision},
    backlog::limited_addr,
    connection::Connection,
    ready_list::ReadyList,
    timers::{Action, TimerId},
    waiters::Interest,
};

/// A delivery in progress.
#[derive(Debug)]
struct Delivery {
    key: Key,
    connection: Weak<Connection>,
    /// A connection dropped by the program, kept until the peer has acknowledged all data.
    dropped: Option<Arc<Connection>>,
    /// End of the delivery of a dropped connection.
    deadline: Option<Instant>,
    /// Lists the delivery.
    task: Waker,
    /// Number of requests for this delivery. A later request is not served by an earlier check.
    requests: u64,
}

/// The deliveries of the engine, one for each connection. A connection is processed at its completions only.
#[derive(Debug)]
pub(crate) struct Unsent {
    list: Arc<ReadyList>,
    deliveries: Mutex<Deliveries>,
    /// Number of deliveries of dropped connections, readable by an exiting thread that must not lock.
    dropped: AtomicUsize,
}

#[derive(Debug, Default)]
struct Deliveries {
    by_name: HashMap<u64, Delivery>,
    names: HashMap<Key, u64>,
    next_name: u64,
    /// The deliveries of dropped connections, by name: which one gives way when memory or objects of the device end.
    dropped: Admission<u64>,
}

impl Unsent {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            list: ReadyList::new()?,
            deliveries: Mutex::default(),
            dropped: AtomicUsize::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Deliveries> {
        let deliveries = self.deliveries.lock();
        deliveries.unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a delivery of retained data and a shutdown message, or adds to that of the connection.
    pub(crate) fn add(&self, connection: &Arc<Connection>) {
        self.add_to(connection, |_, _| ());
    }

    /// Begins a delivery for a dropped connection, at most until `deadline`. Returns the timer of its end.
    pub(crate) fn add_dropped(
        &self,
        connection: Arc<Connection>,
        deadline: Option<Instant>,
    ) -> Option<TimerId<Key>> {
        let key = connection.key();
        let addr = limited_addr(Some(connection.peer_addr()));
        let name = self.add_to(&connection, |delivery, (name, dropped)| {
            if delivery.dropped.is_none() {
                self.dropped.fetch_add(1, Relaxed);
                dropped.begin(name, addr, Instant::now());
            }
            delivery.dropped = Some(Arc::clone(&connection));
            delivery.deadline = deadline;
        });
        Some((deadline?, key, Action::EndDelivery(name)))
    }

    /// Adds to a delivery, which begins unless in progress. Returns its name.
    fn add_to(
        &self,
        connection: &Arc<Connection>,
        change: impl FnOnce(&mut Delivery, (u64, &mut Admission<u64>)),
    ) -> u64 {
        let mut deliveries = self.lock();
        let Deliveries {
            by_name,
            names,
            next_name,
            dropped,
        } = &mut *deliveries;
        let name = *names.entry(connection.key()).or_insert_with(|| {
            *next_name += 1;
            *next_name
        });
        let delivery = by_name.entry(name).or_insert_with(|| {
            // Without kernel memory for the event source, only the deadline ends the delivery.
            drop(self.list.watch(name, connection.shared().source()));
            Delivery {
                key: connection.key(),
                connection: Arc::downgrade(connection),
                dropped: None,
                deadline: None,
                task: self.list.task(name),
                requests: 0,
            }
        });
        delivery.requests += 1;
        change(delivery, (name, dropped));
        drop(deliveries);
        self.list.push(name);
        name
    }

    /// Whether a dropped connection has undelivered data.
    pub(crate) fn has_dropped(&self) -> bool {
        self.dropped.load(Relaxed) > 0
    }

    /// Continues the deliveries with completions. Returns the timers of ended deliveries.
    pub(crate) fn serve(&self) -> Vec<TimerId<Key>> {
        let mut timers = Vec::new();
        for name in self.list.take(Some(&Timespec::default())) {
            let deliveries = self.lock();
            let Some(delivery) = deliveries.by_name.get(&name) else {
                continue;
            };
            let (task, requests) = (delivery.task.clone(), delivery.requests);
            let is_dropped = delivery.dropped.is_some();
            let connection = delivery.connection.upgrade();
            drop(deliveries);
            let is_over = connection.is_none_or(|connection| {
                // Listed again at the next completion, also at one that another thread processes.
                let armed = connection.shared().begin_wait(Interest::ANY, &task);
                let is_over = if is_dropped {
                    connection.is_flushed()
                } else {
                    connection.has_sent()
                };
                armed.is_err() || is_over.unwrap_or(true)
            });
            if is_over {
                timers.extend(self.end_if(name, |delivery| delivery.requests == requests));
            }
        }
        timers
    }

    /// Ends the delivery of a dropped connection for a request from an address, chosen as a half-open connection is. Returns
    /// whether there was one, and its timer.
    pub(crate) fn displace(&self, addr: IpAddr) -> (bool, Option<TimerId<Key>>) {
        let decision = self.lock().dropped.decide_exhausted(addr, Instant::now());
        match decision {
            Decision::ServeInsteadOf(name) => (true, self.end_if(name, |_| true)),
            _ => (false, None),
        }
    }

    /// Ends a delivery.
    pub(crate) fn end(&self, name: u64) {
        self.end_if(name, |_| true);
    }

    fn end_if(&self, name: u64, is_meant: impl Fn(&Delivery) -> bool) -> Option<TimerId<Key>> {
        let mut deliveries = self.lock();
        deliveries
            .by_name
            .get(&name)
            .filter(|found| is_meant(found))?;
        let delivery = deliveries.by_name.remove(&name)?;
        deliveries.names.remove(&delivery.key);
        deliveries.dropped.end(name);
        if let Some(connection) = delivery.connection.upgrade() {
            // Before the unlock: a later delivery of the connection watches the same source.
            self.list.unwatch(connection.shared().source());
            drop(deliveries);
            connection.shared().end_wait(&delivery.task);
            if delivery.dropped.is_some() {
                drop(delivery.dropped);
                drop(connection);
                self.dropped.fetch_sub(1, Relaxed);
            }
        }
        Some((delivery.deadline?, delivery.key, Action::EndDelivery(name)))
    }
}

impl AsFd for Unsent {
    /// Readable when a delivery may continue.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.list.as_fd()
    }
}
