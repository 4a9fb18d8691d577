//! Errors of all calls: the call, its arguments, the system's error, and a hint.
//!
//! C reports failure in four ways, with one converter each: a null pointer with `errno`
//! ([`cvt_ptr`]), `-1` with `errno` ([`cvt_neg`]), the error number itself as the return value
//! ([`cvt_errno`]), and a negative count ([`cvt_count`]). The RETURN VALUE section of a call's
//! manual page decides which one applies.
//!
//! The completion of a failed request has a [`WcError`](crate::cq::WcError), convertible into an
//! [`Error`].

use std::{borrow::Cow, fmt, io, ptr::NonNull};

use crate::hint::Hint;

/// A call that failed: its name, its arguments, the system's error, and a [hint](crate::hint).
///
/// ```
/// let err = verbs::Error::from_errno("ibv_dereg_mr", libc::EBUSY).detail("4096 bytes");
/// assert_eq!(err.call(), "ibv_dereg_mr");
/// assert_eq!(err.raw_os_error(), Some(libc::EBUSY));
/// assert_eq!(
///     err.to_string(),
///     "`ibv_dereg_mr` failed (4096 bytes): Device or resource busy (os error 16)"
/// );
/// let err = verbs::Error::from_errno("rdma_bind_addr", libc::EACCES).detail("10.9.0.1:80");
/// assert_eq!(
///     err.to_string(),
///     "`rdma_bind_addr` failed (10.9.0.1:80): Permission denied (os error 13); ports below 1024 need \
///      the capability CAP_NET_BIND_SERVICE"
/// );
/// ```
pub struct Error {
    call: &'static str,
    /// On the heap, so that results stay small.
    notes: Option<Box<Notes>>,
    source: ErrorSource,
}

/// The texts that callers have added to an error.
#[derive(Default)]
struct Notes {
    detail: Option<Cow<'static, str>>,
    hint: Option<Cow<'static, str>>,
}

/// The reason of the failure.
#[derive(Debug)]
enum ErrorSource {
    Io(io::Error),
    /// The caller must wait first, for this reason. Not an `io::Error`, whose reason would be
    /// allocated: a full queue is part of the ordinary course.
    WouldBlock(&'static str),
}

/// The value of [`Error::call`] for a failed posted request: not a call failed, but a completion
/// reports the failure.
pub(crate) const COMPLETION: &str = "ibv_wc";

/// The result of a fallible call, with [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of the call, with the system's error.
    #[cold]
    pub fn from_io(call: &'static str, err: impl Into<io::Error>) -> Self {
        Self {
            call,
            notes: None,
            source: ErrorSource::Io(err.into()),
        }
    }

    /// An error with the given error number, a positive one.
    #[cold]
    pub fn from_errno(call: &'static str, errno: i32) -> Self {
        debug_assert!(errno > 0, "{call}: errno {errno} is not positive");
        Self::from_io(call, io::Error::from_raw_os_error(errno))
    }

    /// An error with the calling thread's `errno`, read now.
    #[cold]
    pub fn last_os(call: &'static str) -> Self {
        let source = io::Error::last_os_error();
        let source = match source.raw_os_error() {
            Some(0) | None => io::Error::other("the call failed without setting errno"),
            Some(_) => source,
        };
        Self::from_io(call, source)
    }

    /// A refusal by these crates, before any call into the system; or a failure reported by the
    /// system without an error number. The reason is a text or an error; [`get_ref`](Self::get_ref)
    /// returns the error.
    #[cold]
    pub fn refused(
        call: &'static str,
        kind: io::ErrorKind,
        reason: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::from_io(call, io::Error::new(kind, reason))
    }

    /// A refusal with the kind [`WouldBlock`](io::ErrorKind::WouldBlock): the caller must wait
    /// for the condition named by `reason`. Allocates nothing.
    ///
    /// ```
    /// let err = verbs::Error::would_block("ibv_post_send", "the queue is full");
    /// assert_eq!(err.kind(), std::io::ErrorKind::WouldBlock);
    /// assert_eq!(err.to_string(), "`ibv_post_send` failed: the queue is full");
    /// ```
    #[cold]
    pub const fn would_block(call: &'static str, reason: &'static str) -> Self {
        Self {
            call,
            notes: None,
            source: ErrorSource::WouldBlock(reason),
        }
    }

    /// Adds the arguments of the call, or another detail; shown in parentheses, after earlier
    /// details.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        let (notes, detail) = (self.notes.get_or_insert_default(), detail.into());
        notes.detail = Some(match notes.detail.take() {
            Some(earlier) if earlier.split(", ").any(|present| present == detail) => earlier,
            Some(earlier) => format!("{earlier}, {detail}").into(),
            None => detail,
        });
        self
    }

    /// Adds a hint on the remedy, shown at the end, in place of the hint for the call and its error
    /// number.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.notes.get_or_insert_default().hint = Some(hint.into());
        self
    }

    /// The name of the C function that failed, or of the method that refused; `ibv_wc` for a posted
    /// request with a failed completion.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The portable kind of the error.
    pub fn kind(&self) -> io::ErrorKind {
        match &self.source {
            ErrorSource::Io(err) => err.kind(),
            ErrorSource::WouldBlock(_) => io::ErrorKind::WouldBlock,
        }
    }

    /// The error number, unless these crates refused the call.
    pub fn raw_os_error(&self) -> Option<i32> {
        match &self.source {
            ErrorSource::Io(err) => err.raw_os_error(),
            ErrorSource::WouldBlock(_) => None,
        }
    }

    /// The error given as the reason, such as a [`WcError`](crate::cq::WcError), for a downcast; as
    /// [`io::Error::get_ref`]. The message of this error contains the reason, so
    /// [`source`](std::error::Error::source) is the reason's own source.
    ///
    /// ```
    /// use std::error::Error;
    /// use verbs::{WcStatus, cq::WcError};
    ///
    /// let failed = WcError::new(WcStatus::RETRY_EXC_ERR, 0);
    /// let err = verbs::Error::from(failed);
    /// assert_eq!(err.get_ref().and_then(|reason| reason.downcast_ref()), Some(&failed));
    /// assert!(err.source().is_none());
    /// ```
    pub fn get_ref(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        match &self.source {
            ErrorSource::Io(err) => err.get_ref(),
            ErrorSource::WouldBlock(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            COMPLETION => f.write_str("a posted request failed")?,
            call => write!(f, "`{call}` failed")?,
        }
        let notes = self.notes.as_deref();
        if let Some(detail) = notes.and_then(|notes| notes.detail.as_ref()) {
            write!(f, " ({detail})")?;
        }
        match &self.source {
            ErrorSource::Io(err) => write!(f, ": {err}")?,
            ErrorSource::WouldBlock(reason) => write!(f, ": {reason}")?,
        }
        if let Some(hint) = notes.and_then(|notes| notes.hint.as_ref()) {
            return write!(f, "; {hint}");
        }
        let errno = self.raw_os_error();
        match errno.and_then(|errno| Hint::of(self.call, errno)) {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Formats as [`Display`](fmt::Display), for the output of `fn main() -> Result`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.get_ref()?.source()
    }
}

impl From<Error> for io::Error {
    fn from(err: Error) -> Self {
        Self::new(err.kind(), err)
    }
}

/// The error number in an error of the standard library: its own, or the one of a contained
/// [`Error`].
///
/// ```
/// use verbs::error::errno;
///
/// let refused = verbs::Error::from_errno("ibv_reg_mr", 12);
/// assert_eq!(errno(&refused.into()), Some(12));
/// assert_eq!(errno(&std::io::ErrorKind::TimedOut.into()), None);
/// ```
pub fn errno(err: &io::Error) -> Option<i32> {
    let wrapped = || err.get_ref()?.downcast_ref::<Error>()?.raw_os_error();
    err.raw_os_error().or_else(wrapped)
}

/// The error number of any error of the standard library, for C: as [`errno`], or else the one that
/// the socket API has for the error's kind; `EIO` for a kind without one.
///
/// ```
/// use std::io::ErrorKind;
/// use verbs::error::errno_or_kind;
///
/// let refused = verbs::Error::from_errno("ibv_reg_mr", 12);
/// assert_eq!(errno_or_kind(&refused.into()), 12);
/// assert_eq!(errno_or_kind(&ErrorKind::ConnectionRefused.into()), 111);
/// ```
pub fn errno_or_kind(err: &io::Error) -> i32 {
    use io::ErrorKind as Kind;
    let of_kind = || match err.kind() {
        Kind::NotFound => libc::ENODEV,
        Kind::PermissionDenied => libc::EACCES,
        Kind::ConnectionRefused => libc::ECONNREFUSED,
        Kind::ConnectionReset => libc::ECONNRESET,
        Kind::ConnectionAborted => libc::ECONNABORTED,
        Kind::HostUnreachable => libc::EHOSTUNREACH,
        Kind::NetworkUnreachable => libc::ENETUNREACH,
        Kind::NotConnected => libc::ENOTCONN,
        Kind::AddrInUse => libc::EADDRINUSE,
        Kind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        Kind::NetworkDown => libc::ENETDOWN,
        Kind::BrokenPipe => libc::EPIPE,
        Kind::AlreadyExists => libc::EEXIST,
        Kind::WouldBlock => libc::EAGAIN,
        Kind::InvalidInput => libc::EINVAL,
        Kind::InvalidData => libc::EPROTO,
        Kind::TimedOut => libc::ETIMEDOUT,
        Kind::Interrupted => libc::EINTR,
        Kind::Unsupported => libc::EOPNOTSUPP,
        Kind::OutOfMemory => libc::ENOMEM,
        _ => libc::EIO,
    };
    errno(err).unwrap_or_else(of_kind)
}

/// A failed call's error, with the argument returned: the work of a failed post, the queue pair of
/// a failed transition.
///
/// `?` converts into a plain [`Error`], and drops the value.
pub struct Refused<T> {
    /// The argument of the call, unchanged.
    pub value: T,
    /// Why the call failed.
    pub error: Error,
}

impl<T> Refused<T> {
    /// Maps the returned value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Refused<U> {
        Refused {
            value: f(self.value),
            error: self.error,
        }
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Formats as [`Display`](fmt::Display), so that `unwrap` and `fn main() -> Result` print the error
/// and not the value.
impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

/// A failed post, with the request returned, if the device certainly does not have it.
///
/// `?` converts into a plain [`Error`], and drops the request.
///
/// ```
/// # let (peer, mut qp, mut cq) = doctest::connected();
/// # let token = peer.token();
/// use std::{collections::VecDeque, io::ErrorKind};
/// use verbs::{error::PostError, op};
///
/// let mut pending = VecDeque::new();
/// for number in 0..40 {
///     pending.push_back(op::Write::new(qp.pd().register_buf(vec![number; 4])?, token));
/// }
/// while let Some(write) = pending.pop_front() {
///     match qp.post(write) {
///         Ok(_) => {}
///         Err(PostError { value: Some(write), error }) if error.kind() == ErrorKind::WouldBlock => {
///             assert_eq!((write.remote(), write.work().len()), (token, 4));
///             pending.push_front(write);
///             for wc in cq.poll()? {
///                 qp.complete(wc).expect("there is no other queue pair");
///             }
///         }
///         Err(refused) => return Err(refused.into()),
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
pub struct PostError<R> {
    /// The request, not posted.
    ///
    /// `None` if the device may have it: the call failed, and the source of the device's library does
    /// not prove the effect. The queue keeps the work, as if posted, until a completion, or until its
    /// destruction.
    pub value: Option<R>,
    /// Why the call failed.
    pub error: Error,
}

impl<R> PostError<R> {
    /// Maps the returned request.
    pub fn map<U>(self, f: impl FnOnce(R) -> U) -> PostError<U> {
        PostError {
            value: self.value.map(f),
            error: self.error,
        }
    }

    /// A request refused before any call into the system.
    #[inline]
    pub(crate) fn refused(value: R, error: Error) -> Self {
        let value = Some(value);
        Self { value, error }
    }
}

impl<R> fmt::Display for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Formats as [`Display`](fmt::Display), so that `unwrap` and `fn main() -> Result` print the error
/// and not the request.
impl<R> fmt::Debug for PostError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<R> std::error::Error for PostError<R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<R> From<PostError<R>> for Error {
    fn from(failed: PostError<R>) -> Self {
        failed.error
    }
}

impl<R> From<Refused<R>> for PostError<R> {
    fn from(refused: Refused<R>) -> Self {
        Self::refused(refused.value, refused.error)
    }
}

/// A function missing in older libraries: without the function, the error is that of a device
/// without support.
pub(crate) fn found<F>(call: &'static str, function: Option<F>) -> Result<F> {
    function.ok_or_else(|| Error::from_errno(call, libc::EOPNOTSUPP))
}

/// Converts a pointer result: null, with `errno` set, on failure.
///
/// # Errors
/// The pointer was null.
#[inline]
pub fn cvt_ptr<T>(call: &'static str, ptr: *mut T) -> Result<NonNull<T>> {
    NonNull::new(ptr).ok_or_else(|| Error::last_os(call))
}

/// Converts an integer result: negative, with `errno` set, on failure.
///
/// # Errors
/// The value was negative.
#[inline]
pub fn cvt_neg(call: &'static str, ret: i32) -> Result<i32> {
    if ret < 0 {
        Err(Error::last_os(call))
    } else {
        Ok(ret)
    }
}

/// Converts an error number as the result: zero on success. A few providers return the number
/// negated, so either sign is accepted.
///
/// # Errors
/// The value was not zero.
#[inline]
pub fn cvt_errno(call: &'static str, ret: i32) -> Result<()> {
    match ret {
        0 => Ok(()),
        errno => Err(Error::from_errno(call, errno.saturating_abs())),
    }
}

/// Converts a count as the result: negative on failure.
///
/// # Errors
/// The value was negative. Its meaning beyond the sign differs between providers; `-1` is reported
/// as `EIO`.
#[inline]
pub fn cvt_count(call: &'static str, ret: i32) -> Result<usize> {
    usize::try_from(ret).map_err(|_| match ret {
        -1 => Error::from_errno(call, libc::EIO),
        negated => Error::from_errno(call, negated.saturating_abs()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{WcStatus, cq::WcError};

    fn set_errno(errno: i32) {
        // SAFETY: `__errno_location` returns a valid pointer to this thread's `errno`.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: see above; no other thread can reach the location.
        unsafe { *location = errno };
    }

    #[test]
    fn errno_is_never_negated_in_a_message() {
        let golden = "`ibv_modify_qp` failed: Invalid argument (os error 22)";
        for ret in [libc::EINVAL, -libc::EINVAL] {
            assert_eq!(
                cvt_errno("ibv_modify_qp", ret).unwrap_err().to_string(),
                golden
            );
        }
        assert_eq!(
            cvt_count("ibv_poll_cq", -libc::EINVAL)
                .unwrap_err()
                .to_string(),
            "`ibv_poll_cq` failed: Invalid argument (os error 22)"
        );
    }

    #[test]
    fn each_converter_reads_its_error_convention() {
        assert!(cvt_errno("x", 0).is_ok());
        assert_eq!(cvt_count("x", 3).unwrap(), 3);
        assert_eq!(cvt_neg("x", 5).unwrap(), 5);
        set_errno(libc::ENODEV);
        assert_eq!(
            cvt_neg("x", -1).unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
        let null: *mut u8 = std::ptr::null_mut();
        set_errno(libc::ENOMEM);
        assert_eq!(
            cvt_ptr("x", null).unwrap_err().raw_os_error(),
            Some(libc::ENOMEM)
        );
    }

    #[test]
    fn reason_in_the_message_is_not_also_the_source() {
        let failed = WcError::new(WcStatus::RETRY_EXC_ERR, 0x81);
        let err = Error::from(failed);
        let refused = Refused {
            value: (),
            error: Error::from(failed),
        };
        let io = io::Error::from(Error::from(failed));
        let errors: [&dyn std::error::Error; 3] = [&err, &refused, &io];
        for err in errors {
            assert!(err.to_string().ends_with(&failed.to_string()), "{err}");
            assert!(err.source().is_none(), "{err}");
        }
        assert_eq!(WcError::of(&err), Some(&failed));
        assert_eq!(WcError::of(&Error::would_block("x", "full")), None);
        let lower = io::Error::other(io::Error::new(io::ErrorKind::TimedOut, "cause"));
        let nested = Error::refused("x", io::ErrorKind::Other, lower);
        assert_eq!(nested.to_string(), "`x` failed: cause");
        assert!(std::error::Error::source(&nested).is_none());
    }

    #[test]
    fn later_detail_keeps_the_earlier_one() {
        let err = Error::from_errno("x", libc::EIO).detail("status 3");
        let err = err.detail("10.9.0.1").detail("10.9.0.1").to_string();
        assert!(err.contains("(status 3, 10.9.0.1)"), "{err}");
        let err = Error::from_errno("x", libc::EIO).detail("status 13");
        let err = err.detail("3").to_string();
        assert!(err.contains("(status 13, 3)"), "{err}");
    }

    #[test]
    fn failure_without_errno_names_the_missing_errno() {
        set_errno(0);
        assert_eq!(
            cvt_neg("ibv_query_gid", -1).unwrap_err().to_string(),
            "`ibv_query_gid` failed: the call failed without setting errno"
        );
    }
}
