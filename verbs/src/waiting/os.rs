//! Locks, clock and sleeping of waiters on this system.

use std::{io, time::Duration};

use super::{event_fd::unnotified_sleep, shared::Slept};
use crate::{error::Error, fd::poll_once};

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

/// Sleeps until `event` or `channel` is readable, at most for `time`. Drains `event`. Without
/// `event`, may end at any time.
pub(super) fn sleep(
    event: Option<&EventFd>,
    channel: Option<&impl AsFd>,
    time: Option<Duration>,
) -> Slept {
    let Some(event) = event else {
        return sleep_unnotified(channel, time);
    };
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
        Err(err) => failed(&err),
    }
}

fn sleep_unnotified(channel: Option<&impl AsFd>, time: Option<Duration>) -> Slept {
    let at_most = unnotified_sleep(time);
    let polled = match channel {
        Some(channel) => poll_once(POLL, [channel.as_fd()], Some(at_most)).map(|_| ()),
        None => poll_once(POLL, [], Some(at_most)).map(|_| ()),
    };
    match polled {
        Ok(()) if time == Some(at_most) => Slept::Elapsed,
        Ok(()) => Slept::Ready,
        Err(err) => failed(&err),
    }
}

fn failed(err: &Error) -> Slept {
    match err.kind() {
        io::ErrorKind::Interrupted => Slept::Interrupted,
        // Out of memory: the caller checks, and sleeps again.
        _ => Slept::Ready,
    }
}
