//! `syscall(2)`: system calls by number.
//!
//! Programs also close, duplicate and use sockets through this function; libuv, and therefore node, closes
//! every descriptor through it. After a missed close, the descriptor would remain an rsocket even when the
//! kernel has reused its number.

use std::ptr;

use interpose::{is_owner, load, store, uncancelled};
use libc::{c_int, c_long, c_uint, c_ulong, c_void, nfds_t, sigset_t};

use crate::{exit, fork};

/// Arguments of a system call in the types of the C function.
type Arguments = [c_long; 6];

/// Makes a system call. Performs no symbol lookup: memory allocators make system calls before any lookup is
/// possible.
///
/// # Safety
/// As for the system call.
#[cfg(target_arch = "x86_64")]
unsafe fn make(number: c_long, [a, b, c, d, e, f]: Arguments) -> c_long {
    let result: c_long;
    // SAFETY: as the caller promises. Assumption: a system call changes no register but those named by its interface.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call. Performs no symbol lookup: memory allocators make system calls before any lookup is
/// possible.
///
/// # Safety
/// As for the system call.
#[cfg(target_arch = "aarch64")]
unsafe fn make(number: c_long, [a, b, c, d, e, f]: Arguments) -> c_long {
    let result: c_long;
    // SAFETY: as the caller promises. Assumption: a system call changes no register but those named by its interface.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number, inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// Converts the result of a system call to C's convention.
fn with_errno(result: c_long) -> c_long {
    const MAX_ERRNO: c_long = 4095;
    if (-MAX_ERRNO..0).contains(&result) {
        interpose::set_errno(c_int::try_from(-result).unwrap_or(0));
        return -1;
    }
    result
}

/// Converts an argument to a descriptor; the kernel uses the lower half.
fn descriptor(argument: c_long) -> c_int {
    let [a, b, c, d, ..] = argument.to_le_bytes();
    c_int::from_le_bytes([a, b, c, d])
}

/// Whether one of the descriptors is an rsocket or may become one.
fn concerns(fds: &[c_long]) -> bool {
    fds.iter().any(|fd| fork::is_own(descriptor(*fd)))
}

/// Calls a function by name instead of its number and converts each argument to the type in the function's
/// signature.
macro_rules! by_name {
    ($function:path, $($argument:expr => $type:ty),*) => {{
        // SAFETY: as the caller of the system call promises for the same arguments.
        let result = unsafe { $function($($argument as $type),*) };
        Some(result as c_long)
    }};
}

/// Calls the interposed function, if an rsocket is concerned.
///
/// # Safety
/// As for the system call.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "registers hold arguments of all types"
)]
unsafe fn by_function(number: c_long, arguments: Arguments) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    if number == libc::SYS_exit_group {
        exit::disconnect();
        return None;
    }
    // Calls through a ring would bypass this library. As in a kernel without rings, programs make the calls themselves.
    if number == libc::SYS_io_uring_setup {
        interpose::set_errno(libc::ENOSYS);
        return Some(-1);
    }
    // SAFETY: as the caller promises.
    if let Some(result) = unsafe { wait_by_function(number, arguments) } {
        return Some(result);
    }
    if number == libc::SYS_close_range {
        return by_name!(libc::close_range, a => c_uint, b => c_uint, c => c_int);
    }
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_dup2 && concerns(&[a, b]) {
        return by_name!(libc::dup2, a => c_int, b => c_int);
    }
    if number == libc::SYS_dup3 && concerns(&[a, b]) {
        return by_name!(libc::dup3, a => c_int, b => c_int, c => c_int);
    }
    if number == libc::SYS_splice && concerns(&[a, c]) {
        return by_name!(
            libc::splice, a => c_int, b => *mut _, c => c_int, d => *mut _, e => usize, f => c_uint
        );
    }
    if number == libc::SYS_epoll_ctl && concerns(&[c]) {
        return by_name!(libc::epoll_ctl, a => c_int, b => c_int, c => c_int, d => *mut _);
    }
    if !concerns(&[a]) {
        return None;
    }
    // SAFETY: as the caller promises.
    unsafe { transfer_by_function(number, arguments) }
}

/// As [`by_function`], for calls on one rsocket.
///
/// # Safety
/// As for the system call.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "registers hold arguments of all types"
)]
unsafe fn transfer_by_function(number: c_long, arguments: Arguments) -> Option<c_long> {
    let [a, b, c, d, e, f] = arguments;
    match number {
        libc::SYS_close => by_name!(libc::close, a => c_int),
        libc::SYS_dup => by_name!(libc::dup, a => c_int),
        libc::SYS_fcntl => by_name!(libc::fcntl, a => c_int, b => c_int, c => c_long),
        libc::SYS_read => by_name!(libc::read, a => c_int, b => *mut _, c => usize),
        libc::SYS_readv => by_name!(libc::readv, a => c_int, b => *const _, c => c_int),
        libc::SYS_write => by_name!(libc::write, a => c_int, b => *const _, c => usize),
        libc::SYS_writev => by_name!(libc::writev, a => c_int, b => *const _, c => c_int),
        // The fifth argument is the upper half of the position on machines of 32 bits.
        libc::SYS_preadv2 => by_name!(
            libc::preadv2, a => c_int, b => *const _, c => c_int, d => _, f => c_int
        ),
        libc::SYS_pwritev2 => by_name!(
            libc::pwritev2, a => c_int, b => *const _, c => c_int, d => _, f => c_int
        ),
        libc::SYS_recvfrom => by_name!(
            libc::recvfrom, a => c_int, b => *mut _, c => usize, d => c_int, e => *mut _, f => *mut _
        ),
        libc::SYS_recvmsg => by_name!(libc::recvmsg, a => c_int, b => *mut _, c => c_int),
        libc::SYS_recvmmsg => by_name!(
            libc::recvmmsg, a => c_int, b => *mut _, c => c_uint, d => _, e => *mut _
        ),
        libc::SYS_sendto => by_name!(
            libc::sendto, a => c_int, b => *const _, c => usize, d => c_int, e => *const _, f => c_uint
        ),
        libc::SYS_sendmsg => by_name!(libc::sendmsg, a => c_int, b => *const _, c => c_int),
        libc::SYS_sendmmsg => {
            by_name!(libc::sendmmsg, a => c_int, b => *mut _, c => c_uint, d => _)
        }
        libc::SYS_sendfile => {
            by_name!(libc::sendfile, a => c_int, b => c_int, c => *mut _, d => usize)
        }
        // SAFETY: as the caller promises.
        _ => unsafe { control_by_function(number, arguments) },
    }
}

/// As [`transfer_by_function`], for calls that transfer no data.
///
/// # Safety
/// As for the system call.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "registers hold arguments of all types"
)]
unsafe fn control_by_function(number: c_long, [a, b, c, d, e, _]: Arguments) -> Option<c_long> {
    match number {
        libc::SYS_bind => by_name!(libc::bind, a => c_int, b => *const _, c => c_uint),
        libc::SYS_connect => by_name!(libc::connect, a => c_int, b => *const _, c => c_uint),
        libc::SYS_listen => by_name!(libc::listen, a => c_int, b => c_int),
        libc::SYS_shutdown => by_name!(libc::shutdown, a => c_int, b => c_int),
        libc::SYS_getsockname => {
            by_name!(libc::getsockname, a => c_int, b => *mut _, c => *mut _)
        }
        libc::SYS_getpeername => {
            by_name!(libc::getpeername, a => c_int, b => *mut _, c => *mut _)
        }
        libc::SYS_getsockopt => by_name!(
            libc::getsockopt, a => c_int, b => c_int, c => c_int, d => *mut _, e => *mut _
        ),
        libc::SYS_setsockopt => by_name!(
            libc::setsockopt, a => c_int, b => c_int, c => c_int, d => *const _, e => c_uint
        ),
        libc::SYS_ioctl => by_name!(libc::ioctl, a => c_int, b => c_ulong, c => *mut c_void),
        libc::SYS_accept => by_name!(libc::accept, a => c_int, b => *mut _, c => *mut _),
        libc::SYS_accept4 => by_name!(
            libc::accept4, a => c_int, b => *mut _, c => *mut _, d => c_int
        ),
        _ => None,
    }
}

/// Converts a signal mask of the kernel, which is shorter than the C library's.
///
/// # Safety
/// `mask` is null or valid.
unsafe fn wide(mask: *const u64) -> Option<sigset_t> {
    // SAFETY: null or valid, as the caller promises.
    let signals = unsafe { load(mask) }?;
    // SAFETY: a signal set is plain data.
    let mut wide: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is longer. Assumption: the kernel's signals come first in a signal set.
    unsafe { store((&raw mut wide).cast(), signals) };
    Some(wide)
}

/// Waits by the interposed functions, which look for rsockets among the descriptors themselves.
///
/// # Safety
/// As for the system call.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "registers hold arguments of all types"
)]
unsafe fn wait_by_function(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    // Before the first socket, no symbol may be looked up.
    if !is_owner() {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    match number {
        libc::SYS_poll => return by_name!(libc::poll, a => *mut _, b => nfds_t, c => c_int),
        libc::SYS_select => {
            return by_name!(
                libc::select, a => c_int, b => *mut _, c => *mut _, d => *mut _, e => *mut _
            );
        }
        _ => {}
    }
    match number {
        libc::SYS_ppoll => {
            // SAFETY: as the caller promises.
            let mask = unsafe { wide(d as *const u64) };
            let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
            let call = |fds, count, time| {
                // SAFETY: as the caller promises; the mask is null or a local one.
                unsafe { libc::ppoll(fds, count, time, mask) }
            };
            Some(call(a as *mut _, b as nfds_t, c as *const _).into())
        }
        libc::SYS_pselect6 => {
            // The last argument has the address of the mask, and its size.
            // SAFETY: null or valid, as the caller promises.
            let mask = unsafe { load(f as *const *const u64) }.unwrap_or(ptr::null());
            // SAFETY: as the caller promises.
            let mask = unsafe { wide(mask) };
            let mask = mask.as_ref().map_or(ptr::null(), ptr::from_ref);
            let call = |count, reads, writes, excepts, time| {
                // SAFETY: as the caller promises; the mask is null or a local one.
                unsafe { libc::pselect(count, reads, writes, excepts, time, mask) }
            };
            let [reads, writes, excepts] = [b, c, d].map(|set| set as *mut _);
            Some(call(a as c_int, reads, writes, excepts, e as *const _).into())
        }
        _ => None,
    }
}

/// Variadic in C; accepts as many arguments as a system call has registers.
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    // As in the C library, a call by number is no cancellation point.
    // SAFETY: as the caller promises.
    let result = uncancelled(|| unsafe { by_function(number, arguments) });
    if let Some(result) = result {
        return result;
    }
    // SAFETY: as the caller promises.
    with_errno(unsafe { make(number, arguments) })
}
