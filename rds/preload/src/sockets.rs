//! Interposed functions to create, bind and connect sockets.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
};

use interpose::{duplicate, encode, interpose, os, real, watch_forks};
use libc::{c_int, c_void, sockaddr, socklen_t};
use rds::{Engine, Interest, Socket};

use crate::{
    address::{self, UNSPECIFIED},
    binding,
    memory::{bytes, write_out},
    table::{SOCKETS, SocketEntry, find, may_find, run, with},
};

/// `AF_RDS`.
pub(crate) const AF_RDS: c_int = 21;

/// After a fork, forgets all sockets without closing them, because the parent uses them.
unsafe extern "C" fn child() {
    SOCKETS.forget_all();
    verbs::fd::forget_all();
    binding::discard();
}

/// Creates a socket, and a descriptor for the program.
fn open(kind: c_int, protocol: c_int) -> io::Result<c_int> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    if kind & !flags != libc::SOCK_SEQPACKET || protocol != 0 {
        return Err(os(libc::ESOCKTNOSUPPORT));
    }
    verbs::fd::raise_all();
    let socket: Socket = Engine::shared()?.socket()?;
    watch_forks(child);
    let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
    socket.set_nonblocking(nonblocking);
    // Creates the descriptor, or reports the reason why there is none.
    socket.readiness(Interest::Read)?;
    let fd = duplicate(socket.as_fd().as_raw_fd(), kind & libc::SOCK_CLOEXEC != 0);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let entry = SocketEntry::new(socket);
    entry.settings().nonblocking = nonblocking;
    if SOCKETS.add(fd, Arc::new(entry)) {
        return Ok(fd);
    }
    // SAFETY: the descriptor is owned here, and unknown to the program.
    unsafe { libc::close(fd) };
    Err(os(libc::EMFILE))
}

#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == AF_RDS {
        let opened = run(|| match open(kind, protocol) {
            // Without an RDMA device, the kernel may have RDS over TCP.
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(-2),
            opened => opened,
        });
        if opened != -2 {
            return opened;
        }
    }
    let real = real!(socket: unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: no preconditions.
    unsafe { real(domain, kind, protocol) }
}

/// The bytes of a `sockaddr`.
///
/// # Safety
/// `addr` is null, or points to `len` readable bytes.
pub(crate) unsafe fn raw<'a>(addr: *const sockaddr, len: socklen_t) -> io::Result<&'a [u8]> {
    let len = usize::try_from(len).unwrap_or(0);
    // SAFETY: as the caller promises.
    unsafe { bytes(addr.cast::<c_void>(), len) }
}

unsafe fn bind_to(entry: &SocketEntry, addr: *const sockaddr, len: socklen_t) -> io::Result<c_int> {
    // SAFETY: as the caller promises.
    let addr = address::read(unsafe { raw(addr, len) }?, libc::EINVAL)?;
    binding::bind(&entry.socket, addr)?;
    entry.settings().bound = true;
    Ok(0)
}

unsafe fn connect_to(
    entry: &SocketEntry,
    addr: *const sockaddr,
    len: socklen_t,
) -> io::Result<c_int> {
    // SAFETY: as the caller promises.
    let addr = address::read(unsafe { raw(addr, len) }?, libc::EAFNOSUPPORT)?;
    entry.socket.connect(addr)?;
    Ok(0)
}

unsafe fn name_of(
    entry: &SocketEntry,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> io::Result<c_int> {
    let name = entry.socket.local_addr()?;
    let is_bound = !name.ip().is_unspecified();
    let name = is_bound.then(|| encode(name));
    let name = name.as_deref().unwrap_or(&UNSPECIFIED);
    // SAFETY: as the caller promises.
    unsafe { write_out(name, addr.cast(), len) }?;
    Ok(0)
}

unsafe fn peer_of(
    entry: &SocketEntry,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> io::Result<c_int> {
    let peer = entry.socket.peer_addr()?;
    // SAFETY: as the caller promises.
    unsafe { write_out(&encode(peer), addr.cast(), len) }?;
    Ok(0)
}

/// Calls unsupported by datagram sockets.
unsafe fn unsupported(_: &SocketEntry, _: c_int) -> io::Result<c_int> {
    Err(os(libc::EOPNOTSUPP))
}

unsafe fn unsupported_accept(
    _: &SocketEntry,
    _: *mut sockaddr,
    _: *mut socklen_t,
) -> io::Result<c_int> {
    Err(os(libc::EOPNOTSUPP))
}

unsafe fn unsupported_accept4(
    _: &SocketEntry,
    _: *mut sockaddr,
    _: *mut socklen_t,
    _: c_int,
) -> io::Result<c_int> {
    Err(os(libc::EOPNOTSUPP))
}

interpose! {
    false, may_find, find, with:
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int => bind_to;
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int => connect_to;
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int => name_of;
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int => peer_of;
    fn listen(fd: c_int, backlog: c_int) -> c_int => unsupported;
    fn shutdown(fd: c_int, how: c_int) -> c_int => unsupported;
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int => unsupported_accept;
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        => unsupported_accept4;
}
