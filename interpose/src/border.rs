//! The border of a C function: signals and the cancellation of the thread wait outside of it.
//!
//! Inside, a thread has locks, and frames of Rust that must not be unwound. So the thread blocks the program's signals and
//! disables its cancellation there: no handler finds a lock of its own thread taken, or jumps out of a call. A sleep inside ends
//! when a signal is pending, and the handler runs outside, as does the cancellation.

use std::{
    cell::Cell,
    io,
    mem::ManuallyDrop,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst},
};

use libc::{c_int, c_long, sigaction, sigset_t};
use verbs::{
    fd::InternalFd,
    signals::{Interrupt, interrupt_by, is_thread_of_library, take_interrupt},
};

use crate::{last_errno, real, set_errno};

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
    fn pthread_getcpuclockid(thread: libc::pthread_t, clock: *mut libc::clockid_t) -> c_int;
}

const CANCEL_DISABLE: c_int = 1;

/// Signals as the kernel has them: bit 0 is signal 1.
type Signals = u64;

/// Bytes of a set of signals in system calls. Assumption: a set of signals in a system call has 64 bits.
const SET: usize = size_of::<Signals>();

const fn bit(signal: c_int) -> Signals {
    1 << (signal - 1)
}

/// The C library's signal for cancellation. Blocked inside, and so only there, because the C library's functions leave it out.
/// Assumption: the C library cancels by signal 32, changes user ids by signal 33, and blocks neither for a program.
const CANCEL: c_int = 32;

/// The C library's signal for `setuid`: every thread of the process makes the call in its handler.
const CHANGE_IDS: c_int = 33;

/// Signals that are not blocked: those raised by the thread's own execution, and the C library's for `setuid`. Assumption: the
/// handler of a change of user ids takes no lock, and returns.
const OPEN: Signals = bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGSYS)
    | bit(libc::SIGTRAP)
    | bit(CHANGE_IDS);

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;

/// Changes the mask of this thread; returns the mask before. By number, since the C library would leave out its own signals.
fn set_mask(how: c_int, signals: Signals) -> Signals {
    let syscall = real!(syscall: Syscall);
    let mut before: Signals = 0;
    let (new, old) = (&raw const signals, &raw mut before);
    // SAFETY: both sets have the size, are read and written during the call only, and belong to this thread.
    unsafe { syscall(libc::SYS_rt_sigprocmask, how, new, old, SET) };
    before
}

fn pending() -> Signals {
    let syscall = real!(syscall: Syscall);
    let mut pending: Signals = 0;
    // SAFETY: the set has the size, and is written during the call only.
    unsafe { syscall(libc::SYS_rt_sigpending, &raw mut pending, SET) };
    pending
}

/// Maximum number of different masks of a program's threads; threads with further ones are not protected.
const MAX_MASKS: usize = 8;

/// A signalfd for the threads with one mask: readable while a signal is pending that is blocked only inside. Assumption: a
/// signalfd is readable for each thread by its own pending signals.
struct Pending {
    /// The mask outside; all ones for none, which no thread has.
    mask: AtomicU64,
    /// -1 before the first call, and after the program has closed the descriptor.
    fd: AtomicI32,
}

static PENDING: [Pending; MAX_MASKS] = [const {
    Pending {
        mask: AtomicU64::new(Signals::MAX),
        fd: AtomicI32::new(-1),
    }
}; MAX_MASKS];

/// The entry of a mask, claimed by the first thread with it.
fn pending_of(mask: Signals) -> Option<&'static Pending> {
    PENDING.iter().find(|entry| {
        let claimed = entry
            .mask
            .compare_exchange(Signals::MAX, mask, SeqCst, SeqCst);
        claimed.is_ok() || claimed == Err(mask)
    })
}

impl Pending {
    /// The descriptor; `None` if too many files are open.
    fn descriptor(&self) -> Option<BorrowedFd<'static>> {
        let mut fd = self.fd.load(SeqCst);
        if fd < 0 {
            let created = make_signal_fd(self.mask.load(SeqCst))?;
            let number = created.as_raw_fd();
            fd = match self.fd.compare_exchange(-1, number, SeqCst, SeqCst) {
                Ok(_) => {
                    // Open until the process ends.
                    let _kept = ManuallyDrop::new(created);
                    number
                }
                Err(other) => {
                    drop(created);
                    other
                }
            };
        }
        // SAFETY: open until the process ends, but for a program that closes it. Assumption: a system call fails for a
        // descriptor that is not open.
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Forgets a descriptor that the program has closed or replaced.
    fn check(&self) {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", self.fd.load(SeqCst)));
        if !link.is_ok_and(|link| link.to_string_lossy().contains("[signalfd]")) {
            self.fd.store(-1, SeqCst);
        }
    }
}

/// Makes a signalfd with the signals blocked inside by a thread with this mask.
fn make_signal_fd(mask: Signals) -> Option<InternalFd> {
    let syscall = real!(syscall: Syscall);
    let signals: Signals = !OPEN & !mask;
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set has the size, and is read during the call only.
    let fd = unsafe { syscall(libc::SYS_signalfd4, -1, &raw const signals, SET, flags) };
    let fd = c_int::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: a new descriptor.
    Some(verbs::fd::raise(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// The changes of a thread by a call. Without a destructor, since handlers may jump over it.
#[derive(Clone, Copy, Debug)]
pub struct Border {
    mask: Signals,
    cancel_state: c_int,
}

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The mask outside.
    static MASK: Cell<Signals> = const { Cell::new(0) };
    /// A handler has run during a sleep with a mask of the program.
    static HAS_HANDLED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a call of the library, or belongs to the library.
pub(crate) fn is_of_library() -> bool {
    IS_INSIDE.get() || is_thread_of_library()
}

/// The signals that are delivered when a call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// A handler runs.
    pub handled: bool,
    /// Calls are restarted after it: each handler that runs has `SA_RESTART`.
    pub restarts: bool,
}

/// Begins a call. Returns `None` within a call of this thread, and if there is no descriptor that ends a sleep: too many files
/// are open, or the program uses too many masks.
///
/// With `is_point`, a pending cancellation of the thread takes effect before.
#[inline]
pub fn enter(is_point: bool) -> Option<Border> {
    if IS_INSIDE.get() {
        return None;
    }
    let mask = set_mask(libc::SIG_BLOCK, !OPEN);
    let Some(interrupt) = pending_of(mask).and_then(Pending::descriptor) else {
        set_mask(libc::SIG_SETMASK, mask);
        return None;
    };
    if is_point {
        // Behind the mask, by which `pthread_cancel` recognizes a thread inside.
        // SAFETY: no frame of this call has a destructor to run.
        unsafe { pthread_testcancel() };
    }
    let mut cancel_state = 0;
    // SAFETY: the state before is written during the call.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancel_state) };
    IS_INSIDE.set(true);
    MASK.set(mask);
    interrupt_by(Some(Interrupt {
        fd: interrupt,
        is_due,
    }));
    Some(Border { mask, cancel_state })
}

/// Ends a call: pending signals are delivered, whose handlers may not return. If an interrupted call is a cancellation point, a
/// cancellation takes effect, too: the call has had no other effect.
#[inline]
pub fn leave(border: Border, is_interrupted: bool, is_point: bool) -> Delivered {
    let error = last_errno();
    interrupt_by(None);
    IS_INSIDE.set(false);
    let delivered = match is_interrupted {
        true => delivered(border),
        false => Delivered::default(),
    };
    // SAFETY: the state of before.
    unsafe { pthread_setcancelstate(border.cancel_state, ptr::null_mut()) };
    set_mask(libc::SIG_SETMASK, border.mask);
    if is_interrupted && is_point {
        // SAFETY: no frame of this call has a destructor to run.
        unsafe { pthread_testcancel() };
    }
    set_errno(error);
    delivered
}

/// Whether a handler would run for a signal, and the flags of its action.
fn handler_flags(signal: c_int) -> Option<c_int> {
    // SAFETY: the structure is plain data.
    let mut action: sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: changes nothing; the last argument is writable during the call.
    let found = unsafe { sigaction(signal, ptr::null(), &raw mut action) };
    let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    (found == 0 && has_handler).then_some(action.sa_flags)
}

/// Numbers of the signals in a set, but for that of cancellation.
fn numbers(signals: Signals) -> impl Iterator<Item = c_int> {
    (1..=64).filter(move |&signal| signals & bit(signal) != 0 && signal != CANCEL)
}

/// Whether a pending signal ends a sleep: one with a handler, or for cancellation. Other signals are delivered at once: they
/// have no effect, or stop or end the process.
fn is_due() -> bool {
    let mask = MASK.get();
    let waiting = pending() & !mask & !OPEN;
    let mut idle = 0;
    for signal in numbers(waiting).filter(|&signal| handler_flags(signal).is_none()) {
        idle |= bit(signal);
    }
    if idle != 0 {
        set_mask(libc::SIG_UNBLOCK, idle);
        set_mask(libc::SIG_BLOCK, idle);
    }
    if waiting == 0
        && let Some(entry) = pending_of(mask)
    {
        entry.check();
        let interrupt = entry.descriptor().map(|fd| Interrupt { fd, is_due });
        interrupt_by(interrupt);
    }
    waiting & !idle != 0
}

/// The effect of the signals that are pending and not blocked outside.
fn delivered(border: Border) -> Delivered {
    let has_handled = HAS_HANDLED.take();
    let mut delivered = Delivered {
        handled: has_handled,
        restarts: !has_handled,
    };
    let waiting = pending() & !border.mask & !OPEN;
    for flags in numbers(waiting).filter_map(handler_flags) {
        delivered.handled = true;
        delivered.restarts &= flags & libc::SA_RESTART != 0;
    }
    delivered
}

/// Calls functions that are cancellation points, without being one.
pub fn uncancelled<T>(call: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: the state before is written during the call.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
    let result = call();
    // SAFETY: the state of before.
    unsafe { pthread_setcancelstate(before, ptr::null_mut()) };
    result
}

/// A mask of the program for a sleep, with the signal for cancellation, and the descriptor that ends the sleep in its place.
pub fn cancellable(mut mask: sigset_t) -> (sigset_t, Option<BorrowedFd<'static>>) {
    let signals = (&raw mut mask).cast::<Signals>();
    // SAFETY: within the set. Assumption: the kernel's signals come first in a signal set.
    unsafe { *signals |= bit(CANCEL) };
    let pending = pending_of(!bit(CANCEL) & !OPEN).and_then(Pending::descriptor);
    (mask, pending)
}

/// Sleeps with a mask of the program, so that handlers run: calls of a handler are calls of their own.
pub fn outside<T>(sleep: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let was_inside = IS_INSIDE.replace(false);
    let (interrupt, mask) = (take_interrupt(), MASK.get());
    let slept = sleep();
    interrupt_by(interrupt);
    MASK.set(mask);
    IS_INSIDE.set(was_inside);
    let is_interrupted = |err: &io::Error| err.kind() == io::ErrorKind::Interrupted;
    HAS_HANDLED.set(slept.as_ref().err().is_some_and(is_interrupted));
    slept
}

/// A value of C that is negative after a failure.
pub trait Returned: Copy {
    /// Whether the call has failed.
    fn is_failed(self) -> bool;
}

macro_rules! returned {
    ($($type:ty)*) => {$(
        impl Returned for $type {
            fn is_failed(self) -> bool {
                self < 0
            }
        }
    )*};
}

returned! { c_int isize i64 }

/// Runs a call inside the border, and repeats it after a signal without a handler; with `restarts`, after handlers with
/// `SA_RESTART`, too. `None` is returned at once. With `is_point`, the call is a cancellation point.
#[inline]
pub fn cross<R: Returned>(
    is_point: bool,
    restarts: bool,
    mut call: impl FnMut() -> Option<R>,
) -> Option<R> {
    loop {
        let Some(border) = enter(is_point) else {
            return call();
        };
        let result = call();
        let is_interrupted = result.is_some_and(Returned::is_failed) && last_errno() == libc::EINTR;
        let delivered = leave(border, is_interrupted, is_point);
        if !is_interrupted || delivered.handled && !(restarts && delivered.restarts) {
            return result;
        }
    }
}

/// `pthread_cancel(3)`: also ends a sleep of the thread inside a call.
///
/// # Safety
/// As for the libc function.
pub unsafe fn cancel(thread: libc::pthread_t) -> c_int {
    let real = real!(pthread_cancel: unsafe extern "C-unwind" fn(libc::pthread_t) -> c_int);
    let mut clock = 0;
    // SAFETY: the thread exists, as the caller promises.
    let found = unsafe { pthread_getcpuclockid(thread, &raw mut clock) };
    // SAFETY: as the caller promises.
    let result = unsafe { real(thread) };
    if result == 0 && found == 0 {
        let id = thread_of(clock);
        if is_inside(id) {
            let syscall = real!(syscall: Syscall);
            let process = std::process::id();
            // SAFETY: numbers only. Assumption: the handler of a cancellation ends no thread that has disabled its
            // cancellation, or defers it.
            unsafe { syscall(libc::SYS_tgkill, process, id, CANCEL) };
        }
    }
    result
}

/// The thread of a clock of its processor time. Assumption: the id of a thread's clock has the thread's id above three bits.
const fn thread_of(clock: libc::clockid_t) -> c_int {
    !(clock >> 3)
}

/// Whether a thread is inside a call: it has blocked the signal for cancellation. Assumption: the status of a thread in
/// `/proc` names the signals that it blocks.
fn is_inside(id: c_int) -> bool {
    let status = std::fs::read_to_string(format!("/proc/self/task/{id}/status"));
    let status = status.unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|set| Signals::from_str_radix(set.trim(), 16).ok());
    blocked.is_some_and(|blocked| blocked & bit(CANCEL) != 0)
}

/// Exports `pthread_cancel`.
#[macro_export]
macro_rules! cancellation {
    () => {
        /// # Safety
        /// As for the libc function.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn pthread_cancel(
            thread: $crate::libc::pthread_t,
        ) -> $crate::libc::c_int {
            // SAFETY: guaranteed by the caller.
            unsafe { $crate::border::cancel(thread) }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::thread::JoinHandleExt,
        sync::mpsc,
        thread::{self, JoinHandle},
    };

    use super::*;

    const KILL_AND_STOP: Signals = bit(libc::SIGKILL) | bit(libc::SIGSTOP);

    /// Starts a thread with a mask of its own. Returns its id, the thread, and a channel that ends it.
    fn thread_with(mask: Signals) -> (c_int, JoinHandle<Signals>, mpsc::Sender<()>) {
        let (ids, id) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            set_mask(libc::SIG_SETMASK, mask);
            // SAFETY: no preconditions.
            ids.send(unsafe { libc::gettid() }).unwrap();
            ended.recv().unwrap();
            pending()
        });
        (id.recv().unwrap(), thread, end)
    }

    #[test]
    fn cpu_clock_of_a_thread_names_the_thread() {
        let (id, thread, end) = thread_with(0);
        let mut clock = 0;
        let named = thread.as_pthread_t();
        // SAFETY: the thread exists, and is joined below.
        assert_eq!(unsafe { pthread_getcpuclockid(named, &raw mut clock) }, 0);
        assert_eq!(thread_of(clock), id);
        end.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn thread_inside_blocks_a_signal_that_no_program_can_block() {
        // As a program blocks all signals that it can.
        let of_program = thread::spawn(|| {
            // SAFETY: a set is plain data.
            let mut all: sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: the set is writable.
            unsafe { libc::sigfillset(&raw mut all) };
            // SAFETY: a valid set.
            let set = unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut())
            };
            assert_eq!(set, 0);
            // SAFETY: no preconditions.
            let inside = is_inside(unsafe { libc::gettid() });
            (set_mask(libc::SIG_BLOCK, 0), inside)
        });
        let (blocked, inside) = of_program.join().unwrap();
        assert_eq!(blocked, !(KILL_AND_STOP | bit(CANCEL) | bit(CHANGE_IDS)));
        assert!(!inside);
        for (mask, inside) in [(!OPEN, true), (0, false), (bit(CANCEL), true)] {
            let (id, thread, end) = thread_with(mask);
            assert_eq!(is_inside(id), inside, "{mask:x}");
            end.send(()).unwrap();
            thread.join().unwrap();
        }
    }

    unsafe extern "C" {
        fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    }

    const CANCEL_ASYNCHRONOUS: c_int = 1;

    #[test]
    fn cancellation_of_a_thread_that_blocks_all_signals_is_signal_32() {
        let (ready, is_ready) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let thread = thread::spawn(move || {
            set_mask(libc::SIG_SETMASK, !OPEN);
            // glibc sends a signal for this type in any release. It stays pending.
            // SAFETY: the signal is blocked.
            unsafe { pthread_setcanceltype(CANCEL_ASYNCHRONOUS, ptr::null_mut()) };
            ready.send(()).unwrap();
            ended.recv().unwrap();
            pending()
        });
        is_ready.recv().unwrap();
        // SAFETY: the thread exists, makes no call that is a cancellation point, and is joined below.
        assert_eq!(unsafe { libc::pthread_cancel(thread.as_pthread_t()) }, 0);
        end.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), bit(CANCEL));
    }
}
