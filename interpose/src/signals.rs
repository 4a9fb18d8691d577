//! Calls that a signal interrupts.

use std::{io, ptr};

use libc::{c_int, sigaction, sigset_t};

/// A thread raises these by what it does: their handlers say nothing of calls.
const OWN: [c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Makes a call again when a signal has interrupted it, if the kernel would go on with its own: whose
/// handler has run is not known, so all that can run in this thread have to be installed with `SA_RESTART`.
///
/// # Errors
/// Those of the call.
pub fn restarting<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        let result = call();
        // What has come is not moved for that.
        let interrupted = |err: &io::Error| err.kind() == io::ErrorKind::Interrupted;
        if !result.as_ref().err().is_some_and(interrupted) || !all_restart() {
            return result;
        }
    }
}

/// Whether each handler that can run in this thread is one after which calls go on.
fn all_restart() -> bool {
    // SAFETY: sets of signals are plain data.
    let mut blocked: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; the last is ours, and written to until the call returns.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut blocked) };
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: it is ours, and there may be such a signal; if not, the call says so.
        let is_blocked = unsafe { libc::sigismember(&raw const blocked, signal) } == 1;
        is_blocked || OWN.contains(&signal) || restarts(signal)
    })
}

/// Whether a signal has no handler, or one after which calls go on.
fn restarts(signal: c_int) -> bool {
    // SAFETY: it is plain data.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; the last is ours, and written to until the call returns.
    let asked = unsafe { sigaction(signal, ptr::null(), &raw mut action) };
    // Those that the C library keeps to itself cannot be asked for.
    let has_none = asked != 0 || [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    has_none || action.sa_flags & libc::SA_RESTART != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: c_int) {}

    fn handle(signal: c_int, flags: c_int) {
        // SAFETY: it is plain data.
        let mut action: sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = flags;
        // SAFETY: the handler does nothing, and no signal comes.
        let set = unsafe { sigaction(signal, &raw const action, ptr::null_mut()) };
        assert_eq!(set, 0);
    }

    /// How often a call is made that is interrupted twice, and how it ends.
    fn interrupted_twice() -> (u32, bool) {
        let mut calls = 0;
        let ended = restarting(|| {
            calls += 1;
            if calls < 3 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
        (calls, ended.is_ok())
    }

    #[test]
    fn calls_go_on_unless_a_handler_says_otherwise() {
        assert_eq!(interrupted_twice(), (3, true), "no handler");
        handle(libc::SIGUSR1, libc::SA_RESTART);
        assert_eq!(interrupted_twice(), (3, true));
        handle(libc::SIGUSR2, 0);
        assert_eq!(interrupted_twice(), (1, false));
        // SAFETY: sets of signals are plain data.
        let mut set: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: it is ours.
        unsafe { libc::sigaddset(&raw mut set, libc::SIGUSR2) };
        // SAFETY: the first is ours, and the second may be null.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
        assert_eq!(interrupted_twice(), (3, true), "it cannot have run here");
        let other = restarting(|| Err::<(), _>(io::ErrorKind::TimedOut.into()));
        assert_eq!(other.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
