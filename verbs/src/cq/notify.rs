//! Events of completion queues.

use std::{io, sync::atomic::Ordering};

use ibverbs_sys as ffi;

use super::{
    channel::CompletionChannel,
    queue::{CompletionQueue, CqHandle},
};
use crate::{
    error::{Error, Result, cvt_errno},
    waiting::notifier::{NotifySource, Requested},
};

/// The condition of the event requested by [`CqHandle::req_notify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// With the next completion.
    Next,
    /// With the next completion of a receive that the sender marked as solicited, or that failed.
    Solicited,
}

impl CqHandle {
    /// `ibv_req_notify_cq`—Arms the queue for one event on its channel. Poll once more after this
    /// call, for earlier completions, and only then wait.
    ///
    /// # Errors
    /// - `Unsupported`: the queue has no channel.
    /// - `BrokenPipe`: a resize of the queue has failed.
    ///
    /// # References
    /// [ibv_req_notify_cq(3)](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html)
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, notify: Notify) -> Result<()> {
        let inner = &self.inner;
        inner.armed_by_program.store(true, Ordering::Release);
        let armed = self.arm(notify);
        inner.armed_by_program.store(true, Ordering::Release);
        armed
    }

    /// Takes the event of the queue's own channel if there is one, and returns whether there was. If the program has
    /// armed the queue by itself, there may be several events: takes all.
    fn take_event(&self, channel: &CompletionChannel) -> Result<bool> {
        let found = channel.try_next()?.is_some();
        if self.inner.armed_by_program.swap(false, Ordering::Acquire) {
            while channel.try_next()?.is_some() {}
        }
        Ok(found)
    }

    fn arm(&self, notify: Notify) -> Result<()> {
        self.check_failure("ibv_req_notify_cq")?;
        if self.inner.channel.is_none() {
            return Err(Error::refused(
                "ibv_req_notify_cq",
                io::ErrorKind::Unsupported,
                "the queue has no completion channel",
            ));
        }
        let solicited_only = i32::from(notify == Notify::Solicited);
        // SAFETY: the queue is created (invariant of `CqInner`). A resize may fail at the same time.
        // Assumption: arming a queue whose resize has failed does not access its memory.
        let ret = unsafe { ffi::ibv_req_notify_cq(self.as_raw(), solicited_only) };
        cvt_errno("ibv_req_notify_cq", ret)
    }

    /// As [`NotifySource::request`]: on the queue's own channel, if it has one.
    pub(super) fn request(
        &self,
        requested: &mut Requested,
        own_channel: Option<&CompletionChannel>,
    ) -> Result<bool> {
        let arm = || self.arm(Notify::Next);
        match own_channel {
            Some(channel) => requested.renew(|| self.take_event(channel), arm),
            // The owner of the channel takes the events.
            None => arm().map(|()| true),
        }
    }
}

impl NotifySource for CompletionQueue {
    type Error = Error;

    fn has_completions(&mut self) -> Result<bool> {
        self.fill()
    }

    fn request(&mut self) -> Result<bool> {
        (self.handle).request(&mut self.requested, self.own_channel.as_ref())
    }
}
