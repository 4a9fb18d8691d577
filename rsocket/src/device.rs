//! One protection domain for each device, shared by all sockets.

use std::sync::{Mutex, PoisonError};

use verbs::{Context, ProtectionDomain};

/// The protection domain of a device, and what is to be known of it for every connection.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) pd: ProtectionDomain,
    /// How many requests a queue can have at most.
    pub(crate) max_qp_wr: u32,
    /// How many completions a completion queue can have at most.
    pub(crate) max_cqe: u32,
}

/// The domains of the devices that have been used.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    known: Mutex<Vec<Domain>>,
}

impl Domains {
    /// The domain of this device.
    pub(crate) fn of(&self, ctx: &Context) -> verbs::Result<Domain> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domain) = known.iter().find(|domain| domain.pd.context() == ctx) {
            return Ok(domain.clone());
        }
        let attr = ctx.query_device()?;
        let domain = Domain {
            pd: ctx.alloc_pd()?,
            max_qp_wr: attr.max_qp_wr(),
            max_cqe: attr.max_cqe(),
        };
        known.push(domain.clone());
        Ok(domain)
    }

    /// Forgets a device that is gone.
    pub(crate) fn forget(&self, ctx: &Context) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|domain| domain.pd.context() != ctx);
    }
}
