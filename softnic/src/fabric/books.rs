//! Counts of the objects of programs on hosts.

use std::{fmt, net::IpAddr};

use super::{limits::Resource, network::Network};

/// Counts of the objects of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostBooks {
    addr: IpAddr,
    /// Number of objects of each kind.
    objects: Vec<(&'static str, usize)>,
    registered_bytes: u64,
}

/// Objects created by programs on the hosts of a fabric and not destroyed: queue pairs, completion queues, shared
/// receive queues, protection domains, keys of regions and windows, and connection identifiers.
///
/// # Examples
/// ```
/// let fabric = softnic::Fabric::new();
/// let host = fabric.host("10.9.0.1".parse()?);
/// let ctx = host.run(|| verbs::devices()?.find("softnic0").unwrap().open())?;
/// let pd = ctx.alloc_pd()?;
/// assert_eq!(fabric.books().to_string(), "10.9.0.1: 1 protection domain");
/// drop(pd);
/// assert!(fabric.books().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    hosts: Vec<HostBooks>,
    locked_bytes: u64,
    descriptors: u64,
}

impl Books {
    pub(super) fn of(network: &Network) -> Self {
        let hosts = network.hosts.iter().map(|host| {
            let mut objects = host.engine.objects();
            objects.push(("connection identifier", host.manager.id_count()));
            objects.retain(|(_, count)| *count > 0);
            let addr = host.addrs.first().copied();
            HostBooks {
                addr: addr.unwrap_or(IpAddr::from([0; 4])),
                objects,
                registered_bytes: host.engine.registered_bytes(),
            }
        });
        let used = |resource| {
            let amounts = network
                .hosts
                .iter()
                .map(|host| host.accounts.used(resource));
            amounts.fold(0, u64::saturating_add)
        };
        Self {
            hosts: hosts.filter(|host| !host.objects.is_empty()).collect(),
            locked_bytes: used(Resource::LockedMemory),
            descriptors: used(Resource::Descriptors),
        }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        let objects = self.hosts.iter().flat_map(|host| &host.objects);
        objects.map(|(_, count)| count).sum()
    }

    /// Sum of the lengths of the registered memory regions, in bytes. Memory registered twice counts twice.
    ///
    /// ```
    /// let fabric = softnic::Fabric::new();
    /// let host = fabric.host("10.9.0.1".parse()?);
    /// let ctx = host.run(|| verbs::devices()?.find("softnic0").unwrap().open())?;
    /// let pd = ctx.alloc_pd()?;
    /// let _large = pd.register_buf([0; 4096])?;
    /// let small = pd.register_buf([0; 100])?;
    /// assert_eq!(fabric.books().registered_bytes(), 4196);
    /// drop(small);
    /// assert_eq!(fabric.books().registered_bytes(), 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn registered_bytes(&self) -> u64 {
        let bytes = self.hosts.iter().map(|host| host.registered_bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Number of bytes locked for the devices, as limited by
    /// [`Limits::locked_memory`](crate::Limits::locked_memory).
    pub fn locked_bytes(&self) -> u64 {
        self.locked_bytes
    }

    /// Number of descriptors of channels and contexts, as limited by
    /// [`Limits::descriptors`](crate::Limits::descriptors). Contexts are no objects of the books: a context may stay open
    /// until the end of the process.
    pub fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// Whether no object exists.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }
}

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, host) in self.hosts.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}: ", host.addr)?;
            for (index, (kind, count)) in host.objects.iter().enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                let plural = if *count == 1 { "" } else { "s" };
                write!(f, "{separator}{count} {kind}{plural}")?;
            }
        }
        Ok(())
    }
}
