//! Where identifiers of ended connections are destroyed.
//!
//! The kernel waits for its own messages about a connection before it lets go of the identifier. Now and
//! then that is more than a minute, in which Linux 6.1 repeats one that it should have withdrawn: its answer to
//! a request, if it is told that the peer talks (`rdma_notify`), and the connection ends before it has got
//! round to that. Nothing else is to wait for it, so identifiers are destroyed by threads of their own. A peer that
//! connects and disconnects makes as many of them as it likes: so there are few threads, the rest waits in a queue, and
//! while that is long, requests of peers are refused.

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

/// How long the end of everything waits for what is slow to end, and then goes on without.
pub(super) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of threads that destroy something.
const MAX_THREADS: usize = 16;

/// Number of ended connections in the queue from which on no more are accepted.
const MAX_QUEUED: usize = 1024;

/// What waits for a thread, and how many threads there are.
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

/// The next in the queue for a thread that is done with another; without one, the thread ends.
fn next(work: &Mutex<Work>) -> Option<Box<dyn Send>> {
    let mut work = lock(work);
    let next = work.queue.pop_front();
    if next.is_none() {
        work.threads -= 1;
    }
    next
}

/// The threads that destroy something.
#[derive(Debug)]
pub(crate) struct Reaper {
    threads: Vec<JoinHandle<()>>,
    work: Arc<Mutex<Work>>,
    /// Each thread has the same, and lets go of it when it is done.
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
    /// Destroys something. Does not block, if there is a thread to be had.
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
        // Without a thread, it is dropped here.
        let thread = verbs::spawn_without_signals("rds-end", move || {
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

    /// Whether so much waits to be destroyed that nothing should begin that has to be.
    pub(super) fn is_overloaded(&self) -> bool {
        lock(&self.work).queue.len() >= MAX_QUEUED
    }

    /// Destroys an identifier that waits for an event, in the same way.
    pub(super) fn cancel(&mut self, channel: &Arc<EventChannel>, key: Key) {
        self.destroy(Waiting {
            channel: Arc::clone(channel),
            key,
        });
    }

    /// Waits until everything is destroyed, but not longer than `patience`. Returns whether it is; what is not
    /// will be.
    pub(super) fn wait(&mut self, patience: Duration) -> bool {
        let Self {
            threads,
            at_work,
            done,
            work: _,
        } = mem::take(self);
        drop(at_work);
        // Nothing is ever sent.
        if done.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            return false;
        }
        for thread in threads {
            // It does not panic, and if it did, there would be nothing to be done here.
            drop(thread.join());
        }
        true
    }
}

/// An identifier that waits for an event. If that comes first, it is destroyed by who takes the event.
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

    /// Longer than anything here takes.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// Is not destroyed before it may be.
    struct Slow(Receiver<()>, Arc<AtomicUsize>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.recv().unwrap();
            self.1.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn nobody_waits_for_what_is_slow_to_end() {
        let ended = Arc::new(AtomicUsize::new(0));
        let mut reaper = Reaper::default();
        let (tell, may): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel()).unzip();
        for may in may {
            reaper.destroy(Slow(may, Arc::clone(&ended)));
        }
        assert_eq!(ended.load(SeqCst), 0);
        // In any order.
        for tell in tell.iter().rev() {
            tell.send(()).unwrap();
        }
        assert!(reaper.wait(TEST_TIMEOUT));
        assert_eq!(ended.load(SeqCst), 3);
    }

    #[test]
    fn the_end_waits_for_so_long_and_no_longer() {
        let ended = Arc::new(AtomicUsize::new(0));
        let mut reaper = Reaper::default();
        let (tell, may) = mpsc::channel();
        let (is_over, over) = mpsc::channel();
        reaper.destroy(());
        reaper.destroy((Slow(may, Arc::clone(&ended)), is_over));
        assert!(!reaper.wait(Duration::from_millis(1)));
        // It is still destroyed, when it can be.
        tell.send(()).unwrap();
        let over: Result<(), _> = over.recv_timeout(TEST_TIMEOUT);
        assert_eq!(over, Err(RecvTimeoutError::Disconnected));
        assert_eq!(ended.load(SeqCst), 1);
        assert!(reaper.wait(TEST_TIMEOUT), "it is not waited for twice");
    }

    #[test]
    fn slow_ends_take_few_threads_and_are_all_done() {
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
        // Threads that have ended make room for others.
        let (tell, may) = mpsc::channel();
        reaper.destroy(Slow(may, Arc::clone(&ended)));
        tell.send(()).unwrap();
        assert!(reaper.wait(TEST_TIMEOUT));
        assert_eq!(ended.load(SeqCst), MANY + 1);
    }

    #[test]
    fn threads_that_are_done_are_forgotten() {
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
