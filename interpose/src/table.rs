//! Table of the library's descriptors.

use std::{
    collections::BTreeMap,
    process,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    },
};

use libc::c_int;

/// Maximum number of descriptors, as in rdma-core's library. Higher descriptors are refused.
pub const MAX_DESCRIPTORS: usize = 65536;

/// Process id of the owner of the tables.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Makes this process the owner of the tables.
pub fn claim_ownership() {
    OWNER.store(process::id(), SeqCst);
}

/// Whether this process owns the tables, and so may have library descriptors unknown to the
/// program. The child of a `vfork` shares the memory of the parent but is no owner, because the
/// child has descriptors of its own.
pub fn is_owner() -> bool {
    OWNER.load(SeqCst) == process::id()
}

/// Makes this process the owner of the tables, and registers `child` to run in its children. Only
/// the function of the first call is registered.
pub fn watch_forks(child: unsafe extern "C" fn()) {
    static WATCHED: OnceLock<c_int> = OnceLock::new();
    claim_ownership();
    // SAFETY: async-signal-safe, and valid as long as the library. Assumption: a library linked with `-z nodelete` stays
    // loaded.
    WATCHED.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(child)) });
}

/// Objects by descriptor.
#[derive(Debug)]
pub struct Table<T> {
    /// Whether a descriptor may be in the table, readable without a lock: in signal handlers and in
    /// children, locks are forbidden.
    may_contain: [AtomicBool; MAX_DESCRIPTORS],
    things: Mutex<BTreeMap<c_int, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Table<T> {
    /// Creates an empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            may_contain: [const { AtomicBool::new(false) }; MAX_DESCRIPTORS],
            things: Mutex::new(BTreeMap::new()),
        }
    }

    /// The entry of `may_contain`, if the descriptor is below [`MAX_DESCRIPTORS`].
    fn flag(&self, fd: c_int) -> Option<&AtomicBool> {
        self.may_contain.get(usize::try_from(fd).ok()?)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<c_int, Arc<T>>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a descriptor may be in the table, without a lock.
    pub fn may_have(&self, fd: c_int) -> bool {
        self.flag(fd).is_some_and(|flag| flag.load(SeqCst))
    }

    /// The object of a descriptor. For a descriptor that was never in the table, takes no lock.
    pub fn find(&self, fd: c_int) -> Option<Arc<T>> {
        if !self.may_have(fd) {
            return None;
        }
        self.lock().get(&fd).cloned()
    }

    /// Adds an object. Returns whether its descriptor is below [`MAX_DESCRIPTORS`].
    pub fn add(&self, fd: c_int, thing: Arc<T>) -> bool {
        let Some(flag) = self.flag(fd) else {
            return false;
        };
        if !is_owner() {
            return true;
        }
        let mut things = self.lock();
        let old = things.insert(fd, thing);
        flag.store(true, SeqCst);
        drop(things);
        // Dropping an object may block, or call this table.
        drop(old);
        true
    }

    /// Removes a descriptor and returns its object, closed with its last reference.
    pub fn remove(&self, fd: c_int) -> Option<Arc<T>> {
        let flag = self.flag(fd)?;
        if !flag.load(SeqCst) || !is_owner() {
            return None;
        }
        let mut things = self.lock();
        flag.store(false, SeqCst);
        things.remove(&fd)
    }

    /// Removes all entries. The objects are leaked, and not closed.
    pub fn forget_all(&self) {
        for flag in &self.may_contain {
            flag.store(false, SeqCst);
        }
    }

    /// All objects; an object with several descriptors is repeated.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    /// All descriptors of an object.
    pub fn same(&self, thing: &Arc<T>) -> Vec<c_int> {
        let things = self.lock();
        let same = things.iter().filter(|(_, other)| Arc::ptr_eq(other, thing));
        same.map(|(fd, _)| *fd).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because there is one owner per process.
    #[test]
    fn table_changes_only_in_owner_process() {
        static TABLE: Table<&str> = Table::new();
        claim_ownership();
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

        claim_ownership();
        assert_eq!(TABLE.remove(9).as_deref(), Some(&"old"));
        assert_eq!(TABLE.remove(9), None);
        assert!(!TABLE.may_have(9) && TABLE.may_have(5));
        TABLE.forget_all();
        assert_eq!(TABLE.find(5), None);
    }
}
