//! The file descriptors of event channels: waiting for them, without an async runtime.

use std::{
    os::fd::{AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

use crate::error::{Result, cvt_neg};

/// `poll(2)`—Waits until `fd` is readable. Returns false when `timeout` passed first.
///
/// A signal does not end the wait, and does not prolong it.
///
/// # Errors
/// - `ENOMEM`: out of memory, the only way this can fail.
#[doc(alias = "poll")]
pub fn wait_readable(
    call: &'static str,
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> Result<bool> {
    wait_any_readable(call, [fd], timeout)
}

/// `poll(2)`—Waits until one of `fds` is readable. Returns false when `timeout` passed first.
///
/// # Errors
/// As for [`wait_readable`].
#[doc(alias = "poll")]
pub fn wait_any_readable<const N: usize>(
    call: &'static str,
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<bool> {
    // A timeout beyond what the clock can express is none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut pollfds = fds.map(|fd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    loop {
        let millis = deadline.map_or(-1, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the wait does not spin during its last millisecond.
            i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: `pollfds` are so many valid entries, which the kernel writes only during the
        // call; the descriptors are open for as long as they are borrowed.
        let ready = unsafe { libc::poll(pollfds.as_mut_ptr(), N as libc::nfds_t, millis) };
        match cvt_neg(call, ready) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Ok(false);
            }
            Ok(0) => {}
            Ok(_) => return Ok(true),
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

/// `fcntl(2)`—Makes reads of `fd` return at once when there is nothing to read, or sleep until there is.
///
/// # Errors
/// None that an open descriptor can cause.
#[doc(alias = "fcntl")]
pub fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> Result<()> {
    // SAFETY: the descriptor is open; this call takes and returns only numbers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    let flags = cvt_neg("fcntl(F_GETFL)", flags)?;
    let flags = if nonblocking {
        flags | libc::O_NONBLOCK
    } else {
        flags & !libc::O_NONBLOCK
    };
    // SAFETY: see above.
    let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) };
    cvt_neg("fcntl(F_SETFL)", ret).map(drop)
}

/// Calls `take` until it has something, waiting for `fd` in between, but not longer than `timeout`
/// (`None`: for ever), after which the result is `None`.
///
/// # Errors
/// Those of `take`, and of [`wait_readable`].
pub fn wait_for<T>(
    call: &'static str,
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
    mut take: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(taken) = take()? {
            return Ok(Some(taken));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if !wait_readable(call, fd, left)? {
            return take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsFd, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn wait_ends_with_the_timeout_or_with_data() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let short = Some(Duration::from_millis(20));
        let start = Instant::now();
        assert!(!wait_readable("poll", reader.as_fd(), short).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20));
        writer.write_all(b"x").unwrap();
        assert!(wait_readable("poll", reader.as_fd(), None).unwrap());
        assert!(wait_readable("poll", reader.as_fd(), Some(Duration::MAX)).unwrap());
    }

    #[test]
    fn the_wait_ends_with_any_of_the_descriptors() {
        let (idle, _idle_writer) = UnixStream::pair().unwrap();
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let short = Some(Duration::from_millis(20));
        let fds = [idle.as_fd(), reader.as_fd()];
        assert!(!wait_any_readable("poll", fds, short).unwrap());
        writer.write_all(b"x").unwrap();
        assert!(wait_any_readable("poll", fds, Some(Duration::MAX)).unwrap());
    }

    #[test]
    fn what_somebody_else_took_does_not_end_the_wait() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        writer.write_all(b"x").unwrap();
        let mut takes = 0;
        let taken = wait_for(
            "poll",
            reader.as_fd(),
            Some(Duration::from_secs(60)),
            || {
                takes += 1;
                Ok((takes == 5).then_some("mine"))
            },
        );
        assert_eq!(taken.unwrap(), Some("mine"));
    }

    #[test]
    fn a_nonblocking_descriptor_does_not_block() {
        let (mut reader, _writer) = UnixStream::pair().unwrap();
        set_nonblocking(reader.as_fd(), true).unwrap();
        let err = std::io::Read::read(&mut reader, &mut [0]).unwrap_err();
        assert_eq!(err.kind(), std::io::ErrorKind::WouldBlock);
    }
}
