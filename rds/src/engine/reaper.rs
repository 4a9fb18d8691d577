//! Destroys connection manager identifiers in background threads.
//!
//! `rdma_destroy_id` blocks until the kernel's connection manager is done with the messages of a
//! connection. On Linux 6.1 this can take more than a minute: if `rdma_notify` reports a missing
//! RTU and the connection ends before the kernel has processed the report, the kernel retransmits
//! the REP, which it should have cancelled.
//!
//! A peer controls how often this happens, by connecting and disconnecting. So the number of
//! threads is bounded, further identifiers queue, and while the queue is long, connection requests
//! are rejected.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
    time::Duration,
};

use cm::{EventChannel, Key};

/// How long the shutdown of an engine waits for identifiers to be destroyed.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of threads.
const MAX_THREADS: usize = 16;

/// Queue length from which connection requests are rejected.
const MAX_QUEUED: usize = 1024;

/// Queue and thread count, shared with the threads.
#[derive(Default)]
struct Work {
    queue: VecDeque<Box<dyn Send>>,
    threads: usize,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("queue", &self.queue.len())
            .field("threads", &self.threads)
            .finish()
    }
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the next item for an idle thread. Without one, the thread is counted off and exits.
fn next(work: &Mutex<Work>) -> Option<Box<dyn Send>> {
    let mut work = lock(work);
    let next = work.queue.pop_front();
    if next.is_none() {
        work.threads -= 1;
    }
    next
}

/// Destroys values in background threads.
#[derive(Debug)]
pub(crate) struct Reaper {
    threads: Vec<JoinHandle<()>>,
    work: Arc<Mutex<Work>>,
    /// Cloned into each thread, and dropped when the thread exits.
    at_work: Sender<Infallible>,
    done: Receiver<Infallible>,
}

impl Default for Reaper {
    fn default() -> Self {
        let (at_work, done) = mpsc::channel();
        Self {
            threads: Vec::new(),
            work: Arc::default(),
            at_work,
            done,
        }
    }
}

impl Reaper {
    /// Drops `what` in a background thread, or queues it if [`MAX_THREADS`] are busy. Blocks only
    /// if no thread can be spawned.
    pub(crate) fn destroy(&mut self, what: impl Send + 'static) {
        self.threads.retain(|thread| !thread.is_finished());
        let mut work = lock(&self.work);
        if work.threads >= MAX_THREADS {
            work.queue.push_back(Box::new(what));
            return;
        }
        work.threads += 1;
        drop(work);
        let (work, at_work) = (Arc::clone(&self.work), self.at_work.clone());
        // If spawning fails, the closure and `what` are dropped here.
        let thread = verbs::signals::spawn_without_signals("rds-end", move || {
            drop(what);
            while let Some(what) = next(&work) {
                drop(what);
            }
            drop(at_work);
        });
        match thread {
            Ok(thread) => self.threads.push(thread),
            Err(_) => lock(&self.work).threads -= 1,
        }
    }

    /// Whether new connections should be rejected.
    pub(super) fn is_overloaded(&self) -> bool {
        lock(&self.work).queue.len() >= MAX_QUEUED
    }

    /// Cancels an identifier with an outstanding event, in a background thread.
    pub(crate) fn cancel(&mut self, channel: &Arc<EventChannel>, key: Key) {
        self.destroy(Waiting {
            channel: Arc::clone(channel),
            key,
        });
    }

    /// Waits up to `timeout` for everything to be destroyed. Returns whether it is. On timeout,
    /// the threads continue.
    pub(super) fn wait(&mut self, timeout: Duration) -> bool {
        let Self {
            threads,
            at_work,
            done,
            work: _,
        } = mem::take(self);
        drop(at_work);
        // Nothing is ever sent; the channel closes with the last sender.
        if done.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        for thread in threads {
            // The threads do not panic; there is nothing to do with an error here.
            drop(thread.join());
        }
        true
    }
}

/// An identifier with an outstanding event. If the event arrives first, its handler destroys the
/// identifier.
struct Waiting {
    channel: Arc<EventChannel>,
    key: Key,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.channel.cancel(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
    };

    use super::*;

    /// Longer than any wait in these tests.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// Blocks in `drop` until released.
    struct Slow(Receiver<()>, Arc<AtomicUsize>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.recv().unwrap();
            self.1.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn reaper_destroy_does_not_block_on_slow_values() {
        let ended = Arc::new(AtomicUsize::new(0));
        let mut reaper = Reaper::default();
        let (tell, may): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel()).unzip();
        for may in may {
            reaper.destroy(Slow(may, Arc::clone(&ended)));
        }
        assert_eq!(ended.load(SeqCst), 0);
        // Release in reverse order.
        for tell in tell.iter().rev() {
            tell.send(()).unwrap();
        }
        assert!(reaper.wait(TEST_TIMEOUT));
        assert_eq!(ended.load(SeqCst), 3);
    }

    #[test]
    fn reaper_wait_times_out_on_slow_values() {
        let ended = Arc::new(AtomicUsize::new(0));
        let mut reaper = Reaper::default();
        let (tell, may) = mpsc::channel();
        let (is_over, over) = mpsc::channel();
        reaper.destroy(());
        reaper.destroy((Slow(may, Arc::clone(&ended)), is_over));
        assert!(!reaper.wait(Duration::from_millis(1)));
        // The value is still destroyed after the timeout.
        tell.send(()).unwrap();
        let over: Result<(), _> = over.recv_timeout(TEST_TIMEOUT);
        assert_eq!(over, Err(RecvTimeoutError::Disconnected));
        assert_eq!(ended.load(SeqCst), 1);
        assert!(reaper.wait(TEST_TIMEOUT), "it is not waited for twice");
    }

    #[test]
    fn reaper_threads_are_bounded_and_queue_is_drained() {
        const MANY: usize = MAX_QUEUED + MAX_THREADS;
        let ended = Arc::new(AtomicUsize::new(0));
        let mut reaper = Reaper::default();
        let (tell, may): (Vec<_>, Vec<_>) = (0..MANY).map(|_| mpsc::channel()).unzip();
        for (i, may) in may.into_iter().enumerate() {
            assert!(!reaper.is_overloaded(), "by {i}");
            reaper.destroy(Slow(may, Arc::clone(&ended)));
            assert!(reaper.threads.len() <= MAX_THREADS);
        }
        assert!(reaper.is_overloaded());
        for tell in &tell {
            tell.send(()).unwrap();
        }
        while ended.load(SeqCst) < MANY {
            thread::yield_now();
        }
        assert!(!reaper.is_overloaded());
        // Threads that exit make room for others.
        let (tell, may) = mpsc::channel();
        reaper.destroy(Slow(may, Arc::clone(&ended)));
        tell.send(()).unwrap();
        assert!(reaper.wait(TEST_TIMEOUT));
        assert_eq!(ended.load(SeqCst), MANY + 1);
    }

    #[test]
    fn reaper_joins_finished_threads() {
        let mut reaper = Reaper::default();
        for _ in 0..100 {
            reaper.destroy(());
            while !reaper.threads.iter().all(JoinHandle::is_finished) {
                thread::yield_now();
            }
        }
        assert_eq!(reaper.threads.len(), 1);
    }
}
