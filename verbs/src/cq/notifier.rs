//! Waiting for completions without losing a wake-up: the order of the steps, without any I/O.
//!
//! An armed queue notifies of the *next* completion, once. A completion that arrived before the
//! queue was armed makes no event, and an old event left in the channel makes the descriptor
//! readable without a new completion. So the steps are: poll; discard old events; arm; poll again;
//! and only then sleep until the descriptor is readable. If the second poll finds no completion,
//! the next completion takes the descriptor of the queue's own channel from unreadable to readable.
//! This edge wakes `poll`, `epoll` in both of its modes, and every runtime.
//!
//! No step depends on the result of an earlier call. So a spurious wake-up, a queue armed by
//! another thread, and a wait abandoned half-way are all harmless.

use crate::error::Result;

/// A queue that can notify of its next completion.
pub(super) trait Announcing {
    /// Polls for completions; returns whether there are any.
    fn look(&mut self) -> Result<bool>;

    /// Takes and discards the pending events, if the channel has no other queue.
    fn forget_announcements(&mut self) -> Result<()>;

    /// Requests a notification for the next completion.
    fn arm(&mut self) -> Result<()>;
}

/// Whether there are completions. If not, the queue is armed for the next one.
pub(super) fn ready(queue: &mut impl Announcing) -> Result<bool> {
    if queue.look()? {
        return Ok(true);
    }
    queue.forget_announcements()?;
    queue.arm()?;
    queue.look()
}

#[cfg(test)]
mod interleavings {
    //! Every interleaving of a waiter, a device, and another thread that arms the queue. A waiter
    //! that sleeps for ever is a deadlock, which loom reports.

    use loom::{
        sync::{Arc, Condvar, Mutex},
        thread,
    };

    use super::*;

    /// A queue and its channel. Each method is a step that nothing divides, as on a device.
    #[derive(Default)]
    struct Device {
        state: Mutex<State>,
        edge: Condvar,
    }

    #[derive(Clone, Copy, Default)]
    struct State {
        completions: u32,
        armed: bool,
        /// Events not taken yet: the descriptor is readable while there are any.
        announcements: u32,
        /// Whether the descriptor has become readable since the last sleep.
        edge: bool,
    }

    impl Device {
        fn step<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
            step(&mut self.state.lock().unwrap())
        }

        fn complete(&self) {
            self.step(|state| {
                state.completions += 1;
                if state.armed {
                    state.armed = false;
                    state.announcements += 1;
                    state.edge |= state.announcements == 1;
                    self.edge.notify_one();
                }
            });
        }

        /// Sleeps until the descriptor has become readable, as `epoll` does when it watches for the
        /// edge: the stricter of its modes.
        fn sleep(&self) {
            let mut state = self.state.lock().unwrap();
            while !state.edge {
                state = self.edge.wait(state).unwrap();
            }
            state.edge = false;
        }
    }

    struct Waiter<'a>(&'a Device);

    impl Announcing for Waiter<'_> {
        fn look(&mut self) -> Result<bool> {
            Ok(self.0.step(|state| state.completions > 0))
        }

        fn forget_announcements(&mut self) -> Result<()> {
            self.0.step(|state| state.announcements = 0);
            Ok(())
        }

        fn arm(&mut self) -> Result<()> {
            self.0.step(|state| state.armed = true);
            Ok(())
        }
    }

    fn every_interleaving(start: State, messages: u32, others: bool) {
        loom::model(move || {
            let device = Arc::new(Device {
                state: Mutex::new(start),
                edge: Condvar::new(),
            });
            let sender = Arc::clone(&device);
            let sender = thread::spawn(move || (0..messages).for_each(|_| sender.complete()));
            let other = others.then(|| {
                let device = Arc::clone(&device);
                thread::spawn(move || Waiter(&device).arm().unwrap())
            });
            let mut taken = 0;
            while taken < messages + start.completions {
                if ready(&mut Waiter(&device)).unwrap() {
                    taken += device.step(|state| std::mem::take(&mut state.completions));
                } else {
                    device.sleep();
                }
            }
            sender.join().unwrap();
            other.map(thread::JoinHandle::join);
        });
    }

    #[test]
    fn no_wake_up_is_lost_from_the_start() {
        every_interleaving(State::default(), 2, false);
    }

    #[test]
    fn no_wake_up_is_lost_after_a_wait_that_was_given_up() {
        let armed = State {
            armed: true,
            ..State::default()
        };
        every_interleaving(armed, 2, false);
        // The wait was given up after a completion had arrived and its event was pending.
        let announced = State {
            completions: 1,
            announcements: 1,
            edge: true,
            ..State::default()
        };
        every_interleaving(announced, 1, false);
        // The completion was then polled; the edge was consumed in one case, not in the other.
        for edge in [false, true] {
            let stale = State {
                announcements: 1,
                edge,
                ..State::default()
            };
            every_interleaving(stale, 2, false);
        }
    }

    #[test]
    fn no_wake_up_is_lost_when_another_thread_arms_the_queue() {
        every_interleaving(State::default(), 1, true);
    }
}
