//! File descriptors of event channels: waiting without an async runtime.
//!
//! The descriptors are in
//! [`CompletionQueue::notify_fd`](crate::CompletionQueue::notify_fd),
//! [`CompletionChannel`](crate::cq::CompletionChannel) and
//! [`AsyncEvents`](crate::event::AsyncEvents). An event loop registers a descriptor, and calls the
//! object once the descriptor is readable.

use std::{
    ffi::c_int,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    error::{Error, Result, cvt_neg},
    signals::{interrupting, is_interrupted},
};

/// A descriptor with the readiness of another one, and no access to the other: an `epoll(7)`
/// descriptor with the other one as a member.
///
/// Safe code can duplicate any descriptor handed out, read from it, and make it blocking. With the
/// descriptor of an event channel, reading would take events away from `libibverbs`, and blocking
/// might block a thread indefinitely. Reading an `epoll` descriptor is an error, its flags have no
/// effect, and its members are inaccessible. Event loops register a `NotifyFd` like the other
/// descriptor, level-triggered or edge-triggered; each event of the other one is an edge here.
///
/// ```
/// use std::{io::{Read, Write}, os::{fd::AsFd, unix::net::UnixStream}, time::Duration};
///
/// use verbs::fd::{NotifyFd, wait_readable};
///
/// let (ours, mut theirs) = UnixStream::pair()?;
/// let notify = NotifyFd::of(ours.as_fd())?;
/// assert!(!wait_readable("poll", notify.as_fd(), Some(Duration::ZERO))?);
/// theirs.write_all(b"!")?;
/// assert!(wait_readable("poll", notify.as_fd(), None)?);
/// let mut duplicate = std::fs::File::from(notify.as_fd().try_clone_to_owned()?);
/// assert!(duplicate.read(&mut [0]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NotifyFd(InternalFd);

impl NotifyFd {
    /// `epoll_create1(2)`, `epoll_ctl(2)`—Creates a descriptor that is readable while `fd` is, until
    /// `fd` is closed. Enters the kernel.
    ///
    /// # Errors
    /// - `EMFILE`, `ENFILE`: too many open files.
    /// - `ENOMEM`, `ENOSPC`: out of memory, or too many members of all `epoll` descriptors.
    /// - `EPERM`: `fd` is a file or a directory, without support for polling.
    #[doc(alias = "epoll_create1")]
    #[doc(alias = "epoll_ctl")]
    pub fn of(fd: BorrowedFd<'_>) -> Result<Self> {
        // SAFETY: takes and returns numbers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let epoll = cvt_neg("epoll_create1", epoll)?;
        // SAFETY: the descriptor is fresh, and belongs to no other object.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let notify = Self(raised(epoll));
        notify.add(fd)?;
        Ok(notify)
    }

    /// `epoll_ctl(2)`—Adds another member: the descriptor is readable while any member is. Enters the kernel.
    ///
    /// # Errors
    /// As for [`of`](Self::of), and `EEXIST`: `fd` is a member.
    #[doc(alias = "epoll_ctl")]
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        // Miri knows edges only.
        Members(self.as_fd()).add(fd, cfg!(miri), 0)
    }
}

/// The members of an `epoll(7)` instance.
pub(crate) struct Members<'a>(pub(crate) BorrowedFd<'a>);

impl Members<'_> {
    /// `epoll_ctl(2)`—Reports when `fd` is readable, with `data`.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, edge_triggered: bool, data: u64) -> Result<()> {
        let edges = if edge_triggered { libc::EPOLLET } else { 0 };
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | edges).cast_unsigned(),
            u64: data,
        };
        let (epoll, add) = (self.0.as_raw_fd(), libc::EPOLL_CTL_ADD);
        // SAFETY: both descriptors are open, and C reads `event` only before the return.
        let ret = unsafe { libc::epoll_ctl(epoll, add, fd.as_raw_fd(), &raw mut event) };
        cvt_neg("epoll_ctl", ret).map(drop)
    }

    /// `epoll_ctl(2)`—Removes `fd`.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let (epoll, remove) = (self.0.as_raw_fd(), libc::EPOLL_CTL_DEL);
        // SAFETY: both descriptors are open, and this operation reads no event.
        let ret = unsafe { libc::epoll_ctl(epoll, remove, fd.as_raw_fd(), ptr::null_mut()) };
        cvt_neg("epoll_ctl", ret).map(drop)
    }
}

impl AsFd for NotifyFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lowest number of a raised descriptor, or half of the limit of open files if that is less: `select(2)` has no higher numbers.
const RAISED_BASE: libc::rlim_t = 1024;

/// Lowest number above those of the standard streams.
const ABOVE_STANDARD: c_int = 3;

/// Whether the descriptors of these crates have high numbers.
static RAISES: AtomicBool = AtomicBool::new(false);

/// Number of descriptors of which [`is_internal`] knows.
const KNOWN: usize = 1 << 16;

/// Numbers of descriptors, a bit each.
struct Numbers([AtomicU64; KNOWN / 64]);

impl Numbers {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; KNOWN / 64])
    }

    fn word(&self, fd: RawFd) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    fn has(&self, fd: RawFd) -> bool {
        self.word(fd)
            .is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn set(&self, fd: RawFd, is_internal: bool) {
        match self.word(fd) {
            Some((word, bit)) if is_internal => word.fetch_or(bit, Ordering::Relaxed),
            Some((word, bit)) => word.fetch_and(!bit, Ordering::Relaxed),
            None => 0,
        };
    }

    fn clear(&self) {
        self.0
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Descriptors of these crates with high numbers, and descriptors made for them by libibverbs and librdmacm.
static RAISED: Numbers = Numbers::new();
static OF_C: Numbers = Numbers::new();

/// A descriptor of these crates, which a program that closes numbers that it does not own must leave open:
/// [`is_internal`] until its drop, if [raised](raise).
#[derive(Debug)]
pub struct InternalFd(OwnedFd);

impl AsFd for InternalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for InternalFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for InternalFd {
    fn drop(&mut self) {
        // Before the close, after which the program may have the number.
        RAISED.set(self.0.as_raw_fd(), false);
    }
}

/// Whether a descriptor is one of these crates, [raised](raise).
pub fn is_internal(fd: RawFd) -> bool {
    RAISED.has(fd)
}

/// Whether a descriptor of this number has been made by libibverbs or librdmacm for these crates, after [`raise_all`]. The program
/// may have it after the end of that descriptor.
pub fn was_made_by_c(fd: RawFd) -> bool {
    OF_C.has(fd)
}

/// Records a descriptor made by libibverbs or librdmacm, or forgets it before its end.
pub fn set_made_by_c(fd: RawFd, is_made: bool) {
    if raises() {
        OF_C.set(fd, is_made);
    }
}

/// Forgets all descriptors in a forked child, for which they are as any other.
pub fn forget_all() {
    RAISED.clear();
    OF_C.clear();
}

/// Has the descriptors that these crates make from now on get high numbers, for a library in a program that counts on low ones: by
/// `select(2)`, or by the numbers of its standard streams. A descriptor made by libibverbs or librdmacm keeps its number.
pub fn raise_all() {
    RAISES.store(true, Ordering::Relaxed);
}

/// Whether [`raise_all`] was called.
pub fn raises() -> bool {
    RAISES.load(Ordering::Relaxed)
}

/// `fcntl(fd, F_DUPFD_CLOEXEC)`—Moves a descriptor to a high number, from 1024 or half of the limit of open files on. Without a
/// free one, the descriptor stays where it is, but for numbers of the standard streams.
#[doc(alias = "F_DUPFD_CLOEXEC")]
pub fn raise(fd: OwnedFd) -> InternalFd {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the limit is written during the call.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let base = c_int::try_from((limit.rlim_cur / 2).min(RAISED_BASE)).unwrap_or(0);
    let mut raised = None;
    for base in [base, ABOVE_STANDARD] {
        // SAFETY: takes and returns numbers.
        let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, base) };
        if high >= 0 {
            // SAFETY: the descriptor is fresh, and belongs to no other object.
            raised = Some(unsafe { OwnedFd::from_raw_fd(high) });
        }
        if raised.is_some() || fd.as_raw_fd() >= ABOVE_STANDARD {
            break;
        }
    }
    let fd = raised.unwrap_or(fd);
    RAISED.set(fd.as_raw_fd(), true);
    InternalFd(fd)
}

/// As [`raise`], after [`raise_all`].
pub fn raised(fd: OwnedFd) -> InternalFd {
    match raises() {
        true => raise(fd),
        false => InternalFd(fd),
    }
}

/// Whether a number is open.
fn is_open(fd: c_int) -> bool {
    // SAFETY: takes and returns numbers.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Makes a call of C that creates descriptors. After [`raise_all`], they have none of the numbers of the standard streams, which a
/// program may have closed, and opens again by number.
pub fn above_standard<T>(call: impl FnOnce() -> T) -> T {
    /// Taken during a call: another thread's numbers would be free again.
    static TURN: Mutex<()> = Mutex::new(());
    if !raises() {
        return call();
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kept = Vec::new();
    if !(0..ABOVE_STANDARD).all(is_open) {
        loop {
            let flags = libc::O_PATH | libc::O_CLOEXEC;
            // SAFETY: the path is terminated.
            let fd = unsafe { libc::open(c"/".as_ptr(), flags) };
            if fd < 0 {
                break;
            }
            // SAFETY: the descriptor is fresh, and belongs to no other object.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            if fd.as_raw_fd() >= ABOVE_STANDARD {
                break;
            }
            kept.push(fd);
        }
    }
    let result = call();
    drop(kept);
    result
}

/// `poll(2)`—Blocks until `fd` is readable. Returns false if `timeout` elapses first.
///
/// A signal neither ends nor prolongs the wait.
///
/// # Errors
/// - `ENOMEM`: out of memory, the only possible failure.
#[doc(alias = "poll")]
pub fn wait_readable(
    call: &'static str,
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> Result<bool> {
    wait_any_readable(call, [fd], timeout).map(|[readable]| readable)
}

/// `poll(2)`—As [`wait_readable`], but a signal ends the wait.
///
/// # Errors
/// - `EINTR`: a signal handler has run, or [has to](crate::signals::interrupt_by).
/// - `ENOMEM`: out of memory.
#[doc(alias = "poll")]
pub fn wait_interruptible(
    call: &'static str,
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> Result<bool> {
    // A timeout beyond the clock's range counts as none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match poll_some(call, [Some(fd), interrupting()], remaining)? {
            [true, _] => return Ok(true),
            [_, true] if is_interrupted() => return Err(Error::from_errno(call, libc::EINTR)),
            _ if deadline.is_some_and(|deadline| Instant::now() >= deadline) => return Ok(false),
            _ => {}
        }
    }
}

/// `poll(2)`—Blocks until one of `fds` is readable, and returns which are: none if `timeout` elapses first.
///
/// # Errors
/// As for [`wait_readable`].
#[doc(alias = "poll")]
pub fn wait_any_readable<const N: usize>(
    call: &'static str,
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N]> {
    // A timeout beyond the clock's range counts as none.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match poll_once(call, fds, remaining) {
            Ok(None) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Ok([false; N]);
            }
            Ok(None) => {}
            Ok(Some(readable)) => return Ok(readable),
            Err(err) if err.kind() == std::io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
}

/// `poll(2)`—Blocks until one of `fds` is readable, or `timeout` elapses. Returns which are
/// readable, or `None` after the timeout.
///
/// # Errors
/// - `EINTR`: a signal handler has run.
/// - `ENOMEM`: out of memory.
pub(crate) fn poll_once<const N: usize>(
    call: &'static str,
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<Option<[bool; N]>> {
    let ready = poll_some(call, fds.map(Some), timeout)?;
    Ok(ready.contains(&true).then_some(ready))
}

/// `poll(2)`—As [`poll_once`], without the absent ones of `fds`.
///
/// # Errors
/// As for [`poll_once`].
pub(crate) fn poll_some<const N: usize>(
    call: &'static str,
    fds: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> Result<[bool; N]> {
    let absent = libc::pollfd {
        fd: -1,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut pollfds = [absent; N];
    let mut count = 0;
    for fd in fds.iter().flatten() {
        pollfds[count].fd = fd.as_raw_fd();
        count += 1;
    }
    let millis = timeout.map_or(-1, |remaining| {
        // Rounded up, so that the wait does not spin during its last millisecond.
        i32::try_from(remaining.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    // SAFETY: `pollfds` has `count` valid entries, written by the kernel only during the call; the
    // descriptors are open for as long as they are borrowed.
    let polled = unsafe { libc::poll(pollfds.as_mut_ptr(), count as libc::nfds_t, millis) };
    cvt_neg(call, polled)?;
    let mut polled = pollfds.iter().map(|polled| polled.revents != 0);
    Ok(fds.map(|fd| fd.is_some() && polled.next() == Some(true)))
}

/// `fcntl(2)`—Sets whether reads of `fd` return at once without data, instead of blocking.
///
/// # Errors
/// None for an open descriptor.
#[doc(alias = "fcntl")]
pub fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> Result<()> {
    if cfg!(miri) {
        // Miri lacks the flags of an eventfd, which is the channel of softnic. Reads there find an event.
        return Ok(());
    }
    // SAFETY: the descriptor is open; this call takes and returns only numbers.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    let flags = cvt_neg("fcntl(F_GETFL)", flags)?;
    let flags = if nonblocking {
        flags | libc::O_NONBLOCK
    } else {
        flags & !libc::O_NONBLOCK
    };
    // SAFETY: see above.
    let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) };
    cvt_neg("fcntl(F_SETFL)", ret).map(drop)
}

/// Calls `take` until a value is returned, waiting for `fd` in between, for at most `timeout`
/// (`None`: without limit); the result is `None` if the time has elapsed.
///
/// # Errors
/// The errors of `take` and of [`wait_readable`].
pub fn wait_for<T>(
    call: &'static str,
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
    mut take: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        if let Some(found) = take()? {
            return Ok(Some(found));
        }
        let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if !wait_readable(call, fd, remaining)? {
            return take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn wait_readable_returns_on_timeout_or_data() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let short = Some(Duration::from_millis(20));
        let start = Instant::now();
        assert!(!wait_readable("poll", reader.as_fd(), short).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(20));
        writer.write_all(b"x").unwrap();
        assert!(wait_readable("poll", reader.as_fd(), None).unwrap());
        assert!(wait_readable("poll", reader.as_fd(), Some(Duration::MAX)).unwrap());
    }

    #[test]
    fn wait_any_readable_returns_for_each_descriptor() {
        let (idle, _idle_writer) = UnixStream::pair().unwrap();
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let short = Some(Duration::from_millis(20));
        let fds = [idle.as_fd(), reader.as_fd()];
        assert_eq!(wait_any_readable("poll", fds, short).unwrap(), [false; 2]);
        writer.write_all(b"x").unwrap();
        let readable = wait_any_readable("poll", fds, Some(Duration::MAX)).unwrap();
        assert_eq!(readable, [false, true]);
    }

    #[test]
    fn notify_fd_is_readable_while_its_member_is() {
        let (mut reader, mut writer) = UnixStream::pair().unwrap();
        let notify = NotifyFd::of(reader.as_fd()).unwrap();
        let readable = || wait_readable("poll", notify.as_fd(), Some(Duration::ZERO)).unwrap();
        for _ in 0..2 {
            assert!(!readable());
            writer.write_all(b"x").unwrap();
            assert!(readable() && readable());
            std::io::Read::read_exact(&mut reader, &mut [0]).unwrap();
        }
        drop(reader);
        assert!(!readable(), "the member is closed");
    }

    #[test]
    fn notify_fd_reports_an_edge_for_each_event() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        let notify = NotifyFd::of(reader.as_fd()).unwrap();
        // SAFETY: takes and returns numbers.
        let outer = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        // SAFETY: fresh, and of no other object.
        let outer = unsafe { OwnedFd::from_raw_fd(outer) };
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(),
            u64: 0,
        };
        let (epoll, member) = (outer.as_raw_fd(), notify.as_fd().as_raw_fd());
        // SAFETY: both are open, and C reads the event only before the return.
        let ret = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, member, &raw mut event) };
        assert_eq!(ret, 0);
        let mut edges = || {
            // SAFETY: there is room for one event.
            unsafe { libc::epoll_wait(epoll, &raw mut event, 1, 0) }
        };
        assert_eq!(edges(), 0);
        for _ in 0..3 {
            // The earlier bytes are not read.
            writer.write_all(b"x").unwrap();
            assert_eq!((edges(), edges()), (1, 0));
        }
    }

    #[test]
    fn wait_continues_after_another_reader_took_the_data() {
        let (reader, mut writer) = UnixStream::pair().unwrap();
        writer.write_all(b"x").unwrap();
        let mut takes = 0;
        let found = wait_for(
            "poll",
            reader.as_fd(),
            Some(Duration::from_secs(60)),
            || {
                takes += 1;
                Ok((takes == 5).then_some("mine"))
            },
        );
        assert_eq!(found.unwrap(), Some("mine"));
    }

    #[test]
    fn read_of_nonblocking_descriptor_returns_at_once() {
        let (mut reader, _writer) = UnixStream::pair().unwrap();
        set_nonblocking(reader.as_fd(), true).unwrap();
        let err = std::io::Read::read(&mut reader, &mut [0]).unwrap_err();
        assert_eq!(err.kind(), std::io::ErrorKind::WouldBlock);
    }
}
