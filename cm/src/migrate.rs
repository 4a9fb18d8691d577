//! Migration of identifiers between event channels.

use std::{ptr, sync::Arc};

use rdmacm_sys as ffi;
use verbs::{Result, error::cvt_neg};

use crate::{channel::EventChannel, id::CmId, phases::IdPhase};

impl<P: IdPhase> CmId<P> {
    /// `rdma_migrate_id`—Moves the identifier to another channel, for all later events and for pending unread
    /// ones. The key stays the same.
    ///
    /// Blocks while a thread reads an event from either channel, which takes microseconds.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// On an error the identifier stays on its channel.
    ///
    /// # References
    /// [rdma_migrate_id(3)](https://man7.org/linux/man-pages/man3/rdma_migrate_id.3.html)
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        let to = channel.handle();
        let from = Arc::clone(self.raw().channel());
        if Arc::ptr_eq(&from, to) {
            return Ok(());
        }
        // Excludes readers on both channels: a request arriving at a listener would belong to neither. The
        // lock order is fixed, so two threads cannot deadlock.
        let (first, second) = if ptr::from_ref(&*from) < ptr::from_ref(&**to) {
            (&from, to)
        } else {
            (to, &from)
        };
        let _first = first.dispatch_lock();
        let _second = second.dispatch_lock();
        // SAFETY: the identifier exists for as long as `self` lives, and the channel is open for as long as
        // `to` is. Both locks are held, and every event read has been acknowledged, so the call does not wait
        // for an acknowledgement.
        let ret = unsafe { ffi::rdma_migrate_id(self.as_raw(), to.as_ptr()) };
        cvt_neg("rdma_migrate_id", ret)?;
        let key = self.key();
        let groups = from.registry().groups(key);
        drop(from.registry().remove(key));
        to.registry().adopt(key, P::PHASE.0, groups);
        // SAFETY: the identifier exists. Assumption: librdmacm sets the device of an identifier
        // once.
        let device = unsafe { (*self.as_raw()).verbs };
        let context = from.contexts().cached(device);
        if let Some(context) = context {
            to.contexts().adopt(context);
        }
        self.raw_mut().set_channel(Arc::clone(to));
        #[cfg(feature = "tracing")]
        to.registry().set_span(key, self.span().clone());
        Ok(())
    }
}
