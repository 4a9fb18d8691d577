//! Locks, clock and sleeping of waiters on this system.

use std::{io, time::Duration};

use super::event_fd::unnotified_sleep;
use crate::fd::poll_once;

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
/// Without `event`, may end at any time. Returns whether a signal handler has run.
pub(super) fn sleep(
    event: Option<&EventFd>,
    channel: Option<&impl AsFd>,
    time: Option<Duration>,
) -> bool {
    let own = event.map(AsFd::as_fd);
    let time = own.map_or_else(|| Some(unnotified_sleep(time)), |_| time);
    let polled = match (own, channel.map(AsFd::as_fd)) {
        (Some(own), Some(channel)) => {
            poll_once(POLL, [own, channel], time).map(|ready| ready.is_some_and(|[own, _]| own))
        }
        (Some(own), None) => poll_once(POLL, [own], time).map(|ready| ready.is_some()),
        (None, Some(channel)) => poll_once(POLL, [channel], time).map(|_| false),
        (None, None) => poll_once(POLL, [], time).map(|_| false),
    };
    if let (Ok(true), Some(event)) = (&polled, event) {
        event.drain();
    }
    // Any other error is lack of memory: the caller checks, and sleeps again.
    polled.is_err_and(|err| err.kind() == io::ErrorKind::Interrupted)
}
