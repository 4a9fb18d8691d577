//! `ioctl` on rsockets: `FIONREAD` and `FIONBIO`.

use interpose::{load, real, set_errno, store};
use libc::{c_int, c_ulong, c_void};
use rsocket_capi as own;

use crate::table;

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if let Some(held) = table::find(fd)
        && let libc::FIONBIO | libc::FIONREAD = request
        && !arg.is_null()
    {
        let arg = arg.cast::<c_int>();
        if request == libc::FIONREAD {
            let unread = own::socket_of(held.fd()).map(|socket| socket.unread());
            let Some(Ok(unread)) = unread else {
                set_errno(libc::EINVAL);
                return -1;
            };
            // SAFETY: the argument of this request is an `int`, too.
            unsafe { store(arg, c_int::try_from(unread).unwrap_or(c_int::MAX)) };
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
