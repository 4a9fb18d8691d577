//! Descriptor functions on sockets.

use std::{fs, ops::RangeInclusive, os::fd::BorrowedFd, sync::Arc};

use interpose::{is_owner, load, real, set_errno, store};
use libc::{c_int, c_long, c_uint, c_ulong, c_void, off_t, size_t, ssize_t};
use rsocket_capi as own;

use crate::{
    epoll, fork, inherited,
    table::{self, Held, SOCKETS},
};

/// Borrows a descriptor of the program.
pub(crate) fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: not negative. The descriptor is only passed to system calls, which fail for one not open;
    // keeping descriptors open is the program's responsibility, as with those calls themselves.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Replaces `to` with a duplicate of `from` and preserves the close-on-exec flag of `to`.
pub(crate) fn replace(from: c_int, to: c_int) -> bool {
    let fcntl = real!(fcntl: unsafe extern "C" fn(c_int, c_int, ...) -> c_int);
    let dup3 = real!(dup3: unsafe extern "C" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: the command has no argument.
    let flags = unsafe { fcntl(to, libc::F_GETFD) };
    let flags = if flags & libc::FD_CLOEXEC != 0 {
        libc::O_CLOEXEC
    } else {
        0
    };
    // SAFETY: all arguments are numbers.
    unsafe { dup3(from, to, flags) >= 0 }
}

/// The rsockets among the program's descriptors, and the TCP sockets to be moved to RDMA.
struct Rsockets;

impl interpose::Descriptors for Rsockets {
    type Forgotten = Option<Arc<Held>>;

    fn forget(fd: c_int) -> Self::Forgotten {
        fork::forget(fd);
        epoll::forget(fd);
        inherited::forget(fd);
        SOCKETS.remove(fd)
    }

    fn follow(old: c_int, new: c_int) {
        drop(Self::forget(new));
        fork::follow(old, new);
        if let Some(held) = table::find(old) {
            SOCKETS.add(new, held);
        }
    }

    fn status_flags(fd: c_int, cmd: c_int, arg: c_long) -> Option<c_int> {
        let held = table::find(fd)?;
        // The flags are in the lower half.
        let flags = c_int::try_from(arg & 0x7fff_ffff).unwrap_or(0);
        Some(own::rfcntl(held.fd(), cmd, flags))
    }
}

/// Whether a descriptor may belong to this library or a library below; not all of them are in a table.
fn may_be_inner(fd: c_int) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let link = link.to_string_lossy();
    let starts = |prefix: &&str| link.starts_with(prefix);
    ["/dev/infiniband/", "anon_inode:"].iter().any(starts)
        || starts(&"socket:") && own::keeps_fd(fd)
}

/// Closes the program's descriptors in a range, except those needed by its rsockets.
fn close_all(range: RangeInclusive<c_uint>) {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let open: Vec<c_int> = open
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd: &c_int| range.contains(&fd.unsigned_abs()))
        .collect();
    for fd in open {
        if SOCKETS.may_have(fd) || !may_be_inner(fd) {
            // SAFETY: the program has requested the close. The directory's own descriptor is already closed.
            unsafe { close(fd) };
        }
    }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // The remaining flag is `CLOSE_RANGE_UNSHARE`; the real call handles it.
    if first <= last && flags == 0 && is_owner() {
        close_all(first..=last);
        return 0;
    }
    let real = real!(close_range: unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int);
    // SAFETY: as the caller promises.
    unsafe { real(first, last, flags) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    if is_owner() {
        close_all(first.max(0).unsigned_abs()..=c_uint::MAX);
        return;
    }
    let real = real!(closefrom: unsafe extern "C" fn(c_int));
    // SAFETY: as the caller promises.
    unsafe { real(first) }
}

interpose::descriptors!(Rsockets);

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

/// Number of bytes read from a file at once.
const PIECE: usize = 64 << 10;

/// Reads a piece of a file, at `offset` if given.
fn read_file(fd: c_int, piece: &mut [u8], offset: Option<off_t>) -> ssize_t {
    let place = piece.as_mut_ptr().cast();
    match offset {
        // SAFETY: the buffer has `piece.len()` bytes.
        Some(offset) => unsafe { libc::pread(fd, place, piece.len(), offset) },
        // SAFETY: as above.
        None => unsafe { libc::read(fd, place, piece.len()) },
    }
}

/// # Safety
/// `offset` is null or valid.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: null or valid, as the caller promises.
    let mut at = unsafe { load(offset) };
    let mut piece = vec![0; count.min(PIECE)];
    let mut done = 0;
    while done < count {
        let wanted = (count - done).min(PIECE);
        let got = read_file(from, &mut piece[..wanted], at);
        let Ok(got @ 1..) = usize::try_from(got) else {
            if got < 0 && done == 0 {
                return -1;
            }
            break;
        };
        // SAFETY: the first `got` bytes have been read.
        let sent = unsafe { own::rsend(to, piece.as_ptr().cast(), got, 0) };
        let sent_len = usize::try_from(sent).unwrap_or(0);
        done += sent_len;
        let forward = |len: usize| off_t::try_from(len).unwrap_or(0);
        match &mut at {
            Some(at) => *at += forward(sent_len),
            None if sent_len < got => {
                // Seeks back over the bytes read but not sent.
                // SAFETY: it takes numbers only.
                unsafe { libc::lseek(from, -forward(got - sent_len), libc::SEEK_CUR) };
            }
            None => {}
        }
        if sent_len < got {
            if done == 0 {
                return -1;
            }
            break;
        }
    }
    if let Some(at) = at {
        // SAFETY: not null, since it was read.
        unsafe { store(offset, at) };
    }
    ssize_t::try_from(done).unwrap_or(ssize_t::MAX)
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if let Some(held) = fork::find(to) {
        // SAFETY: as the caller promises.
        return unsafe { send_file(held.fd(), from, offset, count) };
    }
    let real = real!(
        sendfile: unsafe extern "C" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t
    );
    // SAFETY: as the caller promises.
    unsafe { real(to, from, offset, count) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: as the caller promises; offsets have 64 bits in any case.
    unsafe { sendfile(to, from, offset, count) }
}
