//! Waiting for completions without losing a wake-up: the order of the steps, without any I/O.
//!
//! A queue that has been armed announces the *next* completion, once. A completion that came before
//! is announced by nobody, and an announcement that nobody has taken makes the descriptor readable
//! for nothing. So the steps are: look; forget old announcements; arm; look again; and only then
//! sleep until the descriptor is readable. Once the second look has found nothing, the next
//! completion takes the descriptor from unreadable to readable, which is what `poll`, `epoll` in
//! both of its modes, and every runtime wait for.
//!
//! No step depends on what an earlier call has seen. So a wake-up for nothing, a queue that somebody
//! else has armed, and a wait that was given up half-way all do no harm.

use crate::error::Result;

/// A queue that announces what comes to it.
pub(super) trait Announcing {
    /// Looks for completions; returns whether there are any.
    fn look(&mut self) -> Result<bool>;

    /// Takes the announcements made so far, if the channel has no other queue.
    fn forget_announcements(&mut self) -> Result<()>;

    /// Asks for the next completion to be announced.
    fn arm(&mut self) -> Result<()>;
}

/// Whether there are completions. If not, the next one will be announced.
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
    //! Every interleaving of a waiter, a device, and somebody else who arms the queue. A waiter that
    //! sleeps for ever is a deadlock, which loom reports.

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
        /// Announcements that nobody has taken: the descriptor is readable while there are any.
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
        // It was given up when a completion had come, and was announced.
        let announced = State {
            completions: 1,
            announcements: 1,
            edge: true,
            ..State::default()
        };
        every_interleaving(announced, 1, false);
        // The completion was polled then, and perhaps the wake-up was noticed.
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
    fn no_wake_up_is_lost_when_somebody_else_arms_the_queue() {
        every_interleaving(State::default(), 1, true);
    }
}
