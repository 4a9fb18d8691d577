//! Restarting of calls interrupted by signals.

use std::{io, ptr};

use libc::{c_int, sigaction, sigset_t};

/// Signals raised by the thread's own actions; their handlers do not affect restarting.
const SYNCHRONOUS: [c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Restarts a call interrupted by a signal, if the kernel would restart its own. The handler run is
/// unknown, so all handlers that can run in this thread must have `SA_RESTART`.
///
/// # Errors
/// As for the call.
pub fn restarting<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        let result = call();
        // Received data is not moved for an error.
        let interrupted = |err: &io::Error| err.kind() == io::ErrorKind::Interrupted;
        if !result.as_ref().err().is_some_and(interrupted) || !all_restart() {
            return result;
        }
    }
}

/// Whether each handler that can run in this thread has `SA_RESTART`.
fn all_restart() -> bool {
    // SAFETY: a signal set is plain data.
    let mut blocked: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing; the last argument is writable during the call.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut blocked) };
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: the set is valid; an unknown signal is an error.
        let is_blocked = unsafe { libc::sigismember(&raw const blocked, signal) } == 1;
        is_blocked || SYNCHRONOUS.contains(&signal) || restarts(signal)
    })
}

/// Whether a signal has no handler, or one with `SA_RESTART`.
fn restarts(signal: c_int) -> bool {
    // SAFETY: the structure is plain data.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing; the last argument is writable during the call.
    let ret = unsafe { sigaction(signal, ptr::null(), &raw mut action) };
    // Signals reserved by the C library cannot be queried.
    let has_none = ret != 0 || [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    has_none || action.sa_flags & libc::SA_RESTART != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn nothing(_: c_int) {}

    fn handle(signal: c_int, flags: c_int) {
        // SAFETY: the structure is plain data.
        let mut action: sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as *const () as usize;
        action.sa_flags = flags;
        // SAFETY: the handler does nothing, and no signal is sent.
        let set = unsafe { sigaction(signal, &raw const action, ptr::null_mut()) };
        assert_eq!(set, 0);
    }

    /// Number of attempts of a call interrupted twice, and whether it succeeds.
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
    fn interrupted_call_restarts_only_with_sa_restart() {
        assert_eq!(interrupted_twice(), (3, true), "no handler");
        handle(libc::SIGUSR1, libc::SA_RESTART);
        assert_eq!(interrupted_twice(), (3, true));
        handle(libc::SIGUSR2, 0);
        assert_eq!(interrupted_twice(), (1, false));
        // SAFETY: a signal set is plain data.
        let mut set: sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid.
        unsafe { libc::sigaddset(&raw mut set, libc::SIGUSR2) };
        // SAFETY: the first set is valid, and the second may be null.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
        assert_eq!(
            interrupted_twice(),
            (3, true),
            "a blocked signal has no effect"
        );
        let other = restarting(|| Err::<(), _>(io::ErrorKind::TimedOut.into()));
        assert_eq!(other.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
