//! Conversion of errors to the `errno` of the kernel's RDS sockets.

use std::{error::Error, fmt, io};

use rustix::io::Errno;

use crate::proto::node::SocketError;

/// The `errno` of an error of this crate, as the kernel's RDS sockets return.
///
/// ```
/// let full = std::io::Error::from(std::io::ErrorKind::WouldBlock);
/// assert_eq!(rds::errno(&full), 11); // EAGAIN
/// ```
pub fn errno(err: &io::Error) -> i32 {
    let inner = err.get_ref();
    if inner.is_some_and(|inner| inner.is::<TimeoutElapsed>()) {
        return Errno::TIMEDOUT.raw_os_error();
    }
    match inner.and_then(|inner| inner.downcast_ref::<SocketError>()) {
        Some(err) => of_socket(*err).raw_os_error(),
        None => verbs::error::errno_or_kind(err),
    }
}

fn of_socket(err: SocketError) -> Errno {
    match err {
        SocketError::Closed => Errno::BADF,
        SocketError::NoDestination(_) => Errno::DESTADDRREQ,
        SocketError::Address(_)
        | SocketError::Port(_)
        | SocketError::AlreadyBound(_)
        | SocketError::TosInUse(_) => Errno::INVAL,
        SocketError::InUse(_) => Errno::ADDRINUSE,
        SocketError::NotConnected => Errno::NOTCONN,
        SocketError::Family(_) => Errno::OPNOTSUPP,
        SocketError::TooLong(_) => Errno::MSGSIZE,
        SocketError::Congested(_) | SocketError::Connections(_) => Errno::NOBUFS,
        SocketError::Full => Errno::AGAIN,
        // `rds-proto` may get further errors.
        _ => Errno::IO,
    }
}

/// A socket error as `io::Error`, with the kind of its `errno`.
pub(crate) fn socket_error(err: SocketError) -> io::Error {
    let kind = match err {
        // `ENOBUFS` has no `ErrorKind`.
        SocketError::Congested(_) => io::ErrorKind::WouldBlock,
        _ => io::Error::from(of_socket(err)).kind(),
    };
    io::Error::new(kind, err)
}

/// The end of a blocking call by its timeout.
#[derive(Clone, Copy)]
struct TimeoutElapsed;

impl fmt::Debug for TimeoutElapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TimeoutElapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the timeout of the call has elapsed")
    }
}

impl Error for TimeoutElapsed {}

/// The error of a call whose timeout has elapsed. Its kind is `WouldBlock`, as for the sockets of
/// [`std::net`] on Unix; its [`errno`] is `ETIMEDOUT`, as for the kernel's RDS sockets
/// (`rds_recvmsg`, `rds_sendmsg`).
pub(crate) fn timeout_elapsed() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, TimeoutElapsed)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn errno_matches_the_kernel() {
        let somewhere = SocketAddr::from(([10, 9, 0, 1], 7));
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 7));
        for (err, expected) in [
            (SocketError::Closed, 9),
            (SocketError::Address(somewhere), 22),
            (SocketError::NoDestination(unspecified), 89),
            (SocketError::Port(1), 22),
            (SocketError::AlreadyBound(somewhere), 22),
            (SocketError::InUse(somewhere), 98),
            (SocketError::NotConnected, 107),
            (SocketError::Family(somewhere), 95),
            (SocketError::TooLong(1 << 21), 90),
            (SocketError::Congested(somewhere), 105),
            (SocketError::Full, 11),
            (SocketError::TosInUse(3), 22),
            (SocketError::Connections(4096), 105),
        ] {
            assert_eq!(errno(&socket_error(err)), expected, "{err:?}");
        }
        let verbs = verbs::Error::from_errno("ibv_reg_mr", 12);
        assert_eq!(errno(&verbs.into()), 12);
        assert_eq!(errno(&io::Error::from_raw_os_error(5)), 5);
        assert_eq!(errno(&io::ErrorKind::TimedOut.into()), 110);
    }

    #[test]
    fn errno_of_elapsed_timeout_is_etimedout() {
        let err = timeout_elapsed();
        assert_eq!((err.kind(), errno(&err)), (io::ErrorKind::WouldBlock, 110));
        assert_eq!(err.to_string(), "the timeout of the call has elapsed");
    }

    #[test]
    fn errno_of_retryable_errors_is_would_block() {
        let full = socket_error(SocketError::Full);
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let to = SocketAddr::from(([10, 9, 0, 1], 7));
        let congested = socket_error(SocketError::Congested(to));
        assert_eq!(congested.kind(), io::ErrorKind::WouldBlock);
    }
}
