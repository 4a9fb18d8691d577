//! Moving an identifier from one event channel to another.

use std::{ptr, sync::Arc};

use rdmacm_sys as ffi;
use verbs::{Result, error::cvt_neg};

use crate::{channel::EventChannel, id::CmId, phases::IdPhase};

impl<P: IdPhase> CmId<P> {
    /// `rdma_migrate_id`—Moves the identifier to another channel, which its events come from after
    /// this, even those that had come and were not taken. Its key stays the same.
    ///
    /// Waits for threads that are taking an event from either channel, which never takes long.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// The identifier is where it was, then.
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
        // No event is read meanwhile, on either channel: a request that came to a listener would be
        // of neither. The order is the same for everybody, so two threads do not wait for each
        // other.
        let (first, second) = if ptr::from_ref(&*from) < ptr::from_ref(&**to) {
            (&from, to)
        } else {
            (to, &from)
        };
        let _first = first.intake();
        let _second = second.intake();
        // SAFETY: the identifier exists for as long as `self` lives, and the channel is open for as
        // long as `to` is. Every event that has been read is acknowledged, since nobody else holds
        // the two locks, so this does not wait for one.
        let ret = unsafe { ffi::rdma_migrate_id(self.as_raw(), to.as_ptr()) };
        cvt_neg("rdma_migrate_id", ret)?;
        let key = self.key();
        let groups = from.registry().groups(key);
        drop(from.registry().remove(key));
        to.registry().adopt(key, P::PHASE.0, groups);
        self.raw_mut().set_channel(Arc::clone(to));
        Ok(())
    }
}
