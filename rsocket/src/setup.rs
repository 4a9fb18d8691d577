//! Turns of the set-up thread: the order of its work, and its continuation after a panic.

use std::{
    collections::VecDeque,
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::{Duration, Instant},
};

use verbs::panics::survive;

/// Maximum number of events waiting for the set-up thread. Beyond it, events wait in the kernel, which limits the
/// requests to a listener.
pub(crate) const MAX_SETUP_WORK: usize = 1024;

/// Maximum number of events handled between two deferred requests of a listener: a flood of requests, most of which are
/// only held back or rejected, delays those served by this number.
const SETUP_BATCH: usize = 8;

/// Interval between checks whether a half-open connection is old enough to be displaced by a deferred request.
pub(crate) const DEFERRED_CHECK: Duration = Duration::from_millis(100);

/// Handler of the set-up thread's work.
pub(crate) trait SetUp {
    type Work;

    /// Handles work that comes before all other, and returns the rest.
    fn handle_first(&self, work: Self::Work) -> Option<Self::Work>;

    fn handle(&self, work: Self::Work);

    /// Serves one deferred request of each listener with a free entry. Returns the time of the next call.
    fn serve_deferred(&self) -> Option<Instant>;
}

/// Runs the set-up thread until the engine is gone.
pub(crate) fn run<S: SetUp>(engine: impl Fn() -> Option<S>, work: &Receiver<S::Work>) {
    let mut queue = VecDeque::new();
    let mut next: Option<Instant> = None;
    loop {
        let received = match next {
            _ if !queue.is_empty() => Ok(None),
            None => work.recv().map(Some).map_err(RecvTimeoutError::from),
            Some(at) => work
                .recv_timeout(at.saturating_duration_since(Instant::now()))
                .map(Some),
        };
        let Some(engine) = engine() else {
            return;
        };
        match received {
            Ok(first) => queue.extend(first),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while queue.len() < MAX_SETUP_WORK
            && let Ok(received) = work.try_recv()
        {
            queue.extend(survive(|| engine.handle_first(received)).flatten());
        }
        let batch = SETUP_BATCH.min(queue.len());
        for received in queue.drain(..batch) {
            survive(|| engine.handle(received));
        }
        let served = survive(|| engine.serve_deferred());
        next = served.unwrap_or_else(|| Some(Instant::now() + DEFERRED_CHECK));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Mutex, mpsc},
        thread,
    };

    use super::*;

    /// A call of [`Recorder`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Called {
        First(u32),
        Handled(u32),
        ServedDeferred,
    }

    /// The number of work that panics.
    const PANICKING: u32 = 1000;

    /// Records the calls. Even work below 100 comes first.
    #[derive(Default)]
    struct Recorder {
        called: Mutex<Vec<Called>>,
        /// Number of calls of `serve_deferred` that panic.
        held_panics: Mutex<u32>,
    }

    impl SetUp for &Recorder {
        type Work = u32;

        fn handle_first(&self, work: u32) -> Option<u32> {
            if work >= 100 || work % 2 == 1 {
                return Some(work);
            }
            self.called.lock().unwrap().push(Called::First(work));
            None
        }

        fn handle(&self, work: u32) {
            self.called.lock().unwrap().push(Called::Handled(work));
            assert_ne!(work, PANICKING, "as intended by the test");
        }

        fn serve_deferred(&self) -> Option<Instant> {
            self.called.lock().unwrap().push(Called::ServedDeferred);
            let mut panics = self.held_panics.lock().unwrap();
            let is_panicking = *panics > 0;
            *panics = panics.saturating_sub(1);
            drop(panics);
            assert!(!is_panicking, "as intended by the test");
            None
        }
    }

    /// Runs the thread with this work, until all of it is handled.
    fn run_with(recorder: &Recorder, all: impl IntoIterator<Item = u32>) -> Vec<Called> {
        let (sender, work) = mpsc::channel();
        all.into_iter().for_each(|work| sender.send(work).unwrap());
        thread::scope(|scope| {
            let sets_up = scope.spawn(move || run(|| Some(recorder), &work));
            // Ends the thread once it has taken everything.
            drop(sender);
            sets_up.join().unwrap();
        });
        recorder.called.lock().unwrap().clone()
    }

    #[test]
    fn deferred_requests_wait_for_eight_events_at_most() {
        let recorder = Recorder::default();
        let called = run_with(&recorder, 100..200);
        let batches: Vec<&[Called]> = called
            .split(|called| *called == Called::ServedDeferred)
            .collect();
        let lengths: Vec<usize> = batches.iter().map(|batch| batch.len()).collect();
        assert_eq!(lengths, [vec![8; 12], vec![4, 0]].concat());
        let handled = (100..200).map(Called::Handled);
        assert!(batches.concat().into_iter().eq(handled));
    }

    #[test]
    fn completed_handshakes_come_before_requests() {
        let recorder = Recorder::default();
        let called = run_with(&recorder, [101, 2, 103, 4]);
        let expected = [
            Called::First(2),
            Called::First(4),
            Called::Handled(101),
            Called::Handled(103),
            Called::ServedDeferred,
        ];
        assert_eq!(called, expected);
    }

    #[test]
    fn panic_of_one_call_ends_no_set_up_thread() {
        let recorder = Recorder::default();
        *recorder.held_panics.lock().unwrap() = 1;
        let called = run_with(&recorder, [101, PANICKING, 103, PANICKING, 105]);
        let handled = [101, PANICKING, 103, PANICKING, 105].map(Called::Handled);
        assert_eq!(called[..5], handled);
        assert_eq!(called[5], Called::ServedDeferred);
    }
}
