//! Panics in threads that work for many objects.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call of a library's thread. A panic ends the call, and not the thread, which works for others too. Returns `None`
/// after a panic, which the panic hook has reported.
///
/// The state that the call has changed must be usable after a panic: locks ignore poisoning, and guards undo incomplete steps.
///
/// # Examples
/// ```
/// use verbs::panics::survive;
///
/// assert_eq!(survive(|| 1), Some(1));
/// assert_eq!(survive(|| panic!("a fault of one object")), None::<()>);
/// ```
pub fn survive<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}
