//! Threads started by libraries, with all signals blocked for the program, and the end of a sleep by a signal that waits.

use std::{
    cell::Cell,
    io,
    os::fd::BorrowedFd,
    ptr,
    thread::{Builder, JoinHandle},
};

use libc::sigset_t;

/// Signals raised by a thread's own execution: blocking them is useless.
const OWN: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Blocks all signals in this thread, until dropped.
struct Blocked(sigset_t);

impl Blocked {
    fn new() -> Self {
        // SAFETY: sets of signals are plain data.
        let mut all: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `all` is ours, and written only before the return.
        unsafe { libc::sigfillset(&raw mut all) };
        for signal in OWN {
            // SAFETY: as before, and there are such signals.
            unsafe { libc::sigdelset(&raw mut all, signal) };
        }
        // SAFETY: sets of signals are plain data.
        let mut before: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both are ours; the first is read and the second written until the call returns. Only
        // this thread is concerned.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
        Self(before)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the first is ours, and read until the call returns; the second may be null.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Starts a named thread with all signals blocked, so that a program can take its signals by
/// `sigwait` or in a chosen thread, although a library has started threads before.
/// Signals raised by the thread's own execution, such as `SIGSEGV`, are not blocked.
///
/// # Errors
/// As for [`Builder::spawn`].
///
/// # Examples
/// ```
/// let thread = verbs::signals::spawn_without_signals("quiet", || println!("no signals here"))?;
/// thread.join().unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # References
/// [pthread_sigmask(3)](https://man7.org/linux/man-pages/man3/pthread_sigmask.3.html)
pub fn spawn_without_signals<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A new thread inherits the mask.
    let _blocked = Blocked::new();
    Builder::new().name(name.to_owned()).spawn(|| {
        IS_OF_LIBRARY.set(true);
        run()
    })
}

/// Whether the thread was started by [`spawn_without_signals`].
pub fn is_thread_of_library() -> bool {
    IS_OF_LIBRARY.get()
}

/// The end of a sleep by a signal that waits: see [`interrupt_by`].
#[derive(Clone, Copy, Debug)]
pub struct Interrupt {
    /// Readable while a signal is pending.
    pub fd: BorrowedFd<'static>,
    /// Whether to end a sleep, called when `fd` is readable. If not, the thread sleeps again: `fd` is no longer readable then.
    pub is_due: fn() -> bool,
}

thread_local! {
    static IS_OF_LIBRARY: Cell<bool> = const { Cell::new(false) };
    static INTERRUPT: Cell<Option<Interrupt>> = const { Cell::new(None) };
}

/// Has blocked calls of this thread end with `Interrupted` when a descriptor is readable, until called with `None`.
///
/// For a library with functions of C that blocks signals during a call, so that no handler runs inside: the descriptor is a
/// `signalfd(2)` with these signals, and the handlers run when the call has returned.
///
/// ```
/// use std::os::fd::AsFd;
/// use verbs::{signals::{Interrupt, interrupt_by, interrupting}, waiting::EventFd};
///
/// let event: &'static EventFd = Box::leak(Box::new(EventFd::new()?));
/// interrupt_by(Some(Interrupt { fd: event.as_fd(), is_due: || true }));
/// assert!(interrupting().is_some());
/// interrupt_by(None);
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [signalfd(2)](https://man7.org/linux/man-pages/man2/signalfd.2.html)
pub fn interrupt_by(interrupt: Option<Interrupt>) {
    INTERRUPT.set(interrupt);
}

/// Takes the argument of [`interrupt_by`], for a part of the call where handlers run.
pub fn take_interrupt() -> Option<Interrupt> {
    INTERRUPT.take()
}

/// The descriptor given to [`interrupt_by`], for a sleep of another kind.
pub fn interrupting() -> Option<BorrowedFd<'static>> {
    INTERRUPT.get().map(|interrupt| interrupt.fd)
}

/// Whether a sleep has to end, once the descriptor is readable.
pub fn is_interrupted() -> bool {
    INTERRUPT
        .get()
        .is_some_and(|interrupt| (interrupt.is_due)())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The blocked signals of this thread, one bit for each.
    fn blocked() -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }

    fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn library_thread_blocks_all_other_signals() {
        let before = blocked();
        let theirs = spawn_without_signals("quiet", blocked)
            .unwrap()
            .join()
            .unwrap();
        for signal in [
            libc::SIGTERM,
            libc::SIGALRM,
            libc::SIGCHLD,
            libc::SIGRTMIN(),
        ] {
            assert_ne!(theirs & bit(signal), 0, "{signal}");
        }
        for signal in OWN {
            assert_eq!(theirs & bit(signal), before & bit(signal), "{signal}");
        }
        assert_eq!(blocked(), before, "here, nothing has changed");
    }
}
