//! Sequences of calls by one thread at a time: polling an extended completion queue, building extended requests.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

/// State of a sequence of calls, from the first call to the last.
#[derive(Debug)]
pub(super) struct Sequence<T> {
    /// The thread that has begun the sequence, and the state.
    state: Mutex<Option<(ThreadId, T)>>,
    ended: Condvar,
}

impl<T> Default for Sequence<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(None),
            ended: Condvar::new(),
        }
    }
}

impl<T> Sequence<T> {
    fn lock(&self) -> MutexGuard<'_, Option<(ThreadId, T)>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a sequence. Blocks until the sequence in progress, if any, has ended.
    pub(super) fn begin(&self, state: T) {
        let mut current = self.lock();
        while current.is_some() {
            current = self
                .ended
                .wait(current)
                .unwrap_or_else(PoisonError::into_inner);
        }
        *current = Some((thread::current().id(), state));
    }

    /// The thread that has begun the sequence in progress.
    pub(super) fn owner(&self) -> Option<ThreadId> {
        self.lock().as_ref().map(|(owner, _)| *owner)
    }

    /// Whether this thread has begun the sequence in progress.
    pub(super) fn is_of_this_thread(&self) -> bool {
        self.owner() == Some(thread::current().id())
    }

    /// Calls `act` with the state; `None` outside of a sequence.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.lock().as_mut().map(|(_, state)| act(state))
    }

    /// Ends the sequence, and returns the state; `None` outside of a sequence.
    pub(super) fn end(&self) -> Option<T> {
        let ended = self.lock().take();
        self.ended.notify_one();
        ended.map(|(_, state)| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_sequence_begins_after_the_end_of_the_first() {
        let sequence = Sequence::default();
        assert_eq!(sequence.with(|_: &mut u8| ()), None);
        sequence.begin(1);
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                sequence.begin(3);
                sequence.with(|state| *state)
            });
            assert_eq!(sequence.with(|state| std::mem::replace(state, 2)), Some(1));
            assert_eq!(sequence.end(), Some(2));
            assert_eq!(second.join().unwrap(), Some(3));
        });
        assert_eq!(sequence.end(), Some(3));
        assert_eq!(sequence.end(), None);
    }
}
