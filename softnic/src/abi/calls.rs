//! Calls in progress on an object, for the check of overlapping use.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::fabric::Port;

/// Number of calls in progress on an object of a fabric with checks.
#[derive(Debug, Default)]
pub(super) struct Calls(AtomicUsize);

/// A call in progress.
pub(super) struct InCall<'a>(Option<&'a Calls>);

impl Calls {
    /// Counts a call until the result is dropped; without checks, does nothing. The second result is the number of other calls.
    pub(super) fn enter(&self, port: &Port) -> (InCall<'_>, usize) {
        if port.checker().is_none() {
            return (InCall(None), 0);
        }
        let others = self.0.fetch_add(1, Ordering::AcqRel);
        (InCall(Some(self)), others)
    }

    /// Number of calls in progress.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        if let Some(Calls(count)) = self.0 {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
