//! `sendfile` to an rsocket: reads pieces of the file and sends each.

use interpose::{load, real, store};
use libc::{c_int, off_t, size_t, ssize_t};
use rsocket_capi as own;

use crate::fork;

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
