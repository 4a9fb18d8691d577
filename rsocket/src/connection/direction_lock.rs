//! Exclusive use of one direction of a stream by one blocking call at a time.

use std::{
    collections::VecDeque,
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use verbs::{
    fd::wait_interruptible,
    waiting::{EventFd, unnotified_sleep},
};

use crate::waiting::WaitMode;

/// The turn of one direction, free or taken.
#[derive(Debug, Default)]
pub(super) struct DirectionLock(Mutex<Holder>);

#[derive(Debug, Default)]
struct Holder {
    is_locked: bool,
    /// Blocked calls, the oldest first.
    blocked: VecDeque<Arc<EventFd>>,
}

impl Holder {
    /// Removes a blocked call. Returns false if it has been notified.
    fn remove(&mut self, event: &Arc<EventFd>) -> bool {
        let before = self.blocked.len();
        self.blocked.retain(|other| !Arc::ptr_eq(other, event));
        self.blocked.len() < before
    }

    /// Notifies the oldest blocked call.
    fn notify(&mut self) {
        if let Some(next) = self.blocked.pop_front() {
            next.notify();
        }
    }
}

impl DirectionLock {
    /// Takes the turn, and waits for it as long as `mode` permits. A nonblocking call neither takes the turn nor
    /// waits for a call that has it.
    ///
    /// # Errors
    /// - `WouldBlock`: the deadline of `mode` has passed.
    /// - `Interrupted`: a signal handler has run, or has to.
    pub(super) fn take(&self, mode: WaitMode<'_>) -> io::Result<Option<DirectionGuard<'_>>> {
        if mode.is_nonblocking() {
            return Ok(None);
        }
        let mut holder = self.lock();
        while holder.is_locked {
            let remaining = mode
                .deadline()
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if remaining.is_some_and(|remaining| remaining.is_zero()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Without a descriptor, the call looks for itself.
            let waited = match EventFd::of_thread() {
                Ok(event) => {
                    holder.blocked.push_back(Arc::clone(&event));
                    drop(holder);
                    let waited = wait_interruptible("poll", event.as_fd(), remaining);
                    event.drain();
                    holder = self.lock();
                    if !holder.remove(&event) && !holder.is_locked && waited.is_err() {
                        // Notified, and about to leave.
                        holder.notify();
                    }
                    waited
                }
                Err(_) => {
                    drop(holder);
                    std::thread::sleep(unnotified_sleep(remaining));
                    holder = self.lock();
                    Ok(true)
                }
            };
            waited?;
        }
        holder.is_locked = true;
        Ok(Some(DirectionGuard(self)))
    }

    fn lock(&self) -> MutexGuard<'_, Holder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A taken turn, freed on drop.
#[derive(Debug)]
pub(super) struct DirectionGuard<'a>(&'a DirectionLock);

impl Drop for DirectionGuard<'_> {
    fn drop(&mut self) {
        let mut holder = self.0.lock();
        holder.is_locked = false;
        holder.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    fn until(timeout: Duration) -> WaitMode<'static> {
        WaitMode::from_timeout(Some(timeout))
    }

    #[test]
    fn turn_of_another_call_is_waited_for_until_the_deadline() {
        let lock = DirectionLock::default();
        let first = lock.take(WaitMode::Endless).unwrap();
        let late = lock.take(until(Duration::from_millis(1)));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(lock.take(WaitMode::Watch).unwrap().is_none());
        drop(first);
        assert!(lock.take(until(Duration::ZERO)).unwrap().is_some());
    }

    #[test]
    fn freed_turn_wakes_each_waiting_call() {
        let lock = DirectionLock::default();
        let first = lock.take(WaitMode::Endless).unwrap();
        let (sender, done) = mpsc::channel();
        thread::scope(|scope| {
            for mode in [WaitMode::Endless, until(Duration::from_secs(60))] {
                let (lock, sender) = (&lock, sender.clone());
                scope.spawn(move || {
                    let guard = lock.take(mode).unwrap();
                    sender.send(guard.is_some()).unwrap();
                });
            }
            drop(first);
            for _ in 0..2 {
                assert!(done.recv_timeout(Duration::from_secs(50)).unwrap());
            }
        });
    }
}
