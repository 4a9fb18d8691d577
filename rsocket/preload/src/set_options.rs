//! Options set by the program on streams, for the TCP socket that may replace the rsocket.

use std::sync::{Mutex, PoisonError};

use interpose::{cross, real, set_errno};
use libc::{c_int, c_void, socklen_t};
use rsocket_capi as capi;

use crate::{
    fork,
    sockets::{INT, SOL_RDMA},
    table::{self, Rsocket, SOCKETS, with},
};

/// Maximum size in bytes of a recorded value. Of the options that the library accepts, only an array of paths is
/// longer, and has no counterpart in TCP.
const MAX_VALUE_LEN: usize = 64;

/// Number of bytes from which on a TCP connection is readable.
const LOW_WATER: (c_int, c_int) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);

/// An option with the value set last.
#[derive(Debug)]
struct SetOption {
    level: c_int,
    name: c_int,
    value: Vec<u8>,
}

/// Options of a socket in the order of their first setting.
#[derive(Debug, Default)]
pub(crate) struct SetOptions(Mutex<Vec<SetOption>>);

impl SetOptions {
    fn record(&self, level: c_int, name: c_int, value: &[u8]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let value = value.to_vec();
        match all
            .iter_mut()
            .find(|set| (set.level, set.name) == (level, name))
        {
            Some(set) => set.value = value,
            None => all.push(SetOption { level, name, value }),
        }
    }

    /// Sets the options on another rsocket.
    pub(crate) fn copy_to(&self, rsocket: &Rsocket) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for SetOption { level, name, value } in &*all {
            let len = socklen_t::try_from(value.len()).unwrap_or(0);
            let at = value.as_ptr().cast();
            // SAFETY: `len` bytes of the value are readable. Accepted before.
            unsafe { capi::rsetsockopt(rsocket.fd(), *level, *name, at, len) };
            rsocket.options().record(*level, *name, value);
        }
    }

    /// Sets the options on a TCP socket. The kernel may refuse one that has no effect on an rsocket, such as an unknown
    /// `TCP_CONGESTION`.
    pub(crate) fn set_on(&self, tcp: c_int) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for SetOption { level, name, value } in &*all {
            let len = socklen_t::try_from(value.len()).unwrap_or(0);
            // SAFETY: `len` bytes of the value are readable.
            unsafe { real_setsockopt(tcp, *level, *name, value.as_ptr().cast(), len) };
        }
    }
}

/// # Safety
/// As for `setsockopt`.
unsafe fn real_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let real = real!(
        setsockopt: unsafe extern "C-unwind" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int
    );
    // SAFETY: as the caller promises.
    unsafe { real(fd, level, name, value, len) }
}

/// Records an option that an rsocket has accepted.
///
/// # Safety
/// `len` bytes of `value` are readable.
unsafe fn record(
    rsocket: &Rsocket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) {
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    if value.is_null() || len > MAX_VALUE_LEN {
        return;
    }
    // SAFETY: not null, and as the caller promises.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
    rsocket.options().record(level, name, value);
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if SOCKETS.may_have(fd) {
        let set = cross(false, true, || {
            let rsocket = table::find(fd)?;
            // SAFETY: as the caller promises.
            let set = unsafe { capi::rsetsockopt(rsocket.fd(), level, name, value, len) };
            if set == 0 && level != SOL_RDMA {
                // SAFETY: as the caller promises; the rsocket has read the same bytes.
                unsafe { record(&rsocket, level, name, value, len) };
            }
            Some(set)
        });
        if let Some(set) = set {
            return set;
        }
    }
    // A peer that shows this library sends nothing before its connection is accepted.
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) && fork::is_later(fd) {
        return 0;
    }
    // The mark of a connection that is being moved is this library's: the program's is that of an rsocket, 1.
    if (level, name) == LOW_WATER && len >= INT && !value.is_null() && fork::is_moving(fd) {
        // SAFETY: as the caller promises.
        let mark = unsafe { value.cast::<c_int>().read_unaligned() };
        if mark == 1 {
            return 0;
        }
        set_errno(libc::ENOTSUP);
        return -1;
    }
    // SAFETY: as the caller promises.
    let set = unsafe { real_setsockopt(fd, level, name, value, len) };
    if set == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_MAXSEG) {
        fork::limited(fd);
    }
    set
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if fork::is_own(fd) {
        let got = cross(false, true, || {
            let rsocket = table::find(fd)?;
            Some(with(&rsocket, |inner| {
                // SAFETY: as the caller promises.
                unsafe { capi::rgetsockopt(inner, level, name, value, len) }
            }))
        });
        if let Some(got) = got {
            return got;
        }
    }
    let was_moving = fork::is_moving(fd);
    let real = real!(
        getsockopt: unsafe extern "C-unwind" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int
    );
    // SAFETY: as the caller promises.
    let got = unsafe { real(fd, level, name, value, len) };
    if got == 0 && (level, name) == LOW_WATER && (was_moving || fork::is_moving(fd)) {
        // SAFETY: the kernel has written the length.
        let len = unsafe { len.read_unaligned() };
        if len == INT {
            // SAFETY: the kernel has written this many bytes.
            unsafe { value.cast::<c_int>().write_unaligned(1) };
        }
    }
    got
}
