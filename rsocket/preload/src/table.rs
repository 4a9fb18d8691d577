//! Which descriptors of the program are rsockets.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
};

use libc::c_int;
use rsocket::EventSet;
use rsocket_capi::rclose;

/// The descriptors that can be known here; the same as the original's.
pub(crate) const MOST: usize = 65536;

/// An rsocket, which the program may know by several descriptors. It is closed with the last.
#[derive(Debug)]
pub(crate) struct Held {
    fd: c_int,
    /// Whose it is: a child must not close it.
    process: u32,
}

impl Held {
    /// The descriptor by which `rsocket_capi` knows it.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.process == process::id() {
            rclose(self.fd);
        }
    }
}

/// The process that the tables are of.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The tables are this process's from now on.
pub(crate) fn own() {
    OWNER.store(process::id(), SeqCst);
}

/// Whether the tables are this process's: it has, or has had, rsockets, and so there may be
/// descriptors of which the program knows nothing. The tables are not in the child of a `vfork`, which has its
/// parent's memory and descriptors of its own.
pub(crate) fn is_owner() -> bool {
    OWNER.load(SeqCst) == process::id()
}

/// One kind of things that descriptors can be.
#[derive(Debug)]
pub(crate) struct Kind<T> {
    /// Says without a lock that a descriptor is none: in signal handlers, and in children, nothing
    /// else is allowed.
    known: [AtomicBool; MOST],
    things: Mutex<BTreeMap<c_int, Arc<T>>>,
}

pub(crate) static SOCKETS: Kind<Held> = Kind::new();
/// `epoll`s that have rsockets in them.
pub(crate) static SETS: Kind<EventSet> = Kind::new();

impl<T> Kind<T> {
    const fn new() -> Self {
        Self {
            known: [const { AtomicBool::new(false) }; MOST],
            things: Mutex::new(BTreeMap::new()),
        }
    }

    fn known(&self, fd: c_int) -> Option<&AtomicBool> {
        self.known.get(usize::try_from(fd).ok()?)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<c_int, Arc<T>>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a descriptor is one, as far as can be said without a lock.
    pub(crate) fn may_have(&self, fd: c_int) -> bool {
        self.known(fd).is_some_and(|known| known.load(SeqCst))
    }

    pub(crate) fn find(&self, fd: c_int) -> Option<Arc<T>> {
        if !self.may_have(fd) {
            return None;
        }
        self.lock().get(&fd).cloned()
    }

    /// Adds a thing; whether there is room for its descriptor.
    pub(crate) fn add(&self, fd: c_int, thing: Arc<T>) -> bool {
        let Some(known) = self.known(fd) else {
            return false;
        };
        if !is_owner() {
            return true;
        }
        let mut things = self.lock();
        let old = things.insert(fd, thing);
        known.store(true, SeqCst);
        drop(things);
        // Closing one takes a while, and may come back here.
        drop(old);
        true
    }

    pub(crate) fn remove(&self, fd: c_int) -> Option<Arc<T>> {
        let known = self.known(fd)?;
        if !known.load(SeqCst) || !is_owner() {
            return None;
        }
        let mut things = self.lock();
        known.store(false, SeqCst);
        things.remove(&fd)
    }

    /// Nothing is known any more. What was is neither closed nor freed.
    pub(crate) fn forget_all(&self) {
        for known in &self.known {
            known.store(false, SeqCst);
        }
    }

    /// All descriptors that stand for the same thing.
    pub(crate) fn same(&self, thing: &Arc<T>) -> Vec<c_int> {
        let things = self.lock();
        let same = things.iter().filter(|(_, other)| Arc::ptr_eq(other, thing));
        same.map(|(fd, _)| *fd).collect()
    }
}

/// The rsocket that a descriptor stands for.
pub(crate) fn find(fd: c_int) -> Option<Arc<Held>> {
    SOCKETS.find(fd)
}

/// Takes over an rsocket.
pub(crate) fn hold(fd: c_int) -> Arc<Held> {
    Arc::new(Held {
        fd,
        process: process::id(),
    })
}
