//! When a socket gets its address.
//!
//! A device that a process has opened is none for its children, and to listen at an address is to open its
//! device. Programs that only try a socket before they fork, as `rds-stress -D` does, would leave their
//! children without. So the first address of a process is taken when the socket is used, or soon.

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

/// After so long an address is taken, used or not: who waits by `epoll` is not seen.
const SOON: Duration = Duration::from_millis(100);

/// A socket that has no address yet, of which the program thinks that it has one.
#[derive(Debug)]
struct Postponed {
    socket: Weak<Socket>,
    addr: SocketAddr,
}

static POSTPONED: Mutex<Option<Postponed>> = Mutex::new(None);

/// Whether there may be one: says so without the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// An address has been taken in this process, or in one that it descends from.
static TAKEN: AtomicBool = AtomicBool::new(false);

fn postponed() -> MutexGuard<'static, Option<Postponed>> {
    POSTPONED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a parent has postponed is nothing to its child.
pub(crate) fn forget() {
    ANY.store(false, SeqCst);
}

/// Gives a socket its address, at once or when it is used. What can be wrong with it is told at once, but
/// for that another process has it.
pub(crate) fn bind(socket: &Arc<Socket>, addr: SocketAddr) -> io::Result<()> {
    if may_wait(addr) && postpone(socket, addr) {
        let unused = Arc::downgrade(socket);
        let later = move || {
            thread::sleep(SOON);
            if let Some(socket) = unused.upgrade() {
                // Who uses it hears of what is wrong.
                drop(complete_bind(&socket));
            }
        };
        let spawned = verbs::spawn_without_signals("rds-bind", later);
        // Without a thread, nothing can wait.
        return spawned.map_or_else(|_| complete_bind(socket), |_| Ok(()));
    }
    TAKEN.store(true, SeqCst);
    socket.bind_to(addr).map(drop)
}

/// Has the address taken later, if none is already, or will be.
fn postpone(socket: &Arc<Socket>, addr: SocketAddr) -> bool {
    let mut postponed = postponed();
    if ANY.load(SeqCst) {
        return false;
    }
    let socket = Arc::downgrade(socket);
    *postponed = Some(Postponed { socket, addr });
    ANY.store(true, SeqCst);
    true
}

/// Takes the address that has been postponed: the socket is about to be used.
///
/// # Errors
/// As those of [`Socket::bind_to`], if it is this socket's. The next call tries again.
pub(crate) fn complete_bind(socket: &Arc<Socket>) -> io::Result<()> {
    if !ANY.load(SeqCst) {
        return Ok(());
    }
    let mut postponed = postponed();
    let Some(Postponed {
        socket: whose,
        addr,
    }) = postponed.as_ref()
    else {
        return Ok(());
    };
    let is_own = whose.as_ptr() == Arc::as_ptr(socket);
    // If it has been closed, nobody wants the address any more.
    let result = whose.upgrade().map_or(Ok(()), |whose| {
        TAKEN.store(true, SeqCst);
        whose.bind_to(*addr).map(drop)
    });
    if result.is_ok() {
        *postponed = None;
        ANY.store(false, SeqCst);
    }
    // The socket whose it is hears what is wrong.
    if is_own { result } else { Ok(()) }
}

/// Whether it is the first of the process, and it is plain without opening a device that it can be had.
fn may_wait(addr: SocketAddr) -> bool {
    let is_on_link = matches!(addr, SocketAddr::V6(v6) if v6.scope_id() != 0);
    // The kernel's RDS would have the port.
    let is_free = !Path::new("/sys/module/rds_rdma").exists();
    let is_first = !TAKEN.load(SeqCst);
    is_first && addr.port() > 1 && !is_on_link && is_free && has_device(addr.ip())
}

/// Whether a device has that address, as those for Ethernet tell.
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
