//! What programs do with sockets as with all descriptors.

use libc::{c_int, c_long};

use crate::{real::real, table};

type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;

/// Another descriptor of the same.
pub(crate) fn duplicate(fd: c_int, close_on_exec: bool) -> c_int {
    let real = real!(fcntl: Fcntl);
    let cmd = if close_on_exec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    // SAFETY: the argument of this command is an `int`.
    unsafe { real(fd, cmd, 0 as c_int) }
}

/// `new` is a duplicate of `old`.
fn follow(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        table::forget(new);
        if let Some(held) = table::find(old) {
            table::add(new, held);
        }
    }
    new
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    table::forget(fd);
    let real = real!(close: unsafe extern "C" fn(c_int) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(fd) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let real = real!(dup: unsafe extern "C" fn(c_int) -> c_int);
    // SAFETY: as the caller promises.
    follow(fd, unsafe { real(fd) })
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    let real = real!(dup2: unsafe extern "C" fn(c_int, c_int) -> c_int);
    // SAFETY: as the caller promises.
    follow(old, unsafe { real(old, new) })
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    let real = real!(dup3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: as the caller promises.
    follow(old, unsafe { real(old, new, flags) })
}

/// In C, the argument is variable. All that there are fit into a `long`, and are passed as one.
unsafe fn control(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    let real = real!(fcntl: Fcntl);
    match (cmd, table::find(fd)) {
        (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC, _) => {
            // SAFETY: as the caller promises.
            follow(fd, unsafe { real(fd, cmd, arg) })
        }
        (libc::F_GETFL, Some(held)) => {
            let nonblocking = held.chosen().nonblocking;
            libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
        }
        (libc::F_SETFL, Some(held)) => {
            let nonblocking = arg & c_long::from(libc::O_NONBLOCK) != 0;
            held.chosen().nonblocking = nonblocking;
            held.socket.set_nonblocking(nonblocking);
            0
        }
        // SAFETY: as the caller promises.
        _ => unsafe { real(fd, cmd, arg) },
    }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { control(fd, cmd, arg) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { control(fd, cmd, arg) }
}
