//! Changing completion queues: their size, and the moderation of notifications.

use std::{
    io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use ibverbs_sys as ffi;

use super::queue::{CompletionQueue, CqHandle};
use crate::{
    error::{Error, Result, cvt_errno},
    hint,
    quirk::{self, keeps_size},
    waiting::notifier::Requested,
};

/// The resizes of a queue, and their failure.
///
/// After a failure the queue may have no memory, and no call but the destruction is made.
#[derive(Debug, Default)]
pub(super) struct Resizes {
    running: Mutex<()>,
    failed: AtomicBool,
}

/// Excludes resizes.
pub(super) struct Resizing<'a> {
    resizes: &'a Resizes,
    _running: MutexGuard<'a, ()>,
}

impl Resizes {
    /// Waits for the end of a resize, and excludes others.
    pub(super) fn start(&self) -> Resizing<'_> {
        let running = self.running.lock();
        Resizing {
            resizes: self,
            _running: running.unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Resizing<'_> {
    pub(super) fn has_failed(&self) -> bool {
        self.resizes.failed.load(Ordering::Relaxed)
    }

    fn fail(&self) {
        self.resizes.failed.store(true, Ordering::Relaxed);
    }
}

impl CompletionQueue {
    /// `ibv_resize_cq(cq, cqe)`—Makes the queue larger or smaller: to at least `cqe` entries. Enters
    /// the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: queue pairs have reserved more than `cqe` entries.
    /// - `EINVAL`: no entries at all, more than the device allows, or fewer than there are
    ///   completions to be polled.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device does not support resizing.
    /// - `Unsupported`: the device's provider frees the queue when a resize fails (`bnxt_re`).
    ///
    /// The queue is unchanged then. After any other error, such as `ENOMEM`, the device may have
    /// begun to resize the queue, and the queue has failed: completions polled earlier return, and
    /// every later poll, notification request, and queue pair on the queue is refused with
    /// `BrokenPipe`. Drop the queue and its queue pairs, and create new ones.
    ///
    /// # References
    /// [ibv_resize_cq(3)](https://man7.org/linux/man-pages/man3/ibv_resize_cq.3.html)
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, cqe: u32) -> Result<()> {
        // A provider may forget the request.
        self.requested = Requested::default();
        // SAFETY: `self` is borrowed exclusively, and nothing but this resizes the queue.
        let resized = unsafe { self.handle().resize(cqe) };
        if self.check_failure("ibv_resize_cq").is_err() {
            self.refuse_polls();
        }
        resized
    }
}

#[cold]
fn failed(call: &'static str) -> Error {
    let reason = "an earlier `ibv_resize_cq` failed, and may have left the queue without memory; \
                  drop the queue and its queue pairs, and create new ones";
    Error::refused(call, io::ErrorKind::BrokenPipe, reason)
}

impl CqHandle {
    /// Refuses `call` after a failed resize.
    #[inline]
    pub(super) fn check_failure(&self, call: &'static str) -> Result<()> {
        match self.resizes().failed.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(failed(call)),
        }
    }

    /// # Safety
    /// - The queue is not resized concurrently.
    pub(super) unsafe fn resize(&self, cqe: u32) -> Result<()> {
        let detail = |err: Error| {
            let err = err.detail(format!("{cqe} entries"));
            hint::limits::cq(err, self.context(), cqe, 0)
        };
        const CALL: &str = "ibv_resize_cq";
        self.context().check_process(CALL)?;
        self.check_failure(CALL).map_err(detail)?;
        if quirk::failed_resize_frees_queue(self.context())? {
            let reason = "the provider frees the queue if the kernel refuses; create a larger one";
            let refused = Error::refused(CALL, io::ErrorKind::Unsupported, reason);
            return Err(detail(refused));
        }
        let account = self.account();
        let before = account.capacity();
        account.shrink(cqe).map_err(detail)?;
        let as_int = i32::try_from(cqe).unwrap_or(i32::MAX);
        let resizing = self.resizes().start();
        // SAFETY: the queue exists for as long as `self` lives, and no earlier resize has failed. The
        // device keeps the completions in the queue. After a failure, no call but the destruction
        // uses the queue, unless the error is one of `keeps_size`.
        let errno = unsafe { ffi::ibv_resize_cq(self.as_raw(), as_int) };
        let resized = cvt_errno(CALL, errno).map_err(detail);
        if errno != 0 && !keeps_size(errno) {
            resizing.fail();
        }
        let now = match resized {
            Ok(()) => {
                // SAFETY: the queue exists; only resizing writes the number, and no other resize
                // runs now.
                let cqe = unsafe { (*self.as_raw()).cqe };
                cqe.try_into().unwrap_or(0)
            }
            Err(_) => before,
        };
        account.set_capacity(now);
        resized
    }

    /// `ibv_modify_cq(cq, IBV_CQ_ATTR_MODERATE)`—Delays events until `count` completions, or for
    /// `period` microseconds, whichever comes first. Enters the kernel.
    ///
    /// [`DeviceAttr::cq_mod_caps`](crate::attr::DeviceAttr::cq_mod_caps) has the device's maxima.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support moderation.
    /// - `EINVAL`: more than the device allows.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// let cq = ctx.cq_builder(64).waitable().create()?;
    /// cq.moderate(16, 10)?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_modify_cq(3)](https://man7.org/linux/man-pages/man3/ibv_modify_cq.3.html)
    #[doc(alias = "IBV_CQ_ATTR_MODERATE")]
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, count: u16, period: u16) -> Result<()> {
        self.context().check_process("ibv_modify_cq")?;
        self.check_failure("ibv_modify_cq")?;
        let mut attr = ffi::ibv_modify_cq_attr::zeroed();
        attr.attr_mask = ffi::ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
        attr.moderate.cq_count = count;
        attr.moderate.cq_period = period;
        // SAFETY: the queue exists for as long as `self` lives. Assumption: C keeps no pointer to
        // the attributes.
        let errno = unsafe { ffi::ibv_modify_cq(self.as_raw(), &raw mut attr) };
        cvt_errno("ibv_modify_cq", errno)
            .map_err(|err| err.detail(format!("{count} completions, {period} µs")))
    }
}
