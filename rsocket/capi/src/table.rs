//! Table of the sockets and sets by descriptor.

#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, RawFd},
    process,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use rsocket::{EventSet, MappedBuffer, Socket};

use crate::{errno::os, noted::Noted};

/// Object behind a descriptor.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Socket(Arc<Opened>),
    Set(Arc<EventSet>),
}

/// A socket with the state of its C interface.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) socket: Arc<Socket>,
    /// Unique, unlike the descriptor.
    pub(crate) generation: u64,
    pub(crate) noted: Noted,
    /// `None` once closed, so that no mapping is added later.
    mappings: Mutex<Option<Vec<Mapped>>>,
}

impl Opened {
    /// Changes the mappings of the program's memory.
    ///
    /// # Errors
    /// - `EBADF`: the socket has been closed.
    pub(crate) fn mappings<T>(
        &self,
        change: impl FnOnce(&mut Vec<Mapped>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mappings = self.mappings.lock();
        let mut mappings = mappings.unwrap_or_else(PoisonError::into_inner);
        change(mappings.as_mut().ok_or_else(|| os(libc::EBADF))?)
    }

    /// Closes the socket. On return, the mapped memory belongs to the program alone, even with calls in
    /// progress in other threads.
    pub(crate) fn close(&self) {
        self.socket.close();
        let mappings = self.mappings.lock();
        let mut mappings = mappings.unwrap_or_else(PoisonError::into_inner);
        drop(mappings.take());
    }
}

/// Memory of the program mapped for the peer.
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// `None` if mapped without access.
    #[expect(dead_code, reason = "it is mapped until it is dropped")]
    pub(crate) buffer: Option<MappedBuffer>,
}

/// Sockets of one process. A child must neither use nor close inherited ones.
#[derive(Debug)]
struct SocketTable {
    process: u32,
    entries: ManuallyDrop<HashMap<RawFd, Entry>>,
    next_number: RawFd,
}

/// First number that is no descriptor: more than a kernel has memory for.
const FIRST_NUMBER: RawFd = 1 << 30;

static WITHOUT_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

static TABLE: RwLock<Option<SocketTable>> = RwLock::new(None);
static GENERATION: AtomicU64 = AtomicU64::new(0);

impl SocketTable {
    fn new() -> Self {
        Self {
            process: process::id(),
            entries: ManuallyDrop::default(),
            next_number: FIRST_NUMBER,
        }
    }

    /// Returns a number without an entry that is no descriptor.
    fn free_number(&mut self) -> RawFd {
        loop {
            let number = self.next_number;
            self.next_number = number.checked_add(1).unwrap_or(FIRST_NUMBER);
            if !self.entries.contains_key(&number) {
                return number;
            }
        }
    }

    fn is_own(&self) -> bool {
        self.process == process::id()
    }
}

/// Returns the object behind a descriptor.
pub(crate) fn entry(fd: RawFd) -> Option<Entry> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.as_ref()?.entries.get(&fd).cloned()
}

/// Returns the socket behind a descriptor.
pub(crate) fn socket(fd: RawFd) -> io::Result<Arc<Opened>> {
    match entry(fd) {
        Some(Entry::Socket(opened)) => Ok(opened),
        _ => Err(os(libc::EBADF)),
    }
}

/// Returns all sockets.
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

/// Returns the set behind a descriptor.
pub(crate) fn set(fd: RawFd) -> io::Result<Arc<EventSet>> {
    match entry(fd) {
        Some(Entry::Set(set)) => Ok(set),
        Some(Entry::Socket(_)) => Err(os(libc::EINVAL)),
        None => Err(os(libc::EBADF)),
    }
}

/// Has sockets get numbers that are no descriptors from now on.
pub(crate) fn open_without_descriptors() {
    WITHOUT_DESCRIPTORS.store(true, Relaxed);
}

/// Whether the numbers of new sockets are their descriptors.
pub(crate) fn has_descriptors() -> bool {
    !WITHOUT_DESCRIPTORS.load(Relaxed)
}

/// Adds a socket under its own descriptor, or under a number. Returns the descriptor or the number.
pub(crate) fn add_socket(socket: Socket, noted: Noted) -> RawFd {
    use std::os::fd::AsFd;
    let fd = has_descriptors().then(|| socket.as_fd().as_raw_fd());
    let opened = Opened {
        socket: Arc::new(socket),
        generation: GENERATION.fetch_add(1, Relaxed),
        noted,
        mappings: Mutex::new(Some(Vec::new())),
    };
    insert(fd, Entry::Socket(Arc::new(opened)))
}

/// Adds a set under its descriptor.
pub(crate) fn add_set(fd: RawFd, set: EventSet) {
    insert(Some(fd), Entry::Set(Arc::new(set)));
}

/// Adds an entry, without a descriptor under a number.
fn insert(fd: Option<RawFd>, entry: Entry) -> RawFd {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if !table.as_ref().is_some_and(SocketTable::is_own) {
        *table = None;
    }
    let sockets = table.get_or_insert_with(SocketTable::new);
    let number = fd.unwrap_or_else(|| sockets.free_number());
    let old = sockets.entries.insert(number, entry);
    drop(table);
    // The program has closed a descriptor of this library with `close`. The old entry is dropped outside the
    // lock.
    drop(old);
    number
}

/// Removes an entry. The entry keeps its descriptor open, so the number cannot be reused before the removal.
pub(crate) fn remove(fd: RawFd) -> Option<Entry> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let table = table.as_mut().filter(|table| table.is_own())?;
    table.entries.remove(&fd)
}
