//! `rpoll` and `rselect`.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd},
    slice,
    sync::Arc,
    time::{Duration, Instant},
};

use interpose::{load, store};
use libc::{c_int, c_short, c_ulong, fd_set, nfds_t, pollfd, timeval};
use rsocket::{EventSet, PollEntry, PollEvents, Sleep, poll, poll_by};

use crate::{
    errno::{os, run},
    table::{self, Entry, Opened},
};

/// A descriptor with its requested events.
type PollRequest = (c_int, PollEvents);

/// The object behind a descriptor, kept alive during the wait.
enum Polled {
    Socket(Arc<Opened>),
    Set(Arc<EventSet>),
    Fd(c_int),
    /// Negative descriptor, ignored.
    Nothing,
}

impl Polled {
    fn of(fd: c_int) -> Self {
        match table::entry(fd) {
            Some(Entry::Socket(opened)) => Self::Socket(opened),
            Some(Entry::Set(set)) => Self::Set(set),
            None if fd < 0 => Self::Nothing,
            None => Self::Fd(fd),
        }
    }
}

/// Waits and returns the present events of each entry.
fn wait(
    requests: &[PollRequest],
    timeout: Option<Duration>,
    sleep: Option<&mut Sleep<'_>>,
) -> io::Result<Vec<PollEvents>> {
    let polled: Vec<_> = requests.iter().map(|(fd, _)| Polled::of(*fd)).collect();
    let mut entries = Vec::with_capacity(polled.len());
    for (object, (_, events)) in polled.iter().zip(requests) {
        entries.push(match object {
            Polled::Nothing => continue,
            Polled::Socket(opened) => PollEntry::socket(&opened.socket, *events),
            Polled::Set(set) => PollEntry::fd(set.as_fd(), *events),
            Polled::Fd(fd) => {
                // SAFETY: not negative, and only passed to `poll(2)`. Assumption: a system call fails for a descriptor
                // that is not open. The program keeps its descriptors open, as with `poll(2)` itself.
                let fd = unsafe { BorrowedFd::borrow_raw(*fd) };
                PollEntry::fd(fd, *events)
            }
        });
    }
    match sleep {
        Some(sleep) => poll_by(&mut entries, timeout, sleep)?,
        None => poll(&mut entries, timeout)?,
    };
    let mut answers = entries.iter().map(PollEntry::ready);
    let none = PollEvents::empty();
    let answer = |object: &Polled| match object {
        Polled::Nothing => none,
        _ => answers.next().unwrap_or(none),
    };
    Ok(polled.iter().map(answer).collect())
}

fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// `rpoll(fds, nfds, timeout)`—Waits for rsockets and other descriptors.
///
/// # Safety
/// `count` entries of `fds` are readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { poll_with(fds, count, timeout, None) }
}

/// [`rpoll`] with an optional sleep function of the caller.
///
/// # Safety
/// As for [`rpoll`].
pub unsafe fn poll_with(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    mut sleep: Option<&mut Sleep<'_>>,
) -> c_int {
    run(|| {
        let count = usize::try_from(count).map_err(|_| os(libc::EINVAL))?;
        let fds = if count == 0 {
            &mut []
        } else if fds.is_null() {
            return Err(os(libc::EFAULT));
        } else {
            // SAFETY: not null, with as many entries as the caller promises.
            unsafe { slice::from_raw_parts_mut(fds, count) }
        };
        let requests: Vec<_> = fds
            .iter()
            .map(|fd| {
                (
                    fd.fd,
                    PollEvents::from_bits_retain(u16::from_ne_bytes(fd.events.to_ne_bytes())),
                )
            })
            .collect();
        let answers = wait(&requests, milliseconds(timeout), sleep.as_deref_mut())?;
        let mut ready = 0;
        for (fd, answer) in fds.iter_mut().zip(answers) {
            fd.revents = c_short::from_ne_bytes(answer.bits().to_ne_bytes());
            ready += c_int::from(fd.revents != 0);
        }
        Ok(ready)
    })
}

/// Requested events for a set of `select(2)`, and the events that keep a descriptor in the set.
const READ: (PollEvents, PollEvents) = (
    PollEvents::IN,
    PollEvents::IN.union(PollEvents::HUP).union(PollEvents::ERR),
);
const WRITE: (PollEvents, PollEvents) = (PollEvents::OUT, PollEvents::OUT.union(PollEvents::ERR));
const EXCEPT: (PollEvents, PollEvents) = (PollEvents::PRI, PollEvents::PRI);

/// Number of bits in a word of a set.
const WORD: usize = c_ulong::BITS as usize;

/// Address of the word and mask of the bit for a descriptor. Sets may be larger than `FD_SETSIZE`, as for the kernel.
fn bit_of(fd: c_int, set: *mut fd_set) -> (*mut c_ulong, c_ulong) {
    let fd = usize::try_from(fd).unwrap_or(0);
    let word = set.cast::<c_ulong>().wrapping_add(fd / WORD);
    (word, 1 << (fd % WORD))
}

/// Whether a descriptor is in a set.
///
/// # Safety
/// `set` is null or valid for `fd`, which is not negative.
pub unsafe fn is_set(fd: c_int, set: *mut fd_set) -> bool {
    if set.is_null() {
        return false;
    }
    let (word, bit) = bit_of(fd, set);
    // SAFETY: valid, as the caller promises.
    unsafe { *word & bit != 0 }
}

/// # Safety
/// As for [`is_set`], and `set` is not null.
unsafe fn clear(fd: c_int, set: *mut fd_set) {
    let (word, bit) = bit_of(fd, set);
    // SAFETY: valid, as the caller promises.
    unsafe { *word &= !bit };
}

/// Number of descriptors that the kernel examines for a `select` of `count` descriptors. Above `FD_SETSIZE`, at most the
/// size of the process' descriptor table: a program may pass a larger number than its sets have bits.
///
/// # Errors
/// - `EINVAL`: a negative number.
pub fn select_count(count: c_int) -> io::Result<c_int> {
    let usual = c_int::try_from(libc::FD_SETSIZE).unwrap_or(c_int::MAX);
    if count < 0 {
        return Err(os(libc::EINVAL));
    }
    if count <= usual {
        return Ok(count);
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let size = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
    let size = size.and_then(|size| size.trim().parse().ok());
    Ok(count.min(size.unwrap_or(usual)))
}

/// Stores the time left of a `select`.
///
/// # Safety
/// `timeout` is null or valid.
unsafe fn store_remaining(timeout: *mut timeval, remaining: Duration) {
    let remaining = timeval {
        tv_sec: remaining.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_usec: remaining.subsec_micros().into(),
    };
    // SAFETY: as the caller promises.
    unsafe { store(timeout, remaining) };
}

/// `rselect(nfds, readfds, writefds, exceptfds, timeout)`—Waits for rsockets and other descriptors. As on Linux, sets may be
/// larger than `FD_SETSIZE`, and the call stores the time left at `timeout`.
///
/// # Safety
/// Each pointer is null or valid; sets have `count` bits, or at least `FD_SETSIZE` and one for each open descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { select_by(count, [read, write, except], timeout, |fd| fd, None) }
}

/// [`rselect`] with three sets of the program's descriptors, translated by `known_as`, and an optional sleep
/// function of the caller.
///
/// # Safety
/// As for [`rselect`].
pub unsafe fn select_by(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: *mut timeval,
    known_as: impl Fn(c_int) -> c_int,
    mut sleep: Option<&mut Sleep<'_>>,
) -> c_int {
    let [read, write, except] = sets;
    run(|| {
        let count = select_count(count)?;
        // SAFETY: null or valid, as the caller promises.
        let time = match unsafe { load(timeout) } {
            None => None,
            Some(time) => {
                let seconds = u64::try_from(time.tv_sec).map_err(|_| os(libc::EINVAL))?;
                let micros = u64::try_from(time.tv_usec).map_err(|_| os(libc::EINVAL))?;
                Some(Duration::from_secs(seconds) + Duration::from_micros(micros))
            }
        };
        let sets = [(read, READ), (write, WRITE), (except, EXCEPT)];
        let mut requests: Vec<PollRequest> = Vec::new();
        let mut fds = Vec::new();
        for fd in 0..count {
            let mut events = PollEvents::empty();
            for (set, (asks, _)) in sets {
                // SAFETY: null or valid, as the caller promises.
                if unsafe { is_set(fd, set) } {
                    events |= asks;
                }
            }
            if !events.is_empty() {
                requests.push((known_as(fd), events));
                fds.push(fd);
            }
        }
        let start = Instant::now();
        let answers = wait(&requests, time, sleep.as_deref_mut());
        if let Some(time) = time {
            // SAFETY: as the caller promises.
            unsafe { store_remaining(timeout, time.saturating_sub(start.elapsed())) };
        }
        let answers = answers?;
        if answers
            .iter()
            .any(|answer| answer.contains(PollEvents::NVAL))
        {
            return Err(os(libc::EBADF));
        }
        let mut ready = 0;
        for ((fd, (_, events)), answer) in fds.into_iter().zip(requests).zip(answers) {
            for (set, (asks, answers)) in sets {
                if set.is_null() || !events.contains(asks) {
                    continue;
                }
                if answer.intersects(answers) {
                    ready += 1;
                } else {
                    // SAFETY: not null, and valid as the caller promises.
                    unsafe { clear(fd, set) };
                }
            }
        }
        Ok(ready)
    })
}
