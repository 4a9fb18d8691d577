//! Devices in use, and the protection domains that separate connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs::{Context, ProtectionDomain};

/// A device, and the protection domain that datagram sockets share on it.
///
/// No peer can write to memory of that domain: it has no reliable connection, and no remote key.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) datagrams: ProtectionDomain,
    /// Maximum number of requests in a queue.
    pub(crate) max_qp_wr: u32,
    /// Maximum number of completions in a completion queue.
    pub(crate) max_cqe: u32,
}

impl Device {
    pub(crate) fn context(&self) -> &Context {
        self.datagrams.context()
    }
}

/// The devices that this process has used.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    known: Mutex<Vec<Device>>,
    /// Groups with a domain on any of them.
    groups: Mutex<Vec<Weak<Mutex<Vec<ProtectionDomain>>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Devices {
    /// Returns the device of a context, and its limits.
    pub(crate) fn of(&self, ctx: &Context) -> verbs::Result<Device> {
        let mut known = lock(&self.known);
        let found = known.iter().find(|device| device.context() == ctx);
        if let Some(device) = found {
            return Ok(device.clone());
        }
        let attr = ctx.query_device()?;
        let device = Device {
            datagrams: ctx.alloc_pd()?,
            max_qp_wr: attr.max_qp_wr(),
            max_cqe: attr.max_cqe(),
        };
        known.push(device.clone());
        Ok(device)
    }

    /// Returns the domain for one more connection on a device: that of its group, or a new one without a group.
    pub(crate) fn domain(
        &self,
        device: &Device,
        group: Option<&ProtectionGroup>,
    ) -> verbs::Result<ProtectionDomain> {
        let ctx = device.context();
        let Some(group) = group else {
            return ctx.alloc_pd();
        };
        let mut domains = lock(&group.domains);
        if let Some(pd) = domains.iter().find(|pd| pd.context() == ctx) {
            return Ok(pd.clone());
        }
        let pd = ctx.alloc_pd()?;
        domains.push(pd.clone());
        drop(domains);
        let mut groups = lock(&self.groups);
        groups.retain(|known| known.strong_count() > 0);
        groups.push(Arc::downgrade(&group.domains));
        Ok(pd)
    }

    /// Forgets a device that is gone, so that it can be closed.
    pub(crate) fn forget(&self, ctx: &Context) {
        lock(&self.known).retain(|device| device.context() != ctx);
        for domains in lock(&self.groups).iter().filter_map(Weak::upgrade) {
            lock(&domains).retain(|pd| pd.context() != ctx);
        }
    }
}

/// Connections whose peers trust each other.
///
/// A connection has a protection domain of its own, so that a peer can write only to the memory of its own
/// connection, also if it knows or guesses the remote key of another one. That costs an `ibv_alloc_pd` and an
/// `ibv_dealloc_pd` for each connection. Connections with [`Options::protection_group`] share one domain on each
/// device instead: **each peer of the group can write into the streams of all others.** Use it where all peers are one
/// program, or where the device has fewer protection domains than the program has connections.
///
/// It is a handle: its clones are the same group.
///
/// [`Options::protection_group`]: crate::Options::protection_group
///
/// # Examples
/// ```no_run
/// use rsocket::{Options, ProtectionGroup};
///
/// let workers = ProtectionGroup::new();
/// let listener = Options::new().protection_group(&workers).bind("10.9.0.1:7471")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProtectionGroup {
    /// One for each device that a connection of the group has used.
    domains: Arc<Mutex<Vec<ProtectionDomain>>>,
}

impl ProtectionGroup {
    /// Creates a group without connections. Allocates nothing on any device.
    pub fn new() -> Self {
        Self::default()
    }
}
