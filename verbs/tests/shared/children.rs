//! Children of `fork`, which inherit the objects of a test.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bound of a child's life, in seconds; afterwards `SIGALRM` ends the child.
const MAX_LIFE: u32 = 20;

/// One of the two returns from `fork`.
pub(crate) struct Fork(libc::pid_t);

impl Fork {
    /// Forks. The child must call [`end`](Self::end), without running other code of the test.
    pub(crate) fn new() -> Self {
        // SAFETY: the child only drops inherited objects, allocates (which glibc allows after a
        // fork), and calls `end`.
        let fork = Self(unsafe { libc::fork() });
        assert!(fork.0 >= 0, "{}", std::io::Error::last_os_error());
        if fork.is_child() {
            // SAFETY: no arguments in memory.
            unsafe { libc::alarm(MAX_LIFE) };
        }
        fork
    }

    pub(crate) fn is_child(&self) -> bool {
        self.0 == 0
    }

    /// In the child, ends the process: with status 0 if `check` holds there, 1 if not, 2 after a
    /// panic. In the parent, returns the child's wait status, which is 0 for status 0.
    pub(crate) fn end(self, check: impl FnOnce() -> bool) -> i32 {
        if self.is_child() {
            let status = match catch_unwind(AssertUnwindSafe(check)) {
                Ok(true) => 0,
                Ok(false) => 1,
                Err(_) => 2,
            };
            // SAFETY: `_exit` ends the child without running any other code of the program.
            unsafe { libc::_exit(status) }
        }
        let mut status = -1;
        // SAFETY: `status` is there to be written.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(waited, self.0);
        status
    }
}

/// Drops `object` in a child, which then ends with the status of `check`. Returns the parent's
/// object, and the child's wait status.
pub(crate) fn dropped_in_a_child<T>(object: T, check: impl FnOnce() -> bool) -> (T, i32) {
    let fork = Fork::new();
    let mut original = Some(object);
    let dropped = if fork.is_child() {
        original.take()
    } else {
        None
    };
    let status = fork.end(|| {
        drop(dropped);
        check()
    });
    (original.expect("only the child drops its copy"), status)
}
