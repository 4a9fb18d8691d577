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

/// A queue, or several, with a notification of the next completion.
pub(crate) trait NotifySource {
    /// Error of the queue.
    type Error;

    /// Polls for completions; returns whether there are any.
    fn has_completions(&mut self) -> Result<bool, Self::Error>;

    /// Takes and discards the pending events, if the channel has no other queue.
    fn drain_events(&mut self) -> Result<(), Self::Error>;

    /// Requests a notification for the next completion.
    fn arm(&mut self) -> Result<(), Self::Error>;
}

/// Whether there are completions. If not, the queue is armed for the next one.
pub(crate) fn ready<Q: NotifySource>(queue: &mut Q) -> Result<bool, Q::Error> {
    if queue.has_completions()? {
        return Ok(true);
    }
    queue.drain_events()?;
    queue.arm()?;
    queue.has_completions()
}

#[cfg(test)]
mod interleavings {
    //! Every interleaving of a waiter, a device, and another thread that arms the queue. A waiter
    //! that never wakes up is a deadlock, which loom reports.

    use std::convert::Infallible;

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
        events: u32,
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
                    state.events += 1;
                    state.edge |= state.events == 1;
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

    impl NotifySource for Waiter<'_> {
        type Error = Infallible;

        fn has_completions(&mut self) -> Result<bool, Infallible> {
            Ok(self.0.step(|state| state.completions > 0))
        }

        fn drain_events(&mut self) -> Result<(), Infallible> {
            self.0.step(|state| state.events = 0);
            Ok(())
        }

        fn arm(&mut self) -> Result<(), Infallible> {
            self.0.step(|state| state.armed = true);
            Ok(())
        }
    }

    fn every_interleaving(start: State, messages: u32, second_call: bool) {
        loom::model(move || {
            let device = Arc::new(Device {
                state: Mutex::new(start),
                edge: Condvar::new(),
            });
            let sender = Arc::clone(&device);
            let sender = thread::spawn(move || (0..messages).for_each(|_| sender.complete()));
            let other = second_call.then(|| {
                let device = Arc::clone(&device);
                thread::spawn(move || Waiter(&device).arm().unwrap())
            });
            let mut polled = 0;
            while polled < messages + start.completions {
                if ready(&mut Waiter(&device)).unwrap() {
                    polled += device.step(|state| std::mem::take(&mut state.completions));
                } else {
                    device.sleep();
                }
            }
            sender.join().unwrap();
            other.map(thread::JoinHandle::join);
        });
    }

    #[test]
    fn wake_up_of_first_wait_is_not_lost() {
        every_interleaving(State::default(), 2, false);
    }

    #[test]
    fn wake_up_after_abandoned_wait_is_not_lost() {
        let armed = State {
            armed: true,
            ..State::default()
        };
        every_interleaving(armed, 2, false);
        // The wait was given up after a completion had arrived and its event was pending.
        let notified = State {
            completions: 1,
            events: 1,
            edge: true,
            ..State::default()
        };
        every_interleaving(notified, 1, false);
        // The completion was then polled; the edge was consumed in one case, not in the other.
        for edge in [false, true] {
            let stale = State {
                events: 1,
                edge,
                ..State::default()
            };
            every_interleaving(stale, 2, false);
        }
    }

    #[test]
    fn wake_up_of_queue_armed_by_another_thread_is_not_lost() {
        every_interleaving(State::default(), 1, true);
    }
}
