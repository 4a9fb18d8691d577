//! Devices in use, and the protection domains separating connections.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use verbs::{Context, ProtectionDomain};

/// A device and its protection domain for datagram sockets.
///
/// Datagram sockets share the domain safely: without reliable connections and remote keys, no peer can write
/// to its memory.
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

/// Devices used by this process.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    used: Mutex<Vec<Device>>,
    /// Protection groups with a domain on any device.
    groups: Mutex<Vec<Weak<Mutex<Vec<ProtectionDomain>>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Devices {
    /// Returns the device of a context with its limits, cached after the first query.
    pub(crate) fn of(&self, ctx: &Context) -> verbs::Result<Device> {
        let mut used = lock(&self.used);
        let found = used.iter().find(|device| device.context() == ctx);
        if let Some(device) = found {
            return Ok(device.clone());
        }
        // No event reports the removal of a device without identifiers.
        used.retain(|device| device.context().query_device().is_ok());
        let attr = ctx.query_device()?;
        let device = Device {
            datagrams: ctx.alloc_pd()?,
            max_qp_wr: attr.max_qp_wr(),
            max_cqe: attr.max_cqe(),
        };
        used.push(device.clone());
        Ok(device)
    }

    /// Returns the protection domain for a new connection: the domain of its group, or a new one without a
    /// group.
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
        groups.retain(|group| group.strong_count() > 0);
        groups.push(Arc::downgrade(&group.domains));
        Ok(pd)
    }

    /// Drops all domains of a removed device, so that the device can be closed.
    pub(crate) fn forget(&self, ctx: &Context) {
        lock(&self.used).retain(|device| device.context() != ctx);
        for domains in lock(&self.groups).iter().filter_map(Weak::upgrade) {
            lock(&domains).retain(|pd| pd.context() != ctx);
        }
    }
}

/// Connections that share one protection domain per device, for peers that trust each other.
///
/// By default, each connection has its own protection domain: a peer can write only to the memory of its own
/// connection, even with the remote key of another. The cost is one `ibv_alloc_pd` and one `ibv_dealloc_pd`
/// per connection. Connections with [`Options::protection_group`] share one domain on each device instead:
/// **each peer of the group can write into the streams of all others.** Use a group where all peers run the
/// same program, or where the device has fewer protection domains than the program has connections.
///
/// Clones are handles of the same group.
///
/// [`Options::protection_group`]: crate::Options::protection_group
///
/// # Examples
/// ```
/// # let _fabric = doctest::lasting_host();
/// use rsocket::{Options, ProtectionGroup};
///
/// let workers = ProtectionGroup::new();
/// let listener = Options::new().protection_group(&workers).listen("10.9.0.1:7471")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ProtectionGroup {
    /// One domain for each device used by the group.
    domains: Arc<Mutex<Vec<ProtectionDomain>>>,
}

impl ProtectionGroup {
    /// Creates a group without connections. Allocates nothing on any device.
    pub fn new() -> Self {
        Self::default()
    }
}
