//! Waiting for a file descriptor, with the calling thread.

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
    // A timeout beyond what the clock can express is none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let mut pollfd = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let millis = deadline.map_or(-1, |deadline| {
            let left = deadline.saturating_duration_since(Instant::now());
            // Rounded up, so that the wait does not spin during its last millisecond.
            i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: `pollfd` is one valid entry, which the kernel writes only during the call; the
        // descriptor is open for as long as it is borrowed.
        let ready = unsafe { libc::poll(&raw mut pollfd, 1, millis) };
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
}
