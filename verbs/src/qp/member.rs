//! Queue pairs destroyed at the end of a scope.

use std::{
    fmt, mem,
    ptr::NonNull,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs_sys as ffi;

use super::queues::Inner;
use crate::{
    cq::Queue,
    error::{Result, cvt_errno},
    pd::ProtectionDomain,
    quirk,
};

/// A scope's record of a queue pair.
pub(crate) struct Member {
    /// The queue pair, unless its handles have been dropped.
    // INVARIANT: no work of the queue pair is accessed through this reference.
    inner: Weak<dyn BindableEnds>,
    // INVARIANT: created, and destroyed if `destroyed` is set.
    raw: NonNull<ffi::ibv_qp>,
    destroyed: Destroyed,
    /// The completion queues of sends and receives.
    queues: [Queue; 2],
    /// Deallocated after the queue pair.
    pd: ProtectionDomain,
}

/// Whether a queue pair has been destroyed, shared by the queue pair and its scope.
#[derive(Clone, Debug, Default)]
pub(super) struct Destroyed(Arc<AtomicBool>);

impl Destroyed {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A queue pair, destroyable while handles remain.
trait BindableEnds {
    /// Destroys the queue pair, and leaves the work in place.
    ///
    /// # Safety
    /// - The queue pair has not been destroyed. Handles are neither used nor dropped afterwards.
    unsafe fn end(&self) -> Result<()>;
}

impl<SW, RW> BindableEnds for Inner<SW, RW> {
    unsafe fn end(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.destroy_raw() }
    }
}

// SAFETY: any thread may destroy the queue pair, and the works are not accessed.
unsafe impl Send for Member {}
// SAFETY: nothing can be done with a shared one but to look whether the queue pair exists.
unsafe impl Sync for Member {}

impl Member {
    /// Records a new queue pair, with its completion queues; `destroyed` reports its destruction.
    pub(super) fn new<'scope, SW: 'scope, RW: 'scope>(
        inner: &Arc<Inner<SW, RW>>,
        destroyed: Destroyed,
        queues: [Queue; 2],
    ) -> Self {
        let weak: Weak<dyn BindableEnds + 'scope> = Arc::downgrade(inner) as _;
        // SAFETY: only the works' lifetime changes, and the works are not accessed (invariant).
        // `end` leaves them in place, and dropping a `Weak` does not drop its target.
        let weak = unsafe {
            mem::transmute::<Weak<dyn BindableEnds + 'scope>, Weak<dyn BindableEnds>>(weak)
        };
        Self {
            inner: weak,
            raw: inner.raw,
            destroyed,
            queues,
            pd: inner.pd.clone(),
        }
    }

    /// Whether the queue pair has not been destroyed.
    pub(crate) fn exists(&self) -> bool {
        !self.destroyed.is_set()
    }

    /// Destroys the queue pair unless already destroyed, or inherited, and leaks the work.
    ///
    /// # Safety
    /// - This is the only call. No handle of the queue pair is used any more, nor dropped.
    pub(crate) unsafe fn end(&self) -> Result<()> {
        if !self.exists() || self.pd.context().is_inherited() {
            return Ok(());
        }
        if let Some(inner) = self.inner.upgrade() {
            // SAFETY: as the caller promises; the queue pair has not been destroyed.
            let ended = unsafe { inner.end() };
            #[expect(
                clippy::mem_forget,
                reason = "its handles were forgotten, and so is its work"
            )]
            mem::forget(inner);
            return ended;
        }
        let ctx = self.pd.context();
        let errno = if quirk::failed_destroy_frees_queues(ctx) {
            // No second call: only a removal has ended the queue pair since.
            libc::EIO
        } else {
            ctx.destroy(|| {
                // SAFETY: the queue pair exists: destroying it failed when its last handle was dropped.
                // Assumption: a failed destruction leaves the queue pair as it was. Its domain and its
                // completion queues exist, the latter since they were leaked then.
                unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) }
            })
        };
        let discard = || self.queues.iter().all(Queue::discard_completions);
        if ctx.is_removed(errno) && (!quirk::copies_messages(ctx) || discard()) {
            return Ok(());
        }
        cvt_errno("ibv_destroy_qp", errno)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("raw", &self.raw)
            .field("exists", &self.exists())
            .finish_non_exhaustive()
    }
}
