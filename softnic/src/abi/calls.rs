//! Calls in progress on an object, for the check of overlapping use.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{check::Used, fabric::Port};

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

    /// Reports the destruction of the object during a call, or during a sequence of calls, which `sequence` names. Returns whether
    /// there is one; without checks, false.
    pub(super) fn report_destruction(
        &self,
        port: &Port,
        used: Used,
        sequence: Option<&'static str>,
    ) -> bool {
        let Some(checker) = port.checker() else {
            return false;
        };
        let is_called = self.0.load(Ordering::Acquire) > 0;
        let during = sequence.or(is_called.then_some("during a call of another thread"));
        if let Some(during) = during {
            checker.overlapping(used, &format!("is destroyed {during}"));
        }
        during.is_some()
    }
}

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        if let Some(Calls(count)) = self.0 {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
