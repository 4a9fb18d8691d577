//! Creating, connecting and closing sockets, and their options.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

use interpose::{last_errno, load};
use libc::{c_int, c_void, sockaddr, socklen_t};
use rsocket::{Family, Socket};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

use super::memory::{address, bytes, checked_len, write_address, write_out};
use crate::{
    address as bytes_of,
    errno::{compat, os, run},
    exit,
    noted::Noted,
    options,
    table::{self, Entry},
};

/// `rsocket(domain, type, protocol)`—Creates a socket and returns its descriptor.
///
/// # Errors
/// - `ENOTSUP`: neither a stream nor a datagram socket, or neither IPv4 nor IPv6.
/// - `ENODEV`: there is no RDMA device.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    run(|| {
        let family = match domain {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return Err(os(libc::ENOTSUP)),
        };
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let socket = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                let socket = Socket::new(family)?;
                socket.set_full_buffers()?;
                socket
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => Socket::datagram(family)?,
            _ => return Err(os(libc::ENOTSUP)),
        };
        open(socket, flags, Noted::default())
    })
}

/// Adds a socket to the table, with flags of `SOCK_*`.
fn open(socket: Socket, flags: c_int, noted: Noted) -> io::Result<c_int> {
    exit::prepare();
    socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
    let close_on_exec = flags & libc::SOCK_CLOEXEC != 0;
    if table::has_descriptors() {
        let fd = socket.descriptor()?;
        let mut fd_flags = fcntl_getfd(fd)?;
        fd_flags.set(FdFlags::CLOEXEC, close_on_exec);
        fcntl_setfd(fd, fd_flags)?;
    }
    Ok(table::add_socket(socket, noted))
}

/// `rbind(fd, addr, addrlen)`—Binds to a local address.
///
/// # Safety
/// `addr` is null, or `len` bytes of `addr` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    run(|| {
        let opened = table::socket(fd)?;
        // SAFETY: as the caller promises.
        let addr = unsafe { address(addr, len) }?;
        opened.socket.bind(addr)?;
        Ok(0)
    })
}

/// `rlisten(fd, backlog)`—Listens for connections.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    run(|| {
        let backlog = u32::try_from(backlog).unwrap_or(0);
        table::socket(fd)?.socket.listen(backlog)?;
        Ok(0)
    })
}

/// `raccept(fd, addr, addrlen)`—Accepts a connection and returns its descriptor.
///
/// # Safety
/// `addr` is null, or `len` is valid and holds the number of writable bytes of `addr`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn raccept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { raccept4(fd, addr, len, 0) }
}

/// `raccept4(fd, addr, addrlen, flags)`—Accepts a connection, nonblocking with `SOCK_NONBLOCK`, closed on
/// exec with `SOCK_CLOEXEC`. Not a function of librdmacm.
///
/// # Safety
/// As for [`raccept`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn raccept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    run(|| {
        // SAFETY: as the caller promises.
        let (accepted, ()) = unsafe { accept_with(fd, addr, len, flags, |_| Ok(())) }?;
        Ok(accepted)
    })
}

/// As [`raccept4`], and calls `prepare` with the new socket before the connection leaves the backlog. If `prepare`
/// fails, the connection stays the next one to be accepted; for lack of descriptors, it is called once more if half-open
/// connections give way.
///
/// # Errors
/// As for [`raccept4`], and the error of `prepare`.
///
/// # Safety
/// As for [`raccept`].
pub unsafe fn accept_with<T>(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
    mut prepare: impl FnMut(&Socket) -> io::Result<T>,
) -> io::Result<(c_int, T)> {
    let opened = table::socket(fd)?;
    let accepted = opened.socket.accept_with(|socket| {
        if table::has_descriptors() {
            socket.descriptor()?;
        }
        prepare(socket)
    });
    let (accepted, peer, prepared) = accepted.map_err(|err| {
        if compat() && rsocket::errno(&err) == libc::EINVAL {
            os(libc::EBADF)
        } else {
            err
        }
    })?;
    // SAFETY: as the caller promises.
    unsafe { write_address(peer, addr, len) }?;
    Ok((open(accepted, flags, opened.noted.inherit())?, prepared))
}

/// `rconnect(fd, addr, addrlen)`—Connects to a peer. On a datagram socket, `AF_UNSPEC` clears the peer. The call
/// goes on after a handler of a signal, as librdmacm's. After the success of an attempt in the background it fails with
/// `EISCONN`, as librdmacm's, where TCP's succeeds once.
///
/// # Safety
/// `addr` is null, or `len` bytes of `addr` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rconnect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    let refused = run(|| {
        let socket = &table::socket(fd)?.socket;
        match !socket.is_datagram() && socket.is_connected() && !compat() {
            true => Err(os(libc::EISCONN)),
            false => Ok(0),
        }
    });
    if refused != 0 {
        return refused;
    }
    loop {
        // SAFETY: as the caller promises.
        let connected = unsafe { connect_once(fd, addr, len) };
        if connected == 0 || last_errno() != libc::EINTR {
            return connected;
        }
    }
}

/// As [`rconnect`], but a signal ends the wait, with `EINTR`. The next call waits for the same attempt.
///
/// # Safety
/// As for [`rconnect`].
pub unsafe fn connect_once(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    run(|| {
        let opened = table::socket(fd)?;
        // SAFETY: as the caller promises.
        let peer = unsafe { bytes(addr.cast(), checked_len(len)?) }?;
        if opened.socket.is_datagram() && bytes_of::is_unspecified(peer) {
            opened.socket.disconnect()?;
            return Ok(0);
        }
        // SAFETY: as the caller promises.
        let addr = unsafe { address(addr, len) }?;
        match opened.socket.connect(addr) {
            Err(err) if compat() && rsocket::errno(&err) == libc::EISCONN => {}
            connected => connected?,
        }
        Ok(0)
    })
}

/// `rshutdown(fd, how)`—Shuts down one direction or both.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    run(|| {
        let opened = table::socket(fd)?;
        opened.socket.shutdown(options::shutdown(how)?)?;
        Ok(0)
    })
}

/// `rclose(fd)`—Closes a socket or a set.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rclose(fd: c_int) -> c_int {
    run(|| match table::remove(fd) {
        Some(Entry::Socket(opened)) => {
            // The descriptor is closed with the last reference, after the removal from the table.
            opened.close();
            Ok(0)
        }
        Some(Entry::Set(_)) => Ok(0),
        None if compat() => Ok(libc::EBADF),
        None => Err(os(libc::EBADF)),
    })
}

/// `rgetsockname(fd, addr, addrlen)`—Returns the local address.
///
/// # Safety
/// `len` is valid and holds the number of writable bytes of `addr`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    run(|| {
        let name = interpose::encode(table::socket(fd)?.socket.local_addr()?);
        // SAFETY: as the caller promises.
        unsafe { write_out(&name, addr.cast(), len) }?;
        Ok(0)
    })
}

/// `rgetpeername(fd, addr, addrlen)`—Returns the address of the peer.
///
/// # Safety
/// As for [`rgetsockname`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rgetpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    run(|| {
        let name = interpose::encode(table::socket(fd)?.socket.peer_addr()?);
        // SAFETY: as the caller promises.
        unsafe { write_out(&name, addr.cast(), len) }?;
        Ok(0)
    })
}

/// `rsetsockopt(fd, level, optname, optval, optlen)`—Sets an option.
///
/// # Safety
/// `len` bytes of `value` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    run(|| {
        let opened = table::socket(fd)?;
        // SAFETY: as the caller promises.
        let value = unsafe { bytes(value, checked_len(len)?) }?;
        options::set(&opened, level, name, value)?;
        Ok(0)
    })
}

/// `rgetsockopt(fd, level, optname, optval, optlen)`—Returns an option.
///
/// # Safety
/// `len` is valid and holds the number of writable bytes of `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    run(|| {
        // SAFETY: null or valid, as the caller promises.
        let capacity = unsafe { load(len) }.ok_or_else(|| os(libc::EFAULT))?;
        let capacity = checked_len(capacity)?;
        let mut found = options::get(&*table::socket(fd)?, level, name)?;
        options::fit(level, name, &mut found, capacity)?;
        // SAFETY: as the caller promises.
        unsafe { write_out(&found, value, len) }?;
        Ok(0)
    })
}

/// `rfcntl(fd, cmd, …)`—Reads and sets the flags `O_NONBLOCK` and `FD_CLOEXEC`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rfcntl(fd: c_int, cmd: c_int, arg: c_int) -> c_int {
    run(|| {
        let socket = &table::socket(fd)?.socket;
        match cmd {
            libc::F_GETFL if socket.is_nonblocking() => Ok(libc::O_RDWR | libc::O_NONBLOCK),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL => {
                socket.set_nonblocking(arg & libc::O_NONBLOCK != 0);
                Ok(0)
            }
            libc::F_GETFD => {
                let close_on_exec = fcntl_getfd(socket)?.contains(FdFlags::CLOEXEC);
                Ok(if close_on_exec { libc::FD_CLOEXEC } else { 0 })
            }
            libc::F_SETFD => {
                let mut flags = FdFlags::empty();
                flags.set(FdFlags::CLOEXEC, arg & libc::FD_CLOEXEC != 0);
                fcntl_setfd(socket, flags)?;
                Ok(0)
            }
            _ => Err(os(libc::ENOTSUP)),
        }
    })
}

/// Has the sockets opened from now on have numbers that are no descriptors, for a library that shows their
/// [mirrors](mirror_of) to its program instead.
pub fn open_without_descriptors() {
    table::open_without_descriptors();
}

/// Returns the [mirror](Socket::mirror) of a socket.
///
/// # Errors
/// - `EBADF`: the descriptor is not a socket.
/// - As for [`Socket::mirror`].
pub fn mirror_of(fd: c_int) -> io::Result<OwnedFd> {
    table::socket(fd)?.socket.mirror()
}

/// Keeps the [mirror](Socket::mirror) of a socket up to date from now on.
///
/// # Errors
/// As for [`Socket::drive_mirror`].
pub fn drive_mirror(fd: c_int, mirror: BorrowedFd<'_>) -> io::Result<()> {
    table::socket(fd)?.socket.drive_mirror(mirror)
}

/// Whether a descriptor is internal to one of the sockets.
pub fn keeps_fd(fd: c_int) -> bool {
    table::sockets()
        .iter()
        .any(|opened| opened.socket.keeps_fd(fd))
}

/// Returns the socket behind a descriptor of these functions.
pub fn socket_of(fd: c_int) -> Option<Arc<Socket>> {
    let opened = table::socket(fd).ok()?;
    Some(Arc::clone(&opened.socket))
}
