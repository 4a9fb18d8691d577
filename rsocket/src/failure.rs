//! The failure of a connection, with the cause reported by the device or the connection manager.

use std::{error, fmt, io};

use cm::ConnectFailure;
use rustix::io::Errno;
use verbs::cq::WcError;

use crate::proto::stream::Failure;

/// A failed connection: the inner error of the [`io::Error`] of each later call.
///
/// The [cause](Self::cause) is the connection manager's [`ConnectFailure`] or the request's [`WcError`], where
/// either reported the failure. The message contains the cause.
///
/// The error's kind is `InvalidData` for a violation of the protocol, `TimedOut` for data without an acknowledgement in time,
/// `NetworkDown` for a removed device, the kind of the error number if a call has failed, and else `ConnectionReset`.
///
/// ```
/// # let _fabric = doctest::lasting_host();
/// # let listener = rsocket::Listener::bind("10.9.0.1:7471")?;
/// # std::thread::spawn(move || drop(listener.accept()));
/// use std::io::Read;
///
/// let mut stream = rsocket::Stream::connect("10.9.0.1:7471")?;
/// if let Err(err) = stream.read(&mut [0; 100]) {
///     let failure = err.get_ref().and_then(|inner| inner.downcast_ref::<rsocket::ConnectionFailure>());
///     if let Some(cause) = failure.and_then(|failure| failure.cause()) {
///         println!("the connection has failed: {cause}");
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionFailure {
    failure: Failure,
    cause: Option<Cause>,
}

/// Reporter and cause of a failure.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Reported by the device in a work completion.
    Request(WcError),
    /// Reported by the connection manager in an event.
    Connection(ConnectFailure),
    /// Reported by a call: the kernel takes no requests, or arms no queue.
    Call(CallError),
}

/// A call of the connection's queue pair or completion queue that has failed for good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallError {
    call: &'static str,
    errno: i32,
}

impl CallError {
    /// The error of a call; `None` without an error number.
    pub(crate) fn of(error: &verbs::Error) -> Option<Self> {
        let errno = error.raw_os_error().filter(|&errno| errno > 0)?;
        Some(Self {
            call: error.call(),
            errno,
        })
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&verbs::Error::from_errno(self.call, self.errno), f)
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for CallError {}

impl ConnectionFailure {
    pub(crate) fn new(failure: Failure, cause: Option<Cause>) -> Self {
        Self { failure, cause }
    }

    /// Returns the failure in terms of the protocol.
    pub fn failure(&self) -> Failure {
        self.failure
    }

    /// Returns the error that reported the failure, for a downcast.
    pub fn cause(&self) -> Option<&(dyn error::Error + Send + Sync + 'static)> {
        match self.cause.as_ref()? {
            Cause::Request(cause) => Some(cause),
            Cause::Connection(cause) => Some(cause),
            Cause::Call(cause) => Some(cause),
        }
    }

    /// The socket API's error number, where the kind of the error does not name it.
    pub(crate) fn errno(&self) -> Option<i32> {
        match (&self.cause, self.failure) {
            (Some(Cause::Call(cause)), _) => Some(cause.errno),
            (Some(Cause::Connection(ConnectFailure::DeviceRemoved)), _) => None,
            (_, Failure::Send) => Some(Errno::IO.raw_os_error()),
            _ => None,
        }
    }

    /// The nearest portable kind of error.
    fn kind(&self) -> io::ErrorKind {
        match (&self.cause, self.failure) {
            (_, Failure::Violation(_)) => io::ErrorKind::InvalidData,
            (_, Failure::TimedOut) => io::ErrorKind::TimedOut,
            (Some(Cause::Call(cause)), _) => io::Error::from_raw_os_error(cause.errno).kind(),
            (Some(Cause::Connection(cause @ ConnectFailure::DeviceRemoved)), _) => cause.kind(),
            _ => io::ErrorKind::ConnectionReset,
        }
    }

    /// Converts the failure into the error of a call.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::new(self.kind(), self)
    }
}

impl fmt::Display for ConnectionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.failure, f)?;
        match &self.cause {
            None => Ok(()),
            Some(cause) => write!(f, ": {cause}"),
        }
    }
}

/// Prints the [`Display`](fmt::Display) text, since `unwrap` and `fn main() -> Result` print errors with
/// `Debug`.
impl fmt::Debug for ConnectionFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl error::Error for ConnectionFailure {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.cause()?.source()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(cause) => fmt::Display::fmt(cause, f),
            Self::Connection(cause) => fmt::Display::fmt(cause, f),
            Self::Call(cause) => fmt::Display::fmt(cause, f),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use verbs::WcStatus;

    use super::*;

    #[test]
    fn failure_text_has_its_cause_once() {
        let lost = ConnectFailure::Unreachable {
            status: -libc_timed_out(),
        };
        let cause = Cause::Connection(lost.clone());
        let failure = ConnectionFailure::new(Failure::Lost, Some(cause));
        let text = "the peer has gone: unreachable: Connection timed out (os error 110)";
        assert_eq!(failure.to_string(), text);
        assert_eq!(format!("{failure:?}"), text);
        let cause = failure.cause().unwrap();
        assert_eq!(cause.downcast_ref::<ConnectFailure>(), Some(&lost));
        assert!(failure.source().is_none());
        let err = failure.into_io();
        assert_eq!(err.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(err.to_string(), text);

        let removed = Cause::Connection(ConnectFailure::DeviceRemoved);
        let err = ConnectionFailure::new(Failure::Lost, Some(removed)).into_io();
        assert_eq!(err.kind(), io::ErrorKind::NetworkDown);

        let request = WcError::new(WcStatus::RETRY_EXC_ERR, 0);
        let cause = Cause::Request(request);
        let failure = ConnectionFailure::new(Failure::Send, Some(cause));
        assert_eq!(
            failure.to_string(),
            format!("a request to the peer has failed: {request}")
        );
        assert_eq!(failure.cause().unwrap().downcast_ref(), Some(&request));
        assert!(failure.source().is_none());

        let bare = ConnectionFailure::new(Failure::Lost, None);
        assert_eq!(bare.to_string(), "the peer has gone");
        assert!(bare.cause().is_none());
    }

    fn libc_timed_out() -> i32 {
        Errno::TIMEDOUT.raw_os_error()
    }
}
