//! Changing completion queues: their size, and the moderation of notifications.

use ibverbs_sys as ffi;

use super::queue::{CompletionQueue, CqHandle};
use crate::{
    error::{Error, Result, cvt_errno},
    hint,
};

impl CompletionQueue {
    /// `ibv_resize_cq(cq, cqe)`—Makes the queue larger or smaller: to at least `cqe` entries. Enters
    /// the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: queue pairs have reserved more than `cqe` entries.
    /// - `EINVAL`: no entries at all, more than the device allows, or fewer than there are
    ///   completions to be polled.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device does not support resizing.
    ///
    /// The queue is unchanged then.
    ///
    /// # References
    /// [ibv_resize_cq(3)](https://man7.org/linux/man-pages/man3/ibv_resize_cq.3.html)
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(&mut self, cqe: u32) -> Result<()> {
        // SAFETY: `self` is borrowed exclusively, and nothing but this resizes the queue.
        unsafe { self.handle().resize(cqe) }
    }
}

impl CqHandle {
    /// # Safety
    /// - The queue is not resized concurrently.
    pub(super) unsafe fn resize(&self, cqe: u32) -> Result<()> {
        let detail = |err: Error| {
            let err = err.detail(format!("{cqe} entries"));
            hint::limits::cq(err, self.context(), cqe, 0)
        };
        self.context().check_process("ibv_resize_cq")?;
        let room = self.room();
        let before = room.capacity();
        room.shrink(cqe).map_err(detail)?;
        let as_int = i32::try_from(cqe).unwrap_or(i32::MAX);
        // SAFETY: the queue exists for as long as `self` lives. The device keeps the completions in
        // the queue.
        let errno = unsafe { ffi::ibv_resize_cq(self.as_raw(), as_int) };
        let resized = cvt_errno("ibv_resize_cq", errno).map_err(detail);
        let now = match resized {
            Ok(()) => {
                // SAFETY: the queue exists; only resizing writes the number, and no other resize
                // runs now.
                let cqe = unsafe { (*self.as_raw()).cqe };
                cqe.try_into().unwrap_or(0)
            }
            Err(_) => before,
        };
        room.set_capacity(now);
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
        let mut attr = ffi::ibv_modify_cq_attr::zeroed();
        attr.attr_mask = ffi::ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0;
        attr.moderate.cq_count = count;
        attr.moderate.cq_period = period;
        // SAFETY: the queue exists for as long as `self` lives; C keeps no pointer to the
        // attributes.
        let errno = unsafe { ffi::ibv_modify_cq(self.as_raw(), &raw mut attr) };
        cvt_errno("ibv_modify_cq", errno)
            .map_err(|err| err.detail(format!("{count} completions, {period} µs")))
    }
}
