//! Preparation of guests in the background: kernels of User-Mode Linux are built at the lowest priority.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget};

use crate::backend::{self, Backend};
use crate::boot::kernel::Source;

/// Whether the progress bar of a build is drawn.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    is_drawn: Arc<AtomicBool>,
}

impl Progress {
    /// A bar in the foreground.
    pub(crate) fn drawn() -> Self {
        Self {
            is_drawn: Arc::new(AtomicBool::new(true)),
        }
    }

    /// A bar of `steps`, not drawn before the first [`advance`](Self::advance) in the foreground.
    pub(crate) fn bar(steps: u64) -> ProgressBar {
        ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden())
    }

    /// Advances `bar` by one step.
    pub(crate) fn advance(&self, bar: &ProgressBar) {
        if bar.is_hidden() && self.is_drawn.load(Relaxed) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.inc(1);
    }
}

/// Kernels being prepared by a thread of the lowest priority, for tests that start guests later.
#[derive(Debug)]
pub struct Preparation {
    prepared: Receiver<Result<Backend>>,
    progress: Progress,
}

impl Preparation {
    /// Starts the preparation of `kernels` for `backend`, in this order; see [`backend::prepare_for_many_runs`]. Installs the
    /// packages of the build first.
    ///
    /// # Errors
    ///
    /// The packages cannot be installed, or the thread cannot be started.
    pub fn start(backend: Backend, kernels: Vec<Source>) -> Result<Self> {
        for kernel in &kernels {
            backend::install_for_many_runs(backend, kernel)?;
        }
        let (sender, prepared) = mpsc::channel();
        let progress = Progress {
            is_drawn: Arc::new(AtomicBool::new(false)),
        };
        let of_thread = progress.clone();
        let prepare = move || {
            // Of this thread, and of the processes that it starts. Without the right, the build has the usual priority.
            let _usual_priority = rustix::process::nice(19);
            for kernel in &kernels {
                let result = backend::prepare(backend, kernel, &of_thread);
                if sender.send(result).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("preparation".to_owned())
            .spawn(prepare)
            .context("cannot start a thread")?;
        Ok(Self { prepared, progress })
    }

    /// Blocks until the next kernel is prepared, with a progress bar on a terminal. Returns the backend of guests with this
    /// kernel.
    ///
    /// # Errors
    ///
    /// As for [`backend::prepare_for_many_runs`]; or all kernels have been returned.
    pub fn next(&self) -> Result<Backend> {
        self.progress.is_drawn.store(true, Relaxed);
        let result = self.prepared.recv();
        self.progress.is_drawn.store(false, Relaxed);
        result.context("no kernel is being prepared")?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_returned_once_each() {
        // QEMU's kernels need no preparation.
        let kernels = vec![Source::Distribution; 2];
        let preparation = Preparation::start(Backend::Qemu, kernels).unwrap();
        for _ in 0..2 {
            assert_eq!(preparation.next().unwrap(), Backend::Qemu);
        }
        assert!(preparation.next().is_err());
    }
}
