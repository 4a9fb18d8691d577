//! Which descriptors of the program are sockets of this crate.

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
use rds::{Socket, proto::control::LatencyPoints};

/// The descriptors that can be known here.
const MOST: usize = 65536;

/// What the program has chosen that the socket itself does not know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) nonblocking: bool,
    pub(crate) bound: bool,
    pub(crate) zero_copy: bool,
    /// The times that are to be told with each message.
    pub(crate) latency: Option<LatencyPoints>,
    /// `SO_TIMESTAMP`.
    pub(crate) timestamp: bool,
}

/// A socket, which the program may know by several descriptors. It is closed with the last.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) socket: Socket,
    chosen: Mutex<Chosen>,
}

impl Held {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            chosen: Mutex::default(),
        }
    }

    pub(crate) fn chosen(&self) -> MutexGuard<'_, Chosen> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process that the table is of. The child of a `vfork` has its parent's memory and
/// descriptors of its own.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Says without a lock that a descriptor is none: in signal handlers, and in children, nothing else
/// is allowed.
static KNOWN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
static SOCKETS: Mutex<BTreeMap<c_int, Arc<Held>>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<c_int, Arc<Held>>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known(fd: c_int) -> Option<&'static AtomicBool> {
    KNOWN.get(usize::try_from(fd).ok()?)
}

/// The table is this process's from now on.
pub(crate) fn own() {
    OWNER.store(process::id(), SeqCst);
}

/// Whether a descriptor is one, as far as can be said without a lock.
pub(crate) fn may_have(fd: c_int) -> bool {
    known(fd).is_some_and(|known| known.load(SeqCst))
}

pub(crate) fn find(fd: c_int) -> Option<Arc<Held>> {
    may_have(fd).then(|| lock().get(&fd).cloned()).flatten()
}

/// Adds a socket; whether there is room for its descriptor.
pub(crate) fn add(fd: c_int, held: Arc<Held>) -> bool {
    let Some(known) = known(fd) else {
        return false;
    };
    let mut sockets = lock();
    let old = sockets.insert(fd, held);
    known.store(true, SeqCst);
    drop(sockets);
    // Closing one takes a while, and comes back here.
    drop(old);
    true
}

/// Forgets what a descriptor was; what it was is closed if it was the last.
pub(crate) fn forget(fd: c_int) {
    if !may_have(fd) || OWNER.load(SeqCst) != process::id() {
        return;
    }
    let mut sockets = lock();
    if let Some(known) = known(fd) {
        known.store(false, SeqCst);
    }
    let old = sockets.remove(&fd);
    drop(sockets);
    drop(old);
}

/// Nothing is known any more. What was is neither closed nor freed.
pub(crate) fn forget_all() {
    for known in &KNOWN {
        known.store(false, SeqCst);
    }
}
