//! `sendfile` to an rsocket: reads pieces of the file and sends each.

use std::io;

use interpose::{cross, last_errno, load, os, real, run, store};
use libc::{c_int, off_t, size_t, ssize_t};
use rsocket_capi as capi;

use crate::{fork, table::with};

/// Number of bytes read from a file at once.
const PIECE: usize = 64 << 10;

/// Position of a file. Fails, as `sendfile` does, for files without one, such as sockets and pipes.
fn position(file: c_int) -> io::Result<off_t> {
    // SAFETY: numbers only.
    let at = unsafe { libc::lseek(file, 0, libc::SEEK_CUR) };
    match (at, last_errno()) {
        (0.., _) => Ok(at),
        (_, libc::ESPIPE) => Err(os(libc::EINVAL)),
        (_, error) => Err(os(error)),
    }
}

/// Reads a piece of a file at a position.
fn read_file(file: c_int, piece: &mut [u8], at: off_t) -> io::Result<usize> {
    let (start, len) = (piece.as_mut_ptr().cast(), piece.len());
    // SAFETY: the buffer has `len` bytes.
    let got = unsafe { libc::pread(file, start, len, at) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Sends up to `count` bytes from a position of a file. Returns the number of bytes; the error of the first piece.
fn send_from(to: c_int, from: c_int, at: off_t, count: usize) -> io::Result<usize> {
    let mut piece = vec![0; count.min(PIECE)];
    let mut done = 0;
    loop {
        let chunk = (count - done).min(PIECE);
        let next = at.saturating_add(off_t::try_from(done).unwrap_or(off_t::MAX));
        let sent = read_file(from, &mut piece[..chunk], next).and_then(|got| {
            if got == 0 {
                return Ok(0);
            }
            // SAFETY: the first `got` bytes have been read.
            let sent = unsafe { capi::rsend(to, piece.as_ptr().cast(), got, 0) };
            usize::try_from(sent).map_err(|_| io::Error::last_os_error())
        });
        match sent {
            Ok(sent) => done += sent,
            Err(err) if done == 0 => return Err(err),
            Err(_) => break,
        }
        if done == count || !matches!(sent, Ok(sent) if sent == chunk) {
            break;
        }
    }
    Ok(done)
}

/// # Safety
/// `offset` is null or valid.
unsafe fn send_file(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> io::Result<ssize_t> {
    // SAFETY: null or valid, as the caller promises.
    let stored = unsafe { load(offset) };
    let at = stored.map_or_else(|| position(from), Ok)?;
    let sent = send_from(to, from, at, count)?;
    let sent = off_t::try_from(sent).unwrap_or(off_t::MAX);
    if stored.is_some() {
        // SAFETY: not null, since it was read.
        unsafe { store(offset, at + sent) };
    } else {
        // SAFETY: numbers only.
        unsafe { libc::lseek(from, at + sent, libc::SEEK_SET) };
    }
    Ok(isize::try_from(sent).unwrap_or(isize::MAX))
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if fork::may_be_own(to) {
        let sent = cross(true, true, || {
            let rsocket = fork::sender(to, 0)?;
            Some(with(&rsocket, |inner| {
                // SAFETY: as the caller promises.
                run(rsocket::errno, || unsafe {
                    send_file(inner, from, offset, count)
                })
            }))
        });
        if let Some(sent) = sent {
            return sent;
        }
    }
    let real = real!(
        sendfile: unsafe extern "C-unwind" fn(c_int, c_int, *mut off_t, size_t) -> ssize_t
    );
    // SAFETY: as the caller promises.
    unsafe { real(to, from, offset, count) }
}

/// # Safety
/// As for the function of the same name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: as the caller promises; offsets have 64 bits in any case.
    unsafe { sendfile(to, from, offset, count) }
}
