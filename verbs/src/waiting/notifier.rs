//! Waiting for completions without losing a wake-up: the order of the steps, without any I/O.
//!
//! An armed queue notifies of the *next* completion, once. A completion that arrived before the
//! queue was armed makes no event, and an old event left in the channel makes the descriptor
//! readable without a new completion. So the steps are: poll; take the old event; arm; poll again;
//! and only then sleep until the descriptor is readable. If the second poll finds no completion,
//! the next completion takes the descriptor of the queue's own channel from unreadable to readable.
//! This edge wakes `poll`, `epoll` in both of its modes, and every runtime.
//!
//! A queue with a channel of its own has at most one event that its poller has [requested](Requested), so
//! a wait takes one event, and a queue whose event has not come is still armed. A spurious wake-up, a queue
//! armed by another thread, and a wait abandoned half-way are all harmless.

/// A queue, or several, with a notification of the next completion.
pub(crate) trait NotifySource {
    /// Error of the queue.
    type Error;

    /// Polls for completions; returns whether there are any.
    fn has_completions(&mut self) -> Result<bool, Self::Error>;

    /// Requests a notification of the next completion, and discards those of earlier ones. Returns false if each
    /// completion after the last [poll](Self::has_completions) gives a notification already.
    fn request(&mut self) -> Result<bool, Self::Error>;
}

/// Whether there are completions. If not, the queue is armed for the next one.
pub(crate) fn ready<Q: NotifySource>(queue: &mut Q) -> Result<bool, Q::Error> {
    if queue.has_completions()? {
        return Ok(true);
    }
    if queue.request()? {
        return queue.has_completions();
    }
    Ok(false)
}

/// Whether the poller of a queue with a channel of its own has requested an event and not taken it.
#[derive(Debug, Default)]
pub(crate) struct Requested(bool);

impl Requested {
    /// Takes the event, if it has come, and then requests another one; see [`NotifySource::request`]. `take_event` takes
    /// an event of the channel if there is one, and returns whether there was.
    pub(crate) fn renew<E>(
        &mut self,
        take_event: impl FnOnce() -> Result<bool, E>,
        arm: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        if self.0 && !take_event()? {
            return Ok(false);
        }
        self.0 = false;
        arm()?;
        self.0 = true;
        Ok(true)
    }
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
        /// Whether a thread other than the poller has armed the queue.
        armed_by_others: bool,
    }

    impl State {
        fn take_event(&mut self) -> bool {
            let found = self.events > 0;
            self.events = self.events.saturating_sub(1);
            found
        }
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

        fn arm(&self) {
            self.step(|state| state.armed = true);
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

    struct Waiter<'a> {
        device: &'a Device,
        requested: &'a mut Requested,
    }

    impl NotifySource for Waiter<'_> {
        type Error = Infallible;

        fn has_completions(&mut self) -> Result<bool, Infallible> {
            Ok(self.device.step(|state| state.completions > 0))
        }

        fn request(&mut self) -> Result<bool, Infallible> {
            let device = self.device;
            self.requested.renew(
                || {
                    let first = device.step(State::take_event);
                    if device.step(|state| std::mem::take(&mut state.armed_by_others)) {
                        while device.step(State::take_event) {}
                    }
                    Ok(first)
                },
                || {
                    device.arm();
                    Ok(())
                },
            )
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
                thread::spawn(move || {
                    device.step(|state| state.armed_by_others = true);
                    device.arm();
                    device.step(|state| state.armed_by_others = true);
                })
            });
            // Armed before, or with an event: by an earlier wait.
            let mut requested = Requested(start.armed || start.events > 0);
            let mut polled = 0;
            while polled < messages + start.completions {
                let mut waiter = Waiter {
                    device: &device,
                    requested: &mut requested,
                };
                if ready(&mut waiter).unwrap() {
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
