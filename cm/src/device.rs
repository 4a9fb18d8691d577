//! What the connection manager knows of the device, once there is one.

use std::sync::PoisonError;

use verbs::{Context, Result};

use crate::{id::CmId, phases::HasDevice};

impl<P: HasDevice> CmId<P> {
    /// The device that the connection goes through, open. It is the same one for every identifier
    /// of that device.
    ///
    /// # Errors
    /// - `ENODEV`: the device has been removed.
    pub fn context(&self) -> Result<Context> {
        // SAFETY: the identifier exists (invariant), and `verbs` is set before the phase is
        // reached.
        let verbs = unsafe { (*self.as_raw()).verbs };
        self.raw()
            .channel()
            .contexts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .find(verbs)
    }

    /// The port of the device, counting from 1.
    pub fn port_num(&self) -> u8 {
        // SAFETY: the identifier exists (invariant), and `port_num` is set before the phase is
        // reached.
        unsafe { (*self.as_raw()).port_num }
    }
}
