//! Exclusive use of one direction of a stream by one blocking call at a time.

use std::{
    io,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use crate::waiting::WaitMode;

/// The turn of one direction, free or taken.
#[derive(Debug, Default)]
pub(super) struct Turn {
    taken: Mutex<bool>,
    freed: Condvar,
}

impl Turn {
    /// Takes the turn, and waits for it as long as `mode` permits. A nonblocking call neither takes the turn nor
    /// waits for a call that has it.
    ///
    /// # Errors
    /// `WouldBlock`: the deadline of `mode` has passed.
    pub(super) fn take(&self, mode: WaitMode<'_>) -> io::Result<Option<Taken<'_>>> {
        if mode.is_nonblocking() {
            return Ok(None);
        }
        let mut taken = self.lock();
        while *taken {
            taken = match mode.deadline() {
                None => {
                    let woken = self.freed.wait(taken);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                    let woken = self.freed.wait_timeout(taken, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *taken = true;
        Ok(Some(Taken(self)))
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A taken turn, freed on drop.
#[derive(Debug)]
pub(super) struct Taken<'a>(&'a Turn);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.freed.notify_one();
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
