//! One protection domain for each device, shared by all sockets.

use std::sync::{Mutex, PoisonError};

use verbs::{Context, ProtectionDomain};

/// The domains of the devices that have been used.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    known: Mutex<Vec<ProtectionDomain>>,
}

impl Domains {
    /// The domain of this device.
    pub(crate) fn of(&self, ctx: &Context) -> verbs::Result<ProtectionDomain> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pd) = known.iter().find(|pd| pd.context() == ctx) {
            return Ok(pd.clone());
        }
        let pd = ctx.alloc_pd()?;
        known.push(pd.clone());
        Ok(pd)
    }

    /// Forgets a device that is gone.
    pub(crate) fn forget(&self, ctx: &Context) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|pd| pd.context() != ctx);
    }
}
