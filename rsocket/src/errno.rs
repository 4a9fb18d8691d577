//! Error numbers for C.

use std::io;

use rustix::io::Errno;

use crate::{failure::ConnectionFailure, proto::stream::Failure};

/// Returns the error number of an error of this crate: the number reported by the system, or else the socket
/// API's number for the kind of failure.
///
/// ```
/// use std::io;
///
/// let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
/// assert_eq!(rsocket::errno(&refused), 111);
/// ```
pub fn errno(err: &io::Error) -> i32 {
    if let Some(errno) = verbs::error::errno(err) {
        return errno;
    }
    let inner = err.get_ref();
    let failure = inner.and_then(|inner| inner.downcast_ref::<ConnectionFailure>());
    if let Some(errno) = failure.and_then(ConnectionFailure::os_error) {
        return errno;
    }
    let errno = match failure.map(ConnectionFailure::failure) {
        Some(Failure::Violation(_)) => Errno::PROTO,
        Some(Failure::Send) => Errno::IO,
        Some(Failure::Lost) => Errno::CONNRESET,
        Some(Failure::TimedOut) => Errno::TIMEDOUT,
        _ => of_kind(err.kind()),
    };
    errno.raw_os_error()
}

fn of_kind(kind: io::ErrorKind) -> Errno {
    use io::ErrorKind as Kind;
    match kind {
        Kind::NotFound => Errno::NODEV,
        Kind::PermissionDenied => Errno::ACCESS,
        Kind::ConnectionRefused => Errno::CONNREFUSED,
        Kind::ConnectionReset => Errno::CONNRESET,
        Kind::ConnectionAborted => Errno::CONNABORTED,
        Kind::HostUnreachable => Errno::HOSTUNREACH,
        Kind::NetworkUnreachable => Errno::NETUNREACH,
        Kind::NotConnected => Errno::NOTCONN,
        Kind::AddrInUse => Errno::ADDRINUSE,
        Kind::AddrNotAvailable => Errno::ADDRNOTAVAIL,
        Kind::NetworkDown => Errno::NETDOWN,
        Kind::BrokenPipe => Errno::PIPE,
        Kind::AlreadyExists => Errno::EXIST,
        Kind::WouldBlock => Errno::AGAIN,
        Kind::InvalidInput => Errno::INVAL,
        Kind::InvalidData => Errno::PROTO,
        Kind::TimedOut => Errno::TIMEDOUT,
        Kind::Interrupted => Errno::INTR,
        Kind::Unsupported => Errno::OPNOTSUPP,
        Kind::OutOfMemory => Errno::NOMEM,
        _ => Errno::IO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::stream::Violation;

    fn failure_error(failure: Failure) -> io::Error {
        ConnectionFailure::new(failure, None).into_io()
    }

    #[test]
    fn errno_of_each_failure_matches_tcp() {
        for (err, expected) in [
            (io::Error::from_raw_os_error(113), 113),
            (verbs::Error::from_errno("ibv_reg_mr", 12).into(), 12),
            (failure_error(Failure::Lost), 104),
            (failure_error(Failure::Send), 5),
            (failure_error(Failure::TimedOut), 110),
            (failure_error(Failure::Violation(Violation::Credits)), 71),
            (io::ErrorKind::WouldBlock.into(), 11),
            (io::ErrorKind::Unsupported.into(), 95),
            (io::ErrorKind::BrokenPipe.into(), 32),
            (io::Error::other("?"), 5),
        ] {
            assert_eq!(errno(&err), expected, "{err:?}");
        }
    }
}
