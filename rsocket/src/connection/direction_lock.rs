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
pub(super) struct Turn(Mutex<Holder>);

#[derive(Debug, Default)]
struct Holder {
    is_taken: bool,
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

impl Turn {
    /// Takes the turn, and waits for it as long as `mode` permits. A nonblocking call neither takes the turn nor
    /// waits for a call that has it.
    ///
    /// # Errors
    /// - `WouldBlock`: the deadline of `mode` has passed.
    /// - `Interrupted`: a signal handler has run, or has to.
    pub(super) fn take(&self, mode: WaitMode<'_>) -> io::Result<Option<Taken<'_>>> {
        if mode.is_nonblocking() {
            return Ok(None);
        }
        let mut holder = self.lock();
        while holder.is_taken {
            let left = mode
                .deadline()
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // Without a descriptor, the call looks for itself.
            let waited = match EventFd::of_thread() {
                Ok(event) => {
                    holder.blocked.push_back(Arc::clone(&event));
                    drop(holder);
                    let waited = wait_interruptible("poll", event.as_fd(), left);
                    event.drain();
                    holder = self.lock();
                    if !holder.remove(&event) && !holder.is_taken && waited.is_err() {
                        // Notified, and about to leave.
                        holder.notify();
                    }
                    waited
                }
                Err(_) => {
                    drop(holder);
                    std::thread::sleep(unnotified_sleep(left));
                    holder = self.lock();
                    Ok(true)
                }
            };
            waited?;
        }
        holder.is_taken = true;
        Ok(Some(Taken(self)))
    }

    fn lock(&self) -> MutexGuard<'_, Holder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A taken turn, freed on drop.
#[derive(Debug)]
pub(super) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut holder = self.0.lock();
        holder.is_taken = false;
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
        let turn = Turn::default();
        let first = turn.take(WaitMode::Endless).unwrap();
        let late = turn.take(until(Duration::from_millis(1)));
        assert_eq!(late.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(turn.take(WaitMode::Watch).unwrap().is_none());
        drop(first);
        assert!(turn.take(until(Duration::ZERO)).unwrap().is_some());
    }

    #[test]
    fn freed_turn_wakes_each_waiting_call() {
        let turn = Turn::default();
        let first = turn.take(WaitMode::Endless).unwrap();
        let (sender, done) = mpsc::channel();
        thread::scope(|scope| {
            for mode in [WaitMode::Endless, until(Duration::from_secs(60))] {
                let (turn, sender) = (&turn, sender.clone());
                scope.spawn(move || {
                    let taken = turn.take(mode).unwrap();
                    sender.send(taken.is_some()).unwrap();
                });
            }
            drop(first);
            for _ in 0..2 {
                assert!(done.recv_timeout(Duration::from_secs(50)).unwrap());
            }
        });
    }
}
