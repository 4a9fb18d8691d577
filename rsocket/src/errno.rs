//! Error numbers for C.

use std::io;

use crate::failure::ConnectionFailure;

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
    let inner = err.get_ref();
    let failure = inner.and_then(|inner| inner.downcast_ref::<ConnectionFailure>());
    let of_failure = failure.and_then(ConnectionFailure::errno);
    of_failure.unwrap_or_else(|| verbs::error::errno_or_kind(err))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::stream::{Failure, Violation};

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
