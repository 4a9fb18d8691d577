//! Deferred binding of a process's first socket.
//!
//! A device opened by a process is unusable in its children, and binding opens the device. Programs
//! that bind a socket to probe for RDS and fork later, such as `rds-stress -D`, would leave their
//! children without RDS. So the first bind of a process is deferred until the first use of the
//! socket, for at most [`BIND_DELAY`].

#![forbid(unsafe_code)]

use std::{
    fs, io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use rds::Socket;

/// Maximum delay of a bind, for programs that use the socket only through `epoll`, which is not
/// interposed.
const BIND_DELAY: Duration = Duration::from_millis(100);

/// A socket with a deferred bind.
#[derive(Debug)]
struct DeferredBind {
    socket: Weak<Socket>,
    addr: SocketAddr,
}

static DEFERRED: Mutex<Option<DeferredBind>> = Mutex::new(None);

/// Whether a bind is deferred, readable without the lock.
static IS_DEFERRED: AtomicBool = AtomicBool::new(false);

/// This process or an ancestor has bound a socket.
static HAS_BOUND: AtomicBool = AtomicBool::new(false);

fn deferred() -> MutexGuard<'static, Option<DeferredBind>> {
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Discards the deferred bind of the parent process.
pub(crate) fn discard() {
    IS_DEFERRED.store(false, SeqCst);
}

/// Binds a socket, or defers the bind. A deferred bind has passed all checks except for the use of
/// the address by another process.
pub(crate) fn bind(socket: &Arc<Socket>, addr: SocketAddr) -> io::Result<()> {
    if is_deferrable(addr) && defer(socket, addr) {
        let unused = Arc::downgrade(socket);
        let later = move || {
            thread::sleep(BIND_DELAY);
            if let Some(socket) = unused.upgrade() {
                // An error is returned by the next use of the socket.
                drop(complete_bind(&socket));
            }
        };
        let spawned = verbs::signals::spawn_without_signals("rds-bind", later);
        // Without a thread, bind immediately.
        return spawned.map_or_else(|_| complete_bind(socket), |_| Ok(()));
    }
    HAS_BOUND.store(true, SeqCst);
    socket.bind_to(addr).map(drop)
}

/// Defers the bind, unless another one is deferred.
fn defer(socket: &Arc<Socket>, addr: SocketAddr) -> bool {
    let mut deferred = deferred();
    if IS_DEFERRED.load(SeqCst) {
        return false;
    }
    let socket = Arc::downgrade(socket);
    *deferred = Some(DeferredBind { socket, addr });
    IS_DEFERRED.store(true, SeqCst);
    true
}

/// Performs a deferred bind, before the first use of the socket.
///
/// # Errors
/// As for [`Socket::bind_to`], if the bind is for this socket. The next call tries again.
pub(crate) fn complete_bind(socket: &Arc<Socket>) -> io::Result<()> {
    if !IS_DEFERRED.load(SeqCst) {
        return Ok(());
    }
    let mut deferred = deferred();
    let Some(DeferredBind {
        socket: bound,
        addr,
    }) = deferred.as_ref()
    else {
        return Ok(());
    };
    let is_own = bound.as_ptr() == Arc::as_ptr(socket);
    // If the socket is closed, there is nothing to bind.
    let result = bound.upgrade().map_or(Ok(()), |bound| {
        HAS_BOUND.store(true, SeqCst);
        bound.bind_to(*addr).map(drop)
    });
    if result.is_ok() {
        *deferred = None;
        IS_DEFERRED.store(false, SeqCst);
    }
    // Errors are returned to the socket of the bind only.
    if is_own { result } else { Ok(()) }
}

/// Whether the bind can be deferred: the first one of the process, valid without opening a device.
fn is_deferrable(addr: SocketAddr) -> bool {
    let is_on_link = matches!(addr, SocketAddr::V6(v6) if v6.scope_id() != 0);
    // The module would own the port.
    let is_free = !Path::new("/sys/module/rds_rdma").exists();
    let is_first = !HAS_BOUND.load(SeqCst);
    is_first && addr.port() > 1 && !is_on_link && is_free && has_device(addr.ip())
}

/// Whether a device has the address as a GID.
fn has_device(ip: IpAddr) -> bool {
    let ip = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    inside(Path::new("/sys/class/infiniband"))
        .flat_map(|device| inside(&device.path().join("ports")))
        .flat_map(|port| inside(&port.path().join("gids")))
        .filter_map(|gid| fs::read_to_string(gid.path()).ok())
        .any(|gid| gid.trim().parse() == Ok::<Ipv6Addr, _>(ip))
}
