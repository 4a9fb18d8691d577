//! Destroys identifiers in background threads.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use verbs::panics::survive;

/// Maximum number of threads.
const MAX_THREADS: usize = 16;

/// Queue length from which a server rejects connection requests.
const MAX_QUEUED: usize = 1024;

type Task = Box<dyn FnOnce() + Send>;

/// Queue and thread count, shared with the threads.
#[derive(Default)]
struct ReaperWork {
    queue: VecDeque<Task>,
    threads: usize,
}

#[derive(Default)]
struct ReaperShared {
    work: Mutex<ReaperWork>,
    /// Notified when a thread exits.
    ended: Condvar,
}

impl ReaperShared {
    fn lock(&self) -> MutexGuard<'_, ReaperWork> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next item for an idle thread. Without one, the thread is counted off and exits.
    fn next(&self) -> Option<Task> {
        let mut work = self.lock();
        let next = work.queue.pop_front();
        if next.is_none() {
            work.threads -= 1;
            self.ended.notify_all();
        }
        next
    }
}

/// Destroys identifiers in background threads, so that no polling thread blocks.
///
/// `rdma_destroy_id` blocks until the kernel's connection manager is done with the messages of a connection. On Linux 6.1 this
/// can take more than a minute: if [`notify`](crate::EventChannel::notify) reports a missing RTU and the connection ends before the
/// kernel has processed the report, the kernel retransmits the REP, which it should have cancelled.
///
/// The identifiers of a channel [with a reaper](crate::EventChannel::set_reaper) are destroyed there, and so are the endpoints of
/// a [builder](crate::EndpointBuilder::reaper) with one: their drop does not wait. Other values are handed over by
/// [`destroy`](Self::destroy).
///
/// A peer controls how often a destruction takes long, by connecting and disconnecting. So at most 16 threads destroy,
/// further values queue, and listeners and event loops reject connection requests while the queue
/// [is long](Self::is_overloaded). Identifiers dropped meanwhile are destroyed by the dropping thread. Threads exit without work.
/// Clones share queue and threads. Values pending at the end of the process are the kernel's to release.
///
/// # Examples
/// ```
/// # let _server = doctest::server();
/// use std::time::Duration;
/// let reaper = cm::Reaper::default();
/// let endpoint = cm::EndpointBuilder::new().reaper(&reaper).connect("10.9.0.1:7471")?;
/// drop(endpoint); // does not wait for the connection manager
/// assert!(reaper.wait(Duration::from_secs(60)), "everything is destroyed");
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Reaper(Arc<ReaperShared>);

impl fmt::Debug for Reaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaper").finish_non_exhaustive()
    }
}

impl Reaper {
    /// Drops a value, such as a [`ConnectRequest`](crate::ConnectRequest), in a background thread. Blocks only if no thread
    /// can be spawned.
    pub fn destroy(&self, what: impl Send + 'static) {
        self.run(move || drop(what));
    }

    /// Makes a call in a background thread. Blocks only if no thread can be spawned.
    pub fn run(&self, task: impl FnOnce() + Send + 'static) {
        let mut work = self.0.lock();
        work.queue.push_back(Box::new(task));
        if work.threads >= MAX_THREADS {
            return;
        }
        work.threads += 1;
        drop(work);
        let shared = Arc::clone(&self.0);
        let run = move || {
            while let Some(task) = shared.next() {
                // A panic would take a thread off for ever.
                survive(task);
            }
        };
        if verbs::signals::spawn_without_signals("cm-reaper", run.clone()).is_err() {
            run();
        }
    }

    /// Whether new connections should be rejected: 1024 values or more are queued.
    pub fn is_overloaded(&self) -> bool {
        self.0.lock().queue.len() >= MAX_QUEUED
    }

    /// Blocks until everything is destroyed, at most for `timeout`. Returns whether it is. On timeout, the threads continue.
    pub fn wait(&self, timeout: Duration) -> bool {
        let is_busy = |work: &mut ReaperWork| work.threads > 0;
        let waited = self
            .0
            .ended
            .wait_timeout_while(self.0.lock(), timeout, is_busy);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::resume_unwind,
        sync::{
            atomic::{AtomicUsize, Ordering::SeqCst},
            mpsc::{self, Receiver, RecvTimeoutError},
        },
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
    fn reaper_wait_times_out_on_slow_values() {
        let ended = Arc::new(AtomicUsize::new(0));
        let reaper = Reaper::default();
        let (release, released) = mpsc::channel();
        let (ends, destroyed) = mpsc::channel();
        reaper.destroy(());
        reaper.destroy((Slow(released, Arc::clone(&ended)), ends));
        assert!(!reaper.wait(Duration::from_millis(1)));
        // The value is still destroyed after the timeout.
        release.send(()).unwrap();
        let end: Result<(), _> = destroyed.recv_timeout(TEST_TIMEOUT);
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
        assert_eq!(ended.load(SeqCst), 1);
        assert!(reaper.wait(TEST_TIMEOUT), "it is not waited for twice");
    }

    /// Panics in `drop`, without a report.
    struct Panicking;

    impl Drop for Panicking {
        fn drop(&mut self) {
            resume_unwind(Box::new(()));
        }
    }

    #[test]
    fn panic_of_a_destructor_takes_no_thread_off() {
        let ended = Arc::new(AtomicUsize::new(0));
        let reaper = Reaper::default();
        (0..2 * MAX_THREADS).for_each(|_| reaper.destroy(Panicking));
        let (release, released) = mpsc::channel();
        reaper.destroy(Slow(released, Arc::clone(&ended)));
        release.send(()).unwrap();
        assert!(reaper.wait(TEST_TIMEOUT));
        assert_eq!(ended.load(SeqCst), 1);
    }

    #[test]
    fn reaper_threads_are_bounded_and_queue_is_drained() {
        const MANY: usize = MAX_QUEUED + MAX_THREADS;
        let ended = Arc::new(AtomicUsize::new(0));
        let reaper = Reaper::default();
        let (release, released): (Vec<_>, Vec<_>) = (0..MANY).map(|_| mpsc::channel()).unzip();
        for (i, released) in released.into_iter().enumerate() {
            assert!(i >= MAX_QUEUED || !reaper.is_overloaded(), "by {i}");
            reaper.destroy(Slow(released, Arc::clone(&ended)));
            assert!(reaper.0.lock().threads <= MAX_THREADS);
        }
        assert!(reaper.is_overloaded());
        for release in &release {
            release.send(()).unwrap();
        }
        while ended.load(SeqCst) < MANY {
            thread::yield_now();
        }
        assert!(!reaper.is_overloaded());
        // Threads that exit make room for others.
        let (release, released) = mpsc::channel();
        reaper.destroy(Slow(released, Arc::clone(&ended)));
        release.send(()).unwrap();
        assert!(reaper.wait(TEST_TIMEOUT));
        assert_eq!(ended.load(SeqCst), MANY + 1);
    }
}
