//! What the connection manager knows of the device, once there is one.

use std::sync::PoisonError;

use verbs::{Context, Error, Result};

use crate::{
    id::CmId,
    phases::{HasDevice, IdPhase},
};

impl<P: IdPhase> CmId<P> {
    /// The device of the local address, open, if it is known: it is when the identifier has been
    /// [bound](CmId::bind) to an address of one device.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn bound_context(&self) -> Result<Option<Context>> {
        // SAFETY: the identifier exists (invariant). `verbs` is written by calls that need the
        // identifier for themselves, and by events while it is parked.
        let verbs = unsafe { (*self.as_raw()).verbs };
        if verbs.is_null() {
            return Ok(None);
        }
        let mut contexts = self
            .raw()
            .channel()
            .contexts
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        contexts.find(verbs).map(Some)
    }
}

impl<P: HasDevice> CmId<P> {
    /// The device that the connection goes through, open. It is the same one for every identifier
    /// of that device.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn context(&self) -> Result<Context> {
        self.bound_context()?.ok_or_else(|| {
            Error::from_errno("rdma_get_devices", libc::ENODEV).detail("the identifier has none")
        })
    }

    /// The port of the device, counting from 1.
    pub fn port_num(&self) -> u8 {
        // SAFETY: the identifier exists (invariant), and `port_num` is set before the phase is
        // reached.
        unsafe { (*self.as_raw()).port_num }
    }
}
