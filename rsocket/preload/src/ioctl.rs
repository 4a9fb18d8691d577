//! `ioctl` on rsockets: `FIONREAD`, `FIONBIO`, `SIOCOUTQ`, `SIOCOUTQNSD` and `SIOCATMARK`.

use interpose::{load, real, set_errno, store};
use libc::{c_int, c_ulong, c_void};
use rsocket::Socket;
use rsocket_capi as own;

use crate::table;

/// Requests of `<linux/sockios.h>`: whether the mark of urgent data has been reached, and the number of bytes that
/// have not been sent. All bytes of an rsocket are sent at once, and none is urgent.
const SIOCATMARK: c_ulong = 0x8905;
const SIOCOUTQNSD: c_ulong = 0x894b;

/// Answers a request for a number.
fn number(socket: &Socket, request: c_ulong) -> Option<usize> {
    match request {
        libc::FIONREAD => socket.unread().ok(),
        _ if socket.is_listening() => None,
        libc::TIOCOUTQ => Some(socket.unacked().unwrap_or(0)),
        _ => Some(0),
    }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if let Some(held) = table::find(fd)
        && let libc::FIONBIO | libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK = request
        && !arg.is_null()
    {
        let arg = arg.cast::<c_int>();
        if request != libc::FIONBIO {
            let socket = own::socket_of(held.fd());
            let Some(number) = socket.and_then(|socket| number(&socket, request)) else {
                set_errno(libc::EINVAL);
                return -1;
            };
            // SAFETY: the argument of these requests is an `int`, too.
            unsafe { store(arg, c_int::try_from(number).unwrap_or(c_int::MAX)) };
            return 0;
        }
        // SAFETY: the argument of this request is an `int`.
        let nonblocking = unsafe { load(arg) }.unwrap_or(0) != 0;
        let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
        return own::rfcntl(held.fd(), libc::F_SETFL, flags);
    }
    let real = real!(ioctl: unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(fd, request, arg) }
}
