//! Returned work, accessible through the status of its completion.

use std::{fmt, ops::Deref};

use crate::{
    cq::{Attempts, WcError, WcOpcode, WcStatus, WorkCompletion},
    error::Error,
};

/// Returned work, with its completion.
///
/// Access to the work checks the status, so that a failure cannot be ignored by accident:
/// [`into_work`](Self::into_work) and [`work`](Self::work) are errors if the request failed, and
/// [`into_parts`](Self::into_parts) returns the status. Dropping the value drops the work.
///
/// ```
/// # let (_peer, mut qp, mut cq) = doctest::connected();
/// # qp.post(verbs::op::Send::new(qp.pd().alloc_buf(5)?))?;
/// # let wc = cq.wait(None)?.next().expect("a completion has arrived");
/// # let Ok(verbs::Completed::Send(done)) = qp.complete(wc) else { panic!("no send") };
/// let buf = done.into_work()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "it may report a failure"]
pub struct Completion<'p, W> {
    work: W,
    wc: WorkCompletion<'p>,
    /// Retries of the queue pair, for the error.
    attempts: Option<&'p Attempts>,
}

/// A failed request, with its work.
///
/// `?` converts into a plain [`Error`], and drops the work.
pub struct Failed<W> {
    /// The work, no longer accessed by the device.
    pub work: W,
    /// The status of the request.
    pub error: WcError,
}

impl<'p, W> Completion<'p, W> {
    #[inline]
    pub(crate) fn new(work: W, wc: WorkCompletion<'p>) -> Self {
        Self {
            work,
            wc,
            attempts: None,
        }
    }

    /// Adds the retries of the queue pair, for the error of a request with exhausted
    /// retries.
    pub fn with_attempts(self, attempts: Option<&'p Attempts>) -> Self {
        Self { attempts, ..self }
    }

    #[inline]
    fn ok(&self) -> Result<(), WcError> {
        match (self.wc.ok(), self.attempts) {
            (Ok(()), _) => Ok(()),
            (Err(error), None) => Err(error),
            (Err(error), Some(attempts)) => Err(error.with_attempts(*attempts)),
        }
    }

    /// The work of a successful request.
    ///
    /// # Errors
    /// The request failed. The work is in the error.
    #[inline]
    pub fn into_work(self) -> Result<W, Failed<W>> {
        match self.ok() {
            Ok(()) => Ok(self.work),
            Err(error) => Err(Failed {
                work: self.work,
                error,
            }),
        }
    }

    /// The work of a successful request, by reference.
    ///
    /// # Errors
    /// The request failed.
    #[inline]
    pub fn work(&self) -> Result<&W, WcError> {
        self.ok().map(|()| &self.work)
    }

    /// The status, and the work, however the request ended.
    #[inline]
    pub fn into_parts(self) -> (WcStatus, W) {
        (self.wc.status(), self.work)
    }
}

impl<'p, W> Deref for Completion<'p, W> {
    type Target = WorkCompletion<'p>;

    #[inline]
    fn deref(&self) -> &WorkCompletion<'p> {
        &self.wc
    }
}

/// The length in bytes of an atomic operation's result.
const ATOMIC_LEN: usize = 8;

impl<W: AsRef<[u8]>> Completion<'_, W> {
    /// The received bytes, at the start of the work: of a message for a receive, and of the peer's
    /// memory for an RDMA read or an atomic operation.
    ///
    /// Empty if the request transferred no bytes: a peer's RDMA write with immediate data completes
    /// a receive, but its bytes are in the [memory](crate::RemoteRegion) addressed by the peer.
    ///
    /// # Errors
    /// The request failed.
    pub fn received(&self) -> Result<&[u8], WcError> {
        let work = self.work()?.as_ref();
        let arrived = match self.opcode() {
            Some(WcOpcode::RECV | WcOpcode::RDMA_READ) => self.byte_len(),
            Some(WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD) => ATOMIC_LEN,
            _ => 0,
        };
        Ok(&work[..arrived.min(work.len())])
    }
}

impl<W> fmt::Display for Failed<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

/// Formats as [`Display`](fmt::Display), so that `unwrap` and `fn main() -> Result` print the
/// failure and not the work.
impl<W> fmt::Debug for Failed<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<W> std::error::Error for Failed<W> {}

impl<W> From<Failed<W>> for WcError {
    fn from(failed: Failed<W>) -> Self {
        failed.error
    }
}

impl<W> From<Failed<W>> for std::io::Error {
    fn from(failed: Failed<W>) -> Self {
        failed.error.into()
    }
}

impl<W> From<Failed<W>> for Error {
    fn from(failed: Failed<W>) -> Self {
        failed.error.into()
    }
}
