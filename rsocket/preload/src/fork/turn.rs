//! Turns of the thread that accepts RDMA streams, and its continuation after a panic: it serves all connections of the process.

#![forbid(unsafe_code)]

use std::{io, thread, time::Duration};

use verbs::panics::survive;

use crate::log;

/// Pause after a failure of the device.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

/// The steps of a turn.
pub(crate) trait Turn {
    type Listener;
    /// A stream without a proof.
    type Stream;

    fn listeners(&self) -> Vec<Self::Listener>;

    /// Waits for something to do.
    fn wait(&self, listeners: &[Self::Listener], unproven: &[Self::Stream]) -> io::Result<()>;

    /// Reports a failure of the wait, and pauses.
    fn fail(&self, err: io::Error) {
        log::write_line(|| format!("waiting for RDMA streams failed: {err}"));
        thread::sleep(FAILURE_PAUSE);
    }

    /// Reads the proof of a stream. Returns the stream if there is more to read.
    fn read_proof(&self, stream: Self::Stream) -> Option<Self::Stream>;

    /// Accepts the streams of a listener.
    fn accept(&self, listener: &Self::Listener, unproven: &mut Vec<Self::Stream>);

    /// Wakes calls whose time to send has come.
    fn ring(&self);
}

/// Makes a turn. A panic ends the step for one stream or listener.
pub(crate) fn turn<T: Turn>(acceptor: &T, unproven: &mut Vec<T::Stream>) {
    let listeners = acceptor.listeners();
    let waited = survive(|| acceptor.wait(&listeners, unproven));
    let waited = waited.unwrap_or_else(|| Err(io::Error::other("a panic")));
    // The C library interrupts all threads at `setuid(2)` and similar calls, also threads that block signals.
    if let Err(err) = waited
        && err.kind() != io::ErrorKind::Interrupted
    {
        acceptor.fail(err);
    }
    *unproven = std::mem::take(unproven)
        .into_iter()
        .filter_map(|stream| survive(|| acceptor.read_proof(stream)).flatten())
        .collect();
    for listener in &listeners {
        survive(|| acceptor.accept(listener, unproven));
    }
    survive(|| acceptor.ring());
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The steps of a turn with two listeners, whose streams have their numbers.
    const STEPS: [&str; 6] = ["wait", "read 1", "read 2", "accept 1", "accept 2", "ring"];

    /// Records its steps, and panics in one.
    struct Recorder {
        panics_at: &'static str,
        /// Failure of the wait.
        waited: Option<io::ErrorKind>,
        steps: RefCell<Vec<String>>,
    }

    impl Recorder {
        fn step(&self, step: &str) {
            self.steps.borrow_mut().push(step.to_owned());
            assert_ne!(step, self.panics_at, "as intended by the test");
        }
    }

    impl Turn for Recorder {
        type Listener = u32;
        type Stream = u32;

        fn listeners(&self) -> Vec<u32> {
            vec![1, 2]
        }

        fn wait(&self, _: &[u32], _: &[u32]) -> io::Result<()> {
            self.step("wait");
            self.waited.map_or(Ok(()), |kind| Err(kind.into()))
        }

        fn fail(&self, _: io::Error) {
            self.step("fail");
        }

        fn read_proof(&self, stream: u32) -> Option<u32> {
            self.step(&format!("read {stream}"));
            Some(stream)
        }

        fn accept(&self, listener: &u32, unproven: &mut Vec<u32>) {
            self.step(&format!("accept {listener}"));
            unproven.push(10 + listener);
        }

        fn ring(&self) {
            self.step("ring");
        }
    }

    #[test]
    fn panic_of_one_step_ends_no_other() {
        for (panics_at, remaining) in [
            ("none", &[1, 2, 11, 12][..]),
            ("wait", &[1, 2, 11, 12]),
            ("read 1", &[2, 11, 12]),
            ("read 2", &[1, 11, 12]),
            ("accept 1", &[1, 2, 12]),
            ("accept 2", &[1, 2, 11]),
            ("ring", &[1, 2, 11, 12]),
        ] {
            let recorder = Recorder {
                panics_at,
                waited: None,
                steps: RefCell::default(),
            };
            let mut unproven = vec![1, 2];
            turn(&recorder, &mut unproven);
            let mut steps = recorder.steps.into_inner();
            if panics_at == "wait" {
                assert_eq!(steps.remove(1), "fail");
            }
            assert_eq!(steps, STEPS, "{panics_at}");
            assert_eq!(unproven, remaining, "{panics_at}");
        }
    }

    #[test]
    fn interrupted_wait_is_no_failure() {
        for (kind, fails) in [
            (io::ErrorKind::Interrupted, false),
            (io::ErrorKind::OutOfMemory, true),
        ] {
            let recorder = Recorder {
                panics_at: "none",
                waited: Some(kind),
                steps: RefCell::default(),
            };
            turn(&recorder, &mut vec![]);
            let steps = recorder.steps.into_inner();
            assert_eq!(steps.contains(&"fail".to_owned()), fails, "{kind}");
        }
    }
}
