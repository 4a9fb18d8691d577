//! Which descriptor is which socket.

#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, RawFd},
    process,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use rsocket::{EventSet, MappedBuffer, Socket};

use crate::{errno::os, noted::Noted};

/// What a descriptor stands for.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Socket(Arc<Opened>),
    Set(Arc<EventSet>),
}

/// A socket, and what C calls need beside it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) socket: Arc<Socket>,
    /// Unlike the descriptor, it is never used again.
    pub(crate) generation: u64,
    pub(crate) noted: Noted,
    /// Absent once it is closed: nobody maps any more then.
    mappings: Mutex<Option<Vec<Mapped>>>,
}

impl Opened {
    /// The memory of the program's that the peer may write to.
    ///
    /// # Errors
    /// - `EBADF`: it has been closed.
    pub(crate) fn mappings<T>(
        &self,
        change: impl FnOnce(&mut Vec<Mapped>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mappings = self.mappings.lock();
        let mut mappings = mappings.unwrap_or_else(PoisonError::into_inner);
        change(mappings.as_mut().ok_or_else(|| os(libc::EBADF))?)
    }

    /// Ends it. However long others may be in their calls with it, the memory is the program's alone when
    /// this returns.
    pub(crate) fn close(&self) {
        self.socket.close();
        let mappings = self.mappings.lock();
        let mut mappings = mappings.unwrap_or_else(PoisonError::into_inner);
        drop(mappings.take());
    }
}

/// Memory of the program's, of which the peer knows.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Absent where it was mapped without access.
    #[expect(dead_code, reason = "it is mapped until it is dropped")]
    pub(crate) buffer: Option<MappedBuffer>,
}

/// The sockets of one process. A child must not use, or end, what it has inherited.
#[derive(Debug)]
struct Table {
    process: u32,
    entries: ManuallyDrop<HashMap<RawFd, Entry>>,
}

static TABLE: RwLock<Option<Table>> = RwLock::new(None);
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl Table {
    fn new() -> Self {
        Self {
            process: process::id(),
            entries: ManuallyDrop::default(),
        }
    }

    fn is_own(&self) -> bool {
        self.process == process::id()
    }
}

/// Finds what a descriptor stands for.
pub(crate) fn entry(fd: RawFd) -> Option<Entry> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.as_ref()?.entries.get(&fd).cloned()
}

/// Finds a socket.
pub(crate) fn socket(fd: RawFd) -> io::Result<Arc<Opened>> {
    match entry(fd) {
        Some(Entry::Socket(opened)) => Ok(opened),
        _ => Err(os(libc::EBADF)),
    }
}

/// All sockets.
pub(crate) fn sockets() -> Vec<Arc<Opened>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let entries = table.as_ref().map(|table| table.entries.values());
    let sockets = entries
        .into_iter()
        .flatten()
        .filter_map(|entry| match entry {
            Entry::Socket(opened) => Some(Arc::clone(opened)),
            Entry::Set(_) => None,
        });
    sockets.collect()
}

/// Finds a set.
pub(crate) fn set(fd: RawFd) -> io::Result<Arc<EventSet>> {
    match entry(fd) {
        Some(Entry::Set(set)) => Ok(set),
        Some(Entry::Socket(_)) => Err(os(libc::EINVAL)),
        None => Err(os(libc::EBADF)),
    }
}

/// Adds a socket under its own descriptor, which is returned.
pub(crate) fn add_socket(socket: Socket, noted: Noted) -> RawFd {
    use std::os::fd::AsFd;
    let fd = socket.as_fd().as_raw_fd();
    let opened = Opened {
        socket: Arc::new(socket),
        generation: GENERATION.fetch_add(1, Relaxed),
        noted,
        mappings: Mutex::new(Some(Vec::new())),
    };
    insert(fd, Entry::Socket(Arc::new(opened)));
    fd
}

/// Adds a set under a descriptor of it.
pub(crate) fn add_set(fd: RawFd, set: EventSet) {
    insert(fd, Entry::Set(Arc::new(set)));
}

fn insert(fd: RawFd, entry: Entry) {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if !table.as_ref().is_some_and(Table::is_own) {
        *table = Some(Table::new());
    }
    let old = table
        .as_mut()
        .and_then(|table| table.entries.insert(fd, entry));
    drop(table);
    // A program has closed a descriptor of ours by `close`. What it was is dropped unlocked.
    drop(old);
}

/// Takes an entry out. Its descriptor is open for as long as the entry lives, so nobody can get the
/// same number before it is out of the table.
pub(crate) fn remove(fd: RawFd) -> Option<Entry> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let own = table.as_mut().filter(|table| table.is_own())?;
    own.entries.remove(&fd)
}
