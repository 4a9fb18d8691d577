//! `ioctl` on rsockets: `FIONREAD`, `FIONBIO`, `SIOCOUTQ`, `SIOCOUTQNSD` and `SIOCATMARK`, and requests about the
//! network.

use std::{
    io,
    ops::RangeInclusive,
    os::fd::{AsRawFd, OwnedFd},
};

use interpose::{cross, load, real, set_errno, store};
use libc::{c_int, c_ulong, c_void};
use rsocket::{Family, Socket};
use rsocket_capi as capi;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::{
    fork::{self, Need},
    table,
};

/// Requests of `<linux/sockios.h>`: whether the mark of urgent data has been reached, and the number of bytes that
/// have not been sent. All bytes of an rsocket are sent at once, and none is urgent.
const SIOCATMARK: c_ulong = 0x8905;
const SIOCOUTQNSD: c_ulong = 0x894b;

/// Requests of `<linux/sockios.h>` about routes, neighbours and interfaces: from `SIOCADDRT` to the last private one of
/// a device. Any socket of the family has the same answer.
const NETWORK: RangeInclusive<c_ulong> = 0x890b..=0x89ff;

/// Answers a request for a number.
fn number(socket: &Socket, request: c_ulong) -> Option<usize> {
    match request {
        SIOCATMARK => Some(0),
        _ if socket.is_listening() => None,
        // As for a TCP socket, nothing before the connection and after its end.
        libc::FIONREAD => Some(socket.unread().unwrap_or(0)),
        libc::TIOCOUTQ => Some(socket.unacked().unwrap_or(0)),
        _ => Some(0),
    }
}

/// Makes a request about the network on a socket of the kernel. The descriptor of an rsocket is a local socket, which
/// has no addresses of interfaces.
///
/// # Safety
/// The argument is valid for the request.
unsafe fn ask_network(family: Family, request: c_ulong, arg: *mut c_void) -> io::Result<c_int> {
    let family = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let socket = kernel_socket(family)?;
    let real = real!(ioctl: unsafe extern "C-unwind" fn(c_int, c_ulong, ...) -> c_int);
    // SAFETY: as the caller promises.
    let answer = unsafe { real(socket.as_raw_fd(), request, arg) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer)
}

fn kernel_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    Ok(rustix::net::socket_with(family, kind, flags, None)?)
}

/// Makes a request on an rsocket, or on a connection that is being moved. Returns `None` for other descriptors and requests.
///
/// # Safety
/// As for `ioctl`.
unsafe fn rsocket_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> Option<c_int> {
    // The first bytes of a connection that is being moved are no data.
    if request == libc::FIONREAD && fork::step_for_wait(fd, Need::Receive) && !arg.is_null() {
        // SAFETY: an `int`, as the caller promises. Assumption: a request of `ioctl` has the argument of its manual page.
        unsafe { store(arg.cast::<c_int>(), 0) };
        return Some(0);
    }
    let rsocket = table::find(fd)?;
    if let libc::FIONBIO | libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK = request
        && !arg.is_null()
    {
        let arg = arg.cast::<c_int>();
        if request != libc::FIONBIO {
            let socket = capi::socket_of(rsocket.fd());
            let Some(number) = socket.and_then(|socket| number(&socket, request)) else {
                set_errno(libc::EINVAL);
                return Some(-1);
            };
            // SAFETY: an `int`, as the caller promises. Assumption: a request of `ioctl` has the argument of its
            // manual page.
            unsafe { store(arg, c_int::try_from(number).unwrap_or(c_int::MAX)) };
            return Some(0);
        }
        // SAFETY: an `int`, as the caller promises. Assumption: a request of `ioctl` has the argument of its manual
        // page.
        let nonblocking = unsafe { load(arg) }.unwrap_or(0) != 0;
        let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
        return Some(capi::rfcntl(rsocket.fd(), libc::F_SETFL, flags));
    }
    if !NETWORK.contains(&request) {
        return None;
    }
    let socket = capi::socket_of(rsocket.fd())?;
    // SAFETY: as the caller promises.
    let answer = unsafe { ask_network(socket.family(), request, arg) };
    Some(answer.unwrap_or_else(|err| {
        set_errno(rsocket::errno(&err));
        -1
    }))
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if fork::is_own(fd) {
        // SAFETY: as the caller promises.
        let done = cross(false, true, || unsafe { rsocket_ioctl(fd, request, arg) });
        if let Some(done) = done {
            return done;
        }
    }
    let real = real!(ioctl: unsafe extern "C-unwind" fn(c_int, c_ulong, ...) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(fd, request, arg) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first requests with one interface, by `struct ifreq`, that only read: name, flags, addresses, metric, MTU,
    /// hardware address, index, queue length and map.
    const OF_INTERFACE: [c_ulong; 12] = [
        0x8910, 0x8913, 0x8915, 0x8917, 0x8919, 0x891b, 0x891d, 0x8921, 0x8927, 0x8933, 0x8942,
        0x8970,
    ];

    /// `struct ifreq` of the loopback interface, whose index is 1 in each network namespace.
    fn loopback() -> [u64; 5] {
        let mut request = [0; 5];
        request[0] = u64::from_ne_bytes(*b"lo\0\0\0\0\0\0");
        request[2] = 1;
        request
    }

    #[test]
    fn network_requests_are_answered_as_for_kernel_sockets() {
        let real = real!(ioctl: unsafe extern "C-unwind" fn(c_int, c_ulong, ...) -> c_int);
        for (family, domain) in [
            (Family::V4, AddressFamily::INET),
            (Family::V6, AddressFamily::INET6),
        ] {
            let socket = kernel_socket(domain).unwrap();
            for request in OF_INTERFACE {
                assert!(NETWORK.contains(&request));
                let (mut expected, mut found) = (loopback(), loopback());
                // SAFETY: the argument is a `struct ifreq`.
                let result = unsafe { real(socket.as_raw_fd(), request, expected.as_mut_ptr()) };
                let result = match result {
                    0.. => Ok(result),
                    _ => Err(io::Error::last_os_error().raw_os_error()),
                };
                let arg = found.as_mut_ptr().cast();
                // SAFETY: as above.
                let answer = unsafe { ask_network(family, request, arg) };
                let answer = answer.map_err(|err| err.raw_os_error());
                assert_eq!(
                    (answer, found),
                    (result, expected),
                    "{family:?}, {request:#x}"
                );
            }
        }
        let mut address = loopback();
        let arg = address.as_mut_ptr().cast();
        // SAFETY: the argument is a `struct ifreq`.
        unsafe { ask_network(Family::V4, 0x8915, arg) }.unwrap();
        let [.., a, b, c, d] = address[2].to_ne_bytes();
        assert_eq!([a, b, c, d], [127, 0, 0, 1]);
    }
}
