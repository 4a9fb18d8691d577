//! Handles of a value: the last one takes the value back.
//!
//! The parent module provides `count`: the tests compile this file a second time, over a count under
//! loom.

use std::ops::Deref;

use super::count::Arc;

/// A handle of a value that no longer changes.
pub(super) struct Frozen<T>(Arc<T>);

impl<T> Frozen<T> {
    /// The first handle.
    pub(super) fn new(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// Gives this handle up. The result is the value for the last handle, and `None` for the others:
    /// of handles given up at the same time, exactly one gets the value.
    pub(super) fn thaw(self) -> Option<T> {
        Arc::into_inner(self.0)
    }
}

impl<T> Clone for Frozen<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Frozen<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
