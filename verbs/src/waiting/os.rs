//! Locks, clock and sleeping of waiters on this system.

use std::{io, time::Duration};

use super::shared::Slept;
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

/// Sleeps until `event` or `channel` is readable, at most for `time`. Drains `event`.
pub(super) fn sleep(event: &EventFd, channel: Option<&impl AsFd>, time: Option<Duration>) -> Slept {
    let own = event.as_fd();
    let polled = match channel {
        Some(channel) => {
            poll_once(POLL, [own, channel.as_fd()], time).map(|ready| ready.map(|[own, _]| own))
        }
        None => poll_once(POLL, [own], time).map(|ready| ready.map(|[own]| own)),
    };
    match polled {
        Ok(Some(own)) => {
            if own {
                event.drain();
            }
            Slept::Ready
        }
        Ok(None) => Slept::Elapsed,
        Err(err) if err.kind() == io::ErrorKind::Interrupted => Slept::Interrupted,
        // Out of memory: the caller checks, and sleeps again.
        Err(_) => Slept::Ready,
    }
}
