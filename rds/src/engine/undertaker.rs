//! Where identifiers of ended connections are destroyed.
//!
//! The kernel waits for its own messages about a connection before it lets go of the identifier. Now and
//! then that is a minute, in which Linux 6.1 repeats one that it has meant to withdraw. Nobody else is to
//! wait for that, so each is destroyed by a thread of its own.

use std::thread::JoinHandle;

/// The threads that destroy something.
#[derive(Debug, Default)]
pub(crate) struct Undertaker {
    threads: Vec<JoinHandle<()>>,
}

impl Undertaker {
    /// Destroys something. Does not block, if there is a thread to be had.
    pub(crate) fn destroy(&mut self, what: impl Send + 'static) {
        self.threads.retain(|thread| !thread.is_finished());
        // Without a thread, it is dropped here.
        let thread = verbs::spawn_without_signals("rds-end", move || drop(what));
        self.threads.extend(thread);
    }

    /// Waits until everything is destroyed.
    pub(super) fn wait(&mut self) {
        for thread in self.threads.drain(..) {
            // It does not panic, and if it did, there would be nothing to be done here.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc::{self, Receiver},
    };
    use std::thread;

    use super::*;

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
        let mut undertaker = Undertaker::default();
        let (tell, may): (Vec<_>, Vec<_>) = (0..3).map(|_| mpsc::channel()).unzip();
        for may in may {
            undertaker.destroy(Slow(may, Arc::clone(&ended)));
        }
        assert_eq!(ended.load(SeqCst), 0);
        // In any order.
        for tell in tell.iter().rev() {
            tell.send(()).unwrap();
        }
        undertaker.wait();
        assert_eq!(ended.load(SeqCst), 3);
    }

    #[test]
    fn threads_that_are_done_are_forgotten() {
        let mut undertaker = Undertaker::default();
        for _ in 0..100 {
            undertaker.destroy(());
            while !undertaker.threads.iter().all(JoinHandle::is_finished) {
                thread::yield_now();
            }
        }
        assert_eq!(undertaker.threads.len(), 1);
    }
}
