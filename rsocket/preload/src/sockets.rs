//! Creating and connecting sockets, options, and data transfer.

use std::{
    cell::Cell,
    env, fs, io,
    net::SocketAddr,
    os::fd::{AsRawFd, IntoRawFd, OwnedFd},
    sync::{Arc, OnceLock},
};

use interpose::{
    MAX_DESCRIPTORS, cross, duplicate, last_errno, load, os, real, set_errno, store, watch_forks,
};
use libc::{c_int, sockaddr, sockaddr_storage, socklen_t};
use rsocket::Socket;
use rsocket_capi as capi;
use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::Shutdown,
};

use crate::{
    address,
    config::Rules,
    fork::{self, Names},
    inherited, log, loopback, ports,
    replacement::turn_to_tcp,
    table::{self, Rsocket, SOCKETS, with},
};

/// System-wide configuration file.
const CONFIG: &str = "/etc/rdma/rsocket/preload_config";

thread_local! {
    /// Set while this thread creates an rsocket: sockets opened meanwhile are internal.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
struct PreloadSettings {
    rules: Rules,
    program: String,
    forks: bool,
    /// Values of `RDMA_SQSIZE`, `RDMA_RQSIZE` and `RDMA_INLINE`, where set.
    sizes: Vec<(c_int, c_int)>,
}

fn settings() -> &'static PreloadSettings {
    static SETTINGS: OnceLock<PreloadSettings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let number = |name| env::var(name).ok()?.trim().parse::<c_int>().ok();
        let program = env::args_os().next().unwrap_or_default();
        let program = program.to_string_lossy();
        let names = [("RS_SQ_SIZE", 0), ("RS_RQ_SIZE", 1), ("RS_INLINE", 2)];
        PreloadSettings {
            rules: Rules::parse(&fs::read_to_string(CONFIG).unwrap_or_default()),
            program: program.rsplit('/').next().unwrap_or_default().to_owned(),
            forks: number("RDMAV_FORK_SAFE").is_some_and(|value| value != 0),
            sizes: names
                .into_iter()
                .filter_map(|(name, option)| Some((option, number(name)?)))
                .filter(|(_, size)| *size > 0)
                .collect(),
        }
    })
}

pub(crate) const INT: socklen_t = 4;
const STORAGE: socklen_t = 128;

/// Size of the shortest address, of IPv4, in bytes.
const IPV4: socklen_t = 16;

const _: () = assert!(size_of::<libc::sockaddr_in>() == IPV4 as usize);
const _: () = assert!(size_of::<c_int>() == INT as usize);
const _: () = assert!(size_of::<sockaddr_storage>() == STORAGE as usize);

/// Level of the rsockets options.
pub(crate) const SOL_RDMA: c_int = 0x10000;

/// Kind of a new socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketKind {
    Plain,
    Rsocket,
    /// TCP at first, moved to an rsocket on first use.
    Later,
}

fn kind_of(domain: c_int, kind: c_int, protocol: c_int) -> SocketKind {
    let plain = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
    let is_stream = plain == libc::SOCK_STREAM;
    let is_supported = is_stream || plain == libc::SOCK_DGRAM;
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) || !is_supported {
        return SocketKind::Plain;
    }
    let settings = settings();
    let allowed = settings
        .rules
        .allow(&settings.program, domain, kind, protocol);
    match (allowed, settings.forks && is_stream) {
        (true, false) => SocketKind::Rsocket,
        (true, true) if fork::has_device() => SocketKind::Later,
        _ => SocketKind::Plain,
    }
}

/// Makes all rsockets unusable in a child: closing inherited descriptors, as before an exec, must not end the
/// parent's connections.
unsafe extern "C" fn child() {
    inherited::take_over();
    SOCKETS.forget_all();
    fork::close_duplicates();
    verbs::fd::forget_all();
    if settings().forks {
        // Sockets not moved yet belong to this process as much as to its parent.
        fork::forked();
        interpose::claim_ownership();
    }
}

/// Creates an rsocket without a descriptor of the program.
pub(crate) fn make(domain: c_int, kind: c_int, protocol: c_int) -> Option<c_int> {
    verbs::fd::raise_all();
    capi::open_without_descriptors();
    let outside = INSIDE.replace(true);
    let inner = capi::rsocket(domain, kind | libc::SOCK_CLOEXEC, protocol);
    INSIDE.set(outside);
    if inner < 0 {
        return None;
    }
    for (option, size) in &settings().sizes {
        let value = (&raw const *size).cast();
        // SAFETY: the value is an `int` and outlives the call.
        unsafe { capi::rsetsockopt(inner, SOL_RDMA, *option, value, INT) };
    }
    Some(inner)
}

/// Accepts a connection of an rsocket, if any.
pub(crate) fn take(listener: c_int) -> Option<c_int> {
    let (addr, len) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: null address and length.
    let inner = unsafe { capi::raccept4(listener, addr, len, libc::SOCK_CLOEXEC) };
    (inner >= 0).then_some(inner)
}

/// Creates a descriptor of the program for an rsocket.
///
/// # Errors
/// - `EMFILE`: too many open descriptors, or a number beyond the table.
pub(crate) fn show(socket: &Socket, close_on_exec: bool) -> io::Result<OwnedFd> {
    let shown = socket.mirror()?;
    if usize::try_from(shown.as_raw_fd()).is_ok_and(|fd| fd >= MAX_DESCRIPTORS) {
        return Err(os(libc::EMFILE));
    }
    if !close_on_exec {
        fcntl_setfd(&shown, FdFlags::empty())?;
    }
    Ok(shown)
}

/// Gives an rsocket and its descriptor to the program.
fn publish(inner: Arc<Rsocket>, shown: OwnedFd) -> c_int {
    let fd = shown.into_raw_fd();
    SOCKETS.add(fd, inner);
    fd
}

/// Creates an rsocket with a descriptor of the program.
fn open(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<c_int> {
    let inner = make(domain, kind, protocol).ok_or_else(io::Error::last_os_error)?;
    watch_forks(child);
    let rsocket = table::adopt(inner);
    let socket = capi::socket_of(inner).ok_or_else(|| os(libc::EBADF))?;
    let shown = show(&socket, kind & libc::SOCK_CLOEXEC != 0)?;
    Ok(publish(rsocket, shown))
}

/// Whether an error means too many open descriptors.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn real_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let real = real!(socket: unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: no preconditions.
    unsafe { real(domain, kind, protocol) }
}

/// Creates an rsocket, or a kernel socket where there can be none.
fn open_or_fall_back(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    open(domain, kind, protocol).unwrap_or_else(|why| {
        if is_full(&why) {
            return failed(&why);
        }
        let fd = real_socket(domain, kind, protocol);
        log::write_line(|| {
            format!("descriptor {fd}: TCP or UDP, as there can be no rsocket: {why}")
        });
        fd
    })
}

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if INSIDE.get() {
        return real_socket(domain, kind, protocol);
    }
    match kind_of(domain, kind, protocol) {
        SocketKind::Plain => real_socket(domain, kind, protocol),
        SocketKind::Rsocket => cross(false, true, || {
            Some(open_or_fall_back(domain, kind, protocol))
        })
        .unwrap_or(-1),
        SocketKind::Later => {
            watch_forks(child);
            let fd = real_socket(domain, kind, protocol);
            fork::record_new(fd);
            fd
        }
    }
}

/// Address of a socket, of any family.
#[derive(Clone)]
pub(crate) struct Name {
    storage: sockaddr_storage,
    len: socklen_t,
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Name")
            .field("family", &self.family())
            .finish_non_exhaustive()
    }
}

impl Name {
    /// The longest address, all zeros.
    fn zeroed() -> Self {
        Self {
            // SAFETY: addresses are plain data; all zeros are valid.
            storage: unsafe { std::mem::zeroed() },
            len: STORAGE,
        }
    }

    pub(crate) fn of(rsocket: &Rsocket) -> Option<Self> {
        let mut name = Self::zeroed();
        let (at, len) = (&raw mut name.storage, &raw mut name.len);
        // SAFETY: `len` is the size of the storage.
        let got = unsafe { capi::rgetsockname(rsocket.fd(), at.cast(), len) };
        (got == 0).then_some(name)
    }

    /// An address of the program, or `None` without one of an address's length.
    ///
    /// # Safety
    /// `addr` is null, or `len` bytes of `addr` are readable.
    pub(crate) unsafe fn from_program(addr: *const sockaddr, len: socklen_t) -> Option<Self> {
        if addr.is_null() || !(IPV4..=STORAGE).contains(&len) {
            return None;
        }
        let mut name = Self::zeroed();
        name.len = len;
        let at = (&raw mut name.storage).cast::<u8>();
        // SAFETY: `len` bytes are readable, as the caller promises, and fit in the storage.
        unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), at, len as usize) };
        Some(name)
    }

    pub(crate) fn family(&self) -> c_int {
        self.storage.ss_family.into()
    }

    pub(crate) fn as_ptr(&self) -> *const sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn len(&self) -> socklen_t {
        self.len
    }

    pub(crate) fn has_port(&self) -> bool {
        let v4 = (&raw const self.storage).cast::<libc::sockaddr_in>();
        // SAFETY: the port has the same offset in the addresses of both families, and the storage is large
        // enough.
        unsafe { (*v4).sin_port != 0 }
    }
}

/// Sets `errno`. Returns the result of a failed call.
pub(crate) fn failed(error: &io::Error) -> c_int {
    set_errno(rsocket::errno(error));
    -1
}

/// Creates a TCP socket of the kernel that a program does not inherit by `exec`.
pub(crate) fn real_stream(family: c_int, flags: c_int) -> c_int {
    real_socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0)
}

/// The local address of a socket of the kernel.
pub(crate) fn real_name(fd: c_int) -> Option<Name> {
    let mut name = Name::zeroed();
    let (at, len) = (&raw mut name.storage, &raw mut name.len);
    // SAFETY: `len` is the size of the storage.
    let got = unsafe { real_getsockname(fd, at.cast(), len) };
    (got == 0).then_some(name)
}

/// # Safety
/// As for `getsockname`.
unsafe fn real_getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let real = real!(getsockname: GetName);
    // SAFETY: as the caller promises.
    unsafe { real(fd, addr, len) }
}

pub(crate) fn real_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let real = real!(bind: unsafe extern "C-unwind" fn(c_int, *const sockaddr, socklen_t) -> c_int);
    // SAFETY: the address is the program's or a valid local one; the kernel checks it.
    unsafe { real(fd, addr, len) }
}

/// Binds an rsocket. Returns `None` for other descriptors, and for an rsocket that is a kernel socket now.
///
/// # Safety
/// As for `bind`.
unsafe fn rsocket_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    let rsocket = table::find(fd)?;
    let family = capi::socket_of(rsocket.fd())?.family();
    // SAFETY: as the caller promises.
    let name = match unsafe { address::to_bind(family, addr, len) } {
        Ok(name) => name,
        Err(err) => return Some(failed(&err)),
    };
    let (addr, len) = (name.as_ptr().cast::<sockaddr>(), STORAGE);
    // SAFETY: the name has as many bytes.
    if unsafe { loopback::is_loopback(addr, len) } && loopback::may_bind(&rsocket) {
        let moved = loopback::leave_rdma(fd, rsocket);
        return moved.err().map(|err| failed(&err));
    }
    // SAFETY: as above.
    let requested = unsafe { Name::from_program(addr, len) };
    if requested.is_some_and(|requested| ports::bind_to_free(&rsocket, &requested).is_some()) {
        return Some(0);
    }
    // SAFETY: as above.
    let bound = unsafe { capi::rbind(rsocket.fd(), addr, len) };
    if bound == 0 {
        return Some(0);
    }
    let error = last_errno();
    // No RDMA device has the address, but another interface may.
    let may_be_kernel_address = matches!(error, libc::ENODEV | libc::EADDRNOTAVAIL);
    let is_datagram = capi::socket_of(rsocket.fd()).is_some_and(|socket| socket.is_datagram());
    let why = "no RDMA device has the address";
    if !may_be_kernel_address || is_datagram || turn_to_tcp(fd, rsocket, None, why).is_err() {
        set_errno(error);
        return Some(bound);
    }
    None
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if SOCKETS.may_have(fd) {
        // SAFETY: as the caller promises.
        let bound = cross(false, true, || unsafe { rsocket_bind(fd, addr, len) });
        if let Some(bound) = bound {
            return bound;
        }
    }
    real_bind(fd, addr, len)
}

/// Whether a listener has a connection to be accepted.
fn is_ready(listener: &Rsocket) -> bool {
    let mut entry = libc::pollfd {
        fd: listener.fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { capi::rpoll(&raw mut entry, 1, 0) == 1 }
}

/// Whether the process may open another descriptor. As in the kernel, `accept` asks before it
/// waits. `fd` is any open descriptor.
fn has_free_descriptor(fd: c_int) -> bool {
    let spare = duplicate(fd, true);
    if spare >= 0 {
        // SAFETY: a private descriptor, not used elsewhere.
        unsafe { libc::close(spare) };
    }
    spare >= 0
}

/// Accepts a connection of an rsocket. Returns `None` for other descriptors.
///
/// # Safety
/// As for `accept4`.
unsafe fn rsocket_accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Option<c_int> {
    let rsocket = table::find(fd)?;
    if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
        return Some(failed(&os(libc::EINVAL)));
    }
    // Half-open connections may give way to one that waits.
    if !has_free_descriptor(fd) && !is_ready(&rsocket) {
        return Some(failed(&os(libc::EMFILE)));
    }
    let inner_flags = flags | libc::SOCK_CLOEXEC;
    let show = |socket: &Socket| show(socket, flags & libc::SOCK_CLOEXEC != 0);
    // SAFETY: as the caller promises.
    let accepted = unsafe { capi::accept_with(rsocket.fd(), addr, len, inner_flags, show) };
    Some(match accepted {
        Ok((inner, shown)) => {
            let fd = publish(table::adopt(inner), shown);
            log::write_line(|| format!("descriptor {fd}: accepted by RDMA"));
            fd
        }
        Err(err) => {
            if rsocket::errno(&err) == libc::EACCES {
                log::warn(&format!(
                    "descriptor {fd} accepts no connection: {err}; set RDMAV_FORK_SAFE, with which sockets begin as TCP"
                ));
            }
            failed(&err)
        }
    })
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if SOCKETS.may_have(fd) {
        // SAFETY: as the caller promises.
        let accepted = cross(true, true, || unsafe {
            rsocket_accept(fd, addr, len, flags)
        });
        if let Some(accepted) = accepted {
            return accepted;
        }
    }
    let real = real!(
        accept4: unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int
    );
    // SAFETY: as the caller promises.
    let accepted = unsafe { real(fd, addr, len, flags) };
    fork::accepted(fd, accepted);
    accepted
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { accept4(fd, addr, len, 0) }
}

/// Error of a listener by RDMA, its cause, and the remedy: it listens by TCP.
type TcpReason = (c_int, &'static str, &'static str);

const TCP_REASONS: [TcpReason; 2] = [
    (
        libc::ENOMEM,
        "the process may not lock the memory of a connection (RLIMIT_MEMLOCK, `ulimit -l`)",
        "raise the limit, as with `ulimit -l unlimited`",
    ),
    (
        libc::EACCES,
        "the process has changed its credentials since the socket was created",
        "set RDMAV_FORK_SAFE",
    ),
];

/// Listens by an rsocket; falls back to TCP with a message for one of [`TCP_REASONS`]. Returns `None` for other descriptors.
fn rsocket_listen(fd: c_int, backlog: c_int) -> Option<c_int> {
    let rsocket = table::find(fd)?;
    let name = Name::of(&rsocket).filter(Name::has_port);
    // As in the kernel, one connection more than the backlog waits, and a negative number is the maximum.
    let queue_len = match backlog {
        0.. => backlog.saturating_add(1),
        _ => libc::SOMAXCONN,
    };
    if capi::rlisten(rsocket.fd(), queue_len) == 0 {
        return Some(0);
    }
    let error = last_errno();
    let listening = match TCP_REASONS.iter().find(|reason| reason.0 == error) {
        Some(reason) => listen_by_tcp(fd, rsocket, name.as_ref(), backlog, reason),
        None => Err(os(error)),
    };
    let fail = |err: io::Error| {
        set_errno(err.raw_os_error().unwrap_or(error));
        -1
    };
    Some(listening.map_or_else(fail, |()| 0))
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if SOCKETS.may_have(fd)
        && let Some(listening) = cross(false, true, || rsocket_listen(fd, backlog))
    {
        return listening;
    }
    fork::listening(fd);
    real_listen(fd, backlog)
}

fn real_listen(fd: c_int, backlog: c_int) -> c_int {
    let real = real!(listen: unsafe extern "C-unwind" fn(c_int, c_int) -> c_int);
    // SAFETY: both arguments are numbers.
    unsafe { real(fd, backlog) }
}

/// Listens by TCP, with a message.
///
/// # Errors
/// Of the TCP socket, such as `EADDRINUSE`.
fn listen_by_tcp(
    fd: c_int,
    rsocket: Arc<Rsocket>,
    bind: Option<&Name>,
    backlog: c_int,
    &(_, why, remedy): &TcpReason,
) -> io::Result<()> {
    let listening =
        turn_to_tcp(fd, rsocket, bind, why).and_then(|()| match real_listen(fd, backlog) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    match &listening {
        Ok(()) => log::warn_once(&format!(
            "descriptor {fd} listens by TCP, not RDMA: {why}; {remedy}"
        )),
        Err(err) => log::write_line(|| {
            format!("descriptor {fd} listens neither by RDMA: {why}; nor by TCP: {err}")
        }),
    }
    listening
}

/// Safe function in Rust, declared unsafe for the macro like the C function.
unsafe fn rsocket_shutdown(fd: c_int, how: c_int) -> c_int {
    let socket = capi::socket_of(fd);
    if socket.is_some_and(|socket| {
        !socket.is_connected() && !socket.is_listening() && !socket.is_datagram()
    }) {
        set_errno(libc::ENOTCONN);
        return -1;
    }
    capi::rshutdown(fd, how)
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let direction = match how {
        libc::SHUT_RD => Some(Shutdown::Read),
        libc::SHUT_WR => Some(Shutdown::Write),
        libc::SHUT_RDWR => Some(Shutdown::Both),
        _ => None,
    };
    if fork::is_own(fd) {
        let done = cross(false, true, || {
            if direction.is_some_and(|how| fork::shut_later(fd, how)) {
                return Some(0);
            }
            let rsocket = table::find(fd)?;
            // SAFETY: numbers only.
            Some(with(&rsocket, |inner| unsafe {
                rsocket_shutdown(inner, how)
            }))
        });
        if let Some(done) = done {
            return done;
        }
    }
    let real = real!(shutdown: unsafe extern "C-unwind" fn(c_int, c_int) -> c_int);
    // SAFETY: numbers only.
    unsafe { real(fd, how) }
}

/// Gives a name of a stream moved from TCP to the program.
///
/// # Safety
/// As for `getsockname`.
unsafe fn write_name(name: SocketAddr, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let name = interpose::encode(name);
    // SAFETY: null or valid, as the caller promises.
    let Some(capacity) = (unsafe { load(len) }) else {
        return failed(&os(libc::EFAULT));
    };
    let Ok(capacity) = usize::try_from(capacity) else {
        return failed(&os(libc::EINVAL));
    };
    let copied = capacity.min(name.len());
    if copied > 0 && addr.is_null() {
        return failed(&os(libc::EFAULT));
    }
    // SAFETY: as the caller promises, `len` bytes of `addr` are writable.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), addr.cast::<u8>(), copied) };
    // SAFETY: not null, since it was read.
    unsafe { store(len, socklen_t::try_from(name.len()).unwrap_or(0)) };
    0
}

type GetName = unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// Gives a name of a socket of this library: of a moved stream by `moved`, else by `get_name`. `None` for other descriptors.
///
/// # Safety
/// As for `getsockname`.
unsafe fn rsocket_name(
    fd: c_int,
    (addr, len): (*mut sockaddr, *mut socklen_t),
    moved: impl Fn(&Names) -> SocketAddr,
    get_name: GetName,
) -> Option<c_int> {
    if !SOCKETS.may_have(fd) {
        return None;
    }
    cross(false, true, || {
        let rsocket = table::find(fd)?;
        if let Some(names) = rsocket.names() {
            // SAFETY: as the caller promises.
            return Some(unsafe { write_name(moved(names), addr, len) });
        }
        // SAFETY: as the caller promises.
        Some(with(&rsocket, |fd| unsafe { get_name(fd, addr, len) }))
    })
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    let got = unsafe { rsocket_name(fd, (addr, len), |names| names.local, capi::rgetsockname) };
    // SAFETY: as the caller promises.
    got.unwrap_or_else(|| unsafe { real_getsockname(fd, addr, len) })
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let real = real!(getpeername: GetName);
    // SAFETY: as the caller promises.
    let got = unsafe { rsocket_name(fd, (addr, len), |names| names.peer, capi::rgetpeername) };
    // SAFETY: as the caller promises.
    got.unwrap_or_else(|| unsafe { real(fd, addr, len) })
}
