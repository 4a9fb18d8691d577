//! Replacement of an rsocket under the program's descriptors: by a TCP socket, or by a new rsocket.

use std::{io, os::fd::AsRawFd, sync::Arc};

use interpose::os;
use libc::c_int;
use rsocket_capi as capi;

use crate::{
    epoll,
    files::replace,
    log,
    sockets::{Name, make, real_bind, real_stream, show},
    table::{self, Rsocket, SOCKETS},
};

/// The flag of a new socket in the blocking mode of an rsocket.
fn mode_of(rsocket: &Rsocket) -> c_int {
    match capi::socket_of(rsocket.fd()) {
        Some(socket) if socket.is_nonblocking() => libc::SOCK_NONBLOCK,
        _ => 0,
    }
}

/// Replaces an rsocket with a TCP socket under all descriptors of the program, bound to `bind` if given.
/// `why` is the reason for the log.
///
/// # Errors
/// Of the TCP socket, such as `EADDRINUSE`; the descriptor stays an rsocket.
pub(crate) fn turn_to_tcp(
    fd: c_int,
    rsocket: Arc<Rsocket>,
    bind: Option<&Name>,
    why: &str,
) -> io::Result<()> {
    let name = Name::of(&rsocket).ok_or_else(io::Error::last_os_error)?;
    let tcp = real_stream(name.family(), mode_of(&rsocket));
    if tcp < 0 {
        return Err(io::Error::last_os_error());
    }
    rsocket.options().set_on(tcp);
    if let Some(name) = bind
        && real_bind(tcp, name.as_ptr(), name.len()) != 0
    {
        let error = io::Error::last_os_error();
        // SAFETY: a private descriptor, not used elsewhere.
        unsafe { libc::close(tcp) };
        return Err(error);
    }
    let replaced = replace_all(tcp, rsocket, why);
    // SAFETY: a private descriptor, not used elsewhere.
    unsafe { libc::close(tcp) };
    match replaced.contains(&fd) {
        true => Ok(()),
        false => Err(os(libc::EBADF)),
    }
}

/// Replaces an rsocket with a TCP socket under all descriptors of the program. Returns the replaced descriptors.
pub(crate) fn replace_all(tcp: c_int, rsocket: Arc<Rsocket>, why: &str) -> Vec<c_int> {
    let mut descriptors = SOCKETS.same(&rsocket);
    let registrations = epoll::unregister_all(&descriptors);
    drop(rsocket);
    descriptors.retain(|&descriptor| {
        log::write_line(|| format!("descriptor {descriptor}: TCP from now on: {why}"));
        let replaced = replace(tcp, descriptor);
        drop(SOCKETS.remove(descriptor));
        replaced
    });
    epoll::register_again(&registrations);
    descriptors
}

/// Replaces an ended rsocket with a new one under all descriptors of the program, with the same options, and bound to the address of
/// the last attempt to connect.
///
/// # Errors
/// Of the new rsocket; the descriptors stay those of the ended one.
pub(crate) fn renew(ended: &Arc<Rsocket>) -> io::Result<Arc<Rsocket>> {
    let name = Name::of(ended).ok_or_else(io::Error::last_os_error)?;
    let inner = make(name.family(), libc::SOCK_STREAM | mode_of(ended), 0);
    let inner = inner.ok_or_else(io::Error::last_os_error)?;
    let rsocket = table::adopt(inner);
    ended.options().copy_to(&rsocket);
    // SAFETY: the name has this length.
    let bind = |name: &Name| unsafe { capi::rbind(inner, name.as_ptr(), name.len()) };
    if ended.bound().is_some_and(|name| bind(&name) != 0) {
        return Err(io::Error::last_os_error());
    }
    let socket = capi::socket_of(inner).ok_or_else(|| os(libc::EBADF))?;
    let shown = show(&socket, true)?;
    let descriptors = SOCKETS.same(ended);
    let registrations = epoll::unregister_all(&descriptors);
    for descriptor in descriptors {
        if replace(shown.as_raw_fd(), descriptor) {
            SOCKETS.add(descriptor, Arc::clone(&rsocket));
        }
    }
    epoll::register_again(&registrations);
    Ok(rsocket)
}
