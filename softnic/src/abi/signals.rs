//! Threads of this crate, with all signals blocked for the program.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    process, ptr, thread,
};

use libc::sigset_t;

use crate::check::enter_device_thread;

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
    /// `None` under Miri, which has no signals.
    fn new() -> Option<Self> {
        if cfg!(miri) {
            return None;
        }
        // SAFETY: sets of signals are integers.
        let mut all: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a local variable, written before the return.
        unsafe { libc::sigfillset(&raw mut all) };
        for signal in OWN {
            // SAFETY: as above, and the signals exist.
            unsafe { libc::sigdelset(&raw mut all, signal) };
        }
        // SAFETY: sets of signals are integers.
        let mut before: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: local variables; only the mask of this thread changes.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
        Some(Self(before))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is read before the return; the second one may be null.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Ends the process if the thread panics: the program would wait for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}

/// Makes a call of a thread. A panic, which the panic hook has reported, ends the call alone: returns `None`.
pub(crate) fn survive<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// Starts a named thread, whose panics outside of [`survive`] end the process.
pub(crate) fn spawn_without_signals(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    // A new thread inherits the mask.
    let _blocked = Blocked::new();
    let thread = thread::Builder::new().name(name.to_owned());
    let started = thread.spawn(move || {
        let _abort = AbortOnPanic;
        enter_device_thread();
        run();
    });
    started.map(drop)
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc};

    use super::*;

    /// The blocked signals of this thread, one bit for each.
    fn blocked() -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
    }

    #[test]
    fn threads_of_the_crate_block_all_other_signals() {
        let before = blocked();
        let (to, from) = mpsc::channel();
        spawn_without_signals("quiet", move || to.send(blocked()).unwrap()).unwrap();
        let theirs = from.recv().unwrap();
        let bit = |signal: libc::c_int| 1_u64 << (signal - 1);
        for signal in [libc::SIGTERM, libc::SIGALRM, libc::SIGRTMIN()] {
            assert_ne!(theirs & bit(signal), 0, "{signal}");
        }
        for signal in OWN {
            assert_eq!(theirs & bit(signal), before & bit(signal), "{signal}");
        }
        assert_eq!(
            blocked(),
            before,
            "the mask of the starting thread is unchanged"
        );
    }
}
