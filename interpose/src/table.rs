//! Which descriptors of the program are the library's.

use std::{
    collections::BTreeMap,
    process,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
};

use libc::c_int;

/// The descriptors that can be known here; the same as those of rdma-core's library.
pub const MOST: usize = 65536;

/// The process that the tables are of.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The tables are this process's from now on.
pub fn own() {
    OWNER.store(process::id(), SeqCst);
}

/// Whether the tables are this process's: it knows, or has known, descriptors, and so there may be
/// some of which the program knows nothing. They are not in the child of a `vfork`, which has its
/// parent's memory and descriptors of its own.
pub fn is_owner() -> bool {
    OWNER.load(SeqCst) == process::id()
}

/// The tables are this process's from now on, and `child` is called in its children. It is the first
/// that is given, and the same each time.
pub fn watch_forks(child: unsafe extern "C" fn()) {
    static WATCHED: OnceLock<c_int> = OnceLock::new();
    own();
    // SAFETY: the function lives as long as the library, which is never unloaded, and does nothing
    // that a child must not.
    WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(child)) });
}

/// What descriptors stand for, of one kind of things.
#[derive(Debug)]
pub struct Table<T> {
    /// Says without a lock that a descriptor is none: in signal handlers, and in children, nothing
    /// else is allowed.
    known: [AtomicBool; MOST],
    things: Mutex<BTreeMap<c_int, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Table<T> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
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
    pub fn may_have(&self, fd: c_int) -> bool {
        self.known(fd).is_some_and(|known| known.load(SeqCst))
    }

    /// What a descriptor stands for. For one that has never been added, no lock is taken.
    pub fn find(&self, fd: c_int) -> Option<Arc<T>> {
        if !self.may_have(fd) {
            return None;
        }
        self.lock().get(&fd).cloned()
    }

    /// Adds a thing; whether there is room for its descriptor.
    pub fn add(&self, fd: c_int, thing: Arc<T>) -> bool {
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

    /// Forgets what a descriptor was, and says what. It is closed with the last that knows it.
    pub fn remove(&self, fd: c_int) -> Option<Arc<T>> {
        let known = self.known(fd)?;
        if !known.load(SeqCst) || !is_owner() {
            return None;
        }
        let mut things = self.lock();
        known.store(false, SeqCst);
        things.remove(&fd)
    }

    /// Nothing is known any more. What was is neither closed nor freed.
    pub fn forget_all(&self) {
        for known in &self.known {
            known.store(false, SeqCst);
        }
    }

    /// All things: one that has several descriptors as often.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    /// All descriptors that stand for the same thing.
    pub fn same(&self, thing: &Arc<T>) -> Vec<c_int> {
        let things = self.lock();
        let same = things.iter().filter(|(_, other)| Arc::ptr_eq(other, thing));
        same.map(|(fd, _)| *fd).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the owner is one for the whole process.
    #[test]
    fn only_the_owner_changes_a_table() {
        static TABLE: Table<&str> = Table::new();
        own();
        assert!(TABLE.add(5, Arc::new("old")));
        let thing = TABLE.find(5).unwrap();
        assert!(TABLE.add(9, Arc::clone(&thing)));
        assert_eq!(TABLE.same(&thing), [5, 9]);
        assert_eq!(TABLE.all(), [Arc::clone(&thing), Arc::clone(&thing)]);
        assert!(!TABLE.add(-1, Arc::clone(&thing)) && !TABLE.add(65536, thing));

        // As in the child of a `vfork`.
        OWNER.store(0, SeqCst);
        assert!(!is_owner());
        assert!(TABLE.add(5, Arc::new("new")) && TABLE.add(6, Arc::new("new")));
        assert_eq!(TABLE.remove(9), None);
        assert_eq!(TABLE.find(5).as_deref(), Some(&"old"));
        assert!(TABLE.may_have(9) && !TABLE.may_have(6));

        own();
        assert_eq!(TABLE.remove(9).as_deref(), Some(&"old"));
        assert_eq!(TABLE.remove(9), None);
        assert!(!TABLE.may_have(9) && TABLE.may_have(5));
        TABLE.forget_all();
        assert_eq!(TABLE.find(5), None);
    }
}
