//! A subscriber that records the lines printed by a program with `RUST_LOG`, without the times.

use std::{
    io,
    sync::{
        Arc, Condvar, LazyLock, Mutex,
        mpsc::{self, Receiver, Sender},
    },
};

use tracing::{Dispatch, dispatcher};
use tracing_subscriber::EnvFilter;

use crate::TEST_TIMEOUT;

/// The recorded lines.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Shared>);

#[derive(Default)]
struct Shared {
    bytes: Mutex<Vec<u8>>,
    changed: Condvar,
    stalls: Mutex<Vec<Stall>>,
}

/// A line that blocks its thread.
struct Stall {
    texts: Vec<String>,
    reached: Sender<()>,
    end: Receiver<()>,
}

impl Stall {
    fn concerns(&self, bytes: &[u8]) -> bool {
        let line = String::from_utf8_lossy(bytes);
        self.texts.iter().all(|text| line.contains(text))
    }
}

impl Recorder {
    /// Runs `program` with this value of `RUST_LOG`, and returns the lines of its own thread.
    pub(crate) fn lines_of(rust_log: &str, program: impl FnOnce()) -> Vec<String> {
        // With a single subscriber, an event reached first by another thread would never be recorded: `tracing` then asks
        // the subscriber of that thread alone.
        let _other = Dispatch::from(tracing_subscriber::registry());
        let recorder = Self::default();
        dispatcher::with_default(&recorder.subscriber(rust_log), program);
        recorder.lines()
    }

    /// The recorder of all threads of the process, for the threads of `rsocket` and `rds`.
    pub(crate) fn of_process() -> &'static Self {
        static RECORDER: LazyLock<Recorder> = LazyLock::new(|| {
            let recorder = Recorder::default();
            let subscriber = recorder.subscriber("rsocket=debug,rds=debug");
            dispatcher::set_global_default(subscriber).unwrap();
            recorder
        });
        &RECORDER
    }

    /// A subscriber that records the events selected by this value of `RUST_LOG`.
    fn subscriber(&self, rust_log: &str) -> Dispatch {
        let recorder = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(rust_log))
            .with_writer(move || recorder.clone())
            .with_ansi(false)
            .without_time();
        Dispatch::new(subscriber.finish())
    }

    /// The lines so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        lines(&self.0.bytes.lock().unwrap())
    }

    /// The lines so far with this text.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        let mut lines = self.lines();
        lines.retain(|line| line.contains(text));
        lines
    }

    /// Blocks the thread of the next line with these texts, until the returned sender is dropped. The receiver is notified
    /// by then. The thread panics if the sender has sent.
    pub(crate) fn stall_at(&self, texts: &[&str]) -> (Receiver<()>, Sender<()>) {
        let (reached, is_reached) = mpsc::channel();
        let (sender, end) = mpsc::channel();
        self.0.stalls.lock().unwrap().push(Stall {
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
            reached,
            end,
        });
        (is_reached, sender)
    }

    /// Blocks until there is a line with these texts, and returns it.
    pub(crate) fn wait_for(&self, texts: &[&str]) -> String {
        let found = |bytes: &[u8]| {
            let mut lines = lines(bytes).into_iter();
            lines.find(|line| texts.iter().all(|text| line.contains(text)))
        };
        let waiting = self.0.bytes.lock().unwrap();
        let (bytes, _) = self
            .0
            .changed
            .wait_timeout_while(waiting, TEST_TIMEOUT, |bytes| found(bytes).is_none())
            .unwrap();
        let line = found(&bytes);
        line.unwrap_or_else(|| panic!("no {texts:?} in {:#?}", lines(&bytes)))
    }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.lines().map(|line| line.trim().to_owned()).collect()
}

impl io::Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stalls = self.0.stalls.lock().unwrap();
        let stall = stalls.extract_if(.., |stall| stall.concerns(bytes)).next();
        drop(stalls);
        if let Some(stall) = stall {
            stall.reached.send(()).unwrap();
            // Fails once the sender has been dropped.
            assert!(stall.end.recv().is_err(), "as intended by the test");
        }
        self.0.bytes.lock().unwrap().extend_from_slice(bytes);
        self.0.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
