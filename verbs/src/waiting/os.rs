//! Locks, clock and sleeping of waiters on this system.

use std::{io, time::Duration};

use super::event_fd::unnotified_sleep;
use crate::{
    fd::poll_some,
    signals::{interrupting, is_interrupted},
};

pub(super) use std::{
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, TryLockError},
    thread::yield_now,
    time::Instant,
};

pub(super) use super::event_fd::EventFd;
pub(super) use crate::fork::fork_generation as process;

/// Operation in errors.
const POLL: &str = "poll";

/// Sleeps until `event` or `channel` is readable, at most for `time`, rounded up. Drains `event`.
/// Without `event`, may end at any time. Returns whether a signal handler has run, or
/// [has to](interrupting).
pub(super) fn sleep(
    event: Option<&EventFd>,
    channel: Option<&impl AsFd>,
    time: Option<Duration>,
) -> bool {
    let notify = event.map(AsFd::as_fd);
    let time = notify.map_or_else(|| Some(unnotified_sleep(time)), |_| time);
    let channel = channel.map(AsFd::as_fd);
    let polled = poll_some(POLL, [notify, channel, interrupting()], time);
    if let (Ok([true, ..]), Some(event)) = (&polled, event) {
        event.drain();
    }
    // Any other error is lack of memory: the caller checks, and sleeps again.
    match polled {
        Ok(ready) => ready == [false, false, true] && is_interrupted(),
        Err(err) => err.kind() == io::ErrorKind::Interrupted,
    }
}
