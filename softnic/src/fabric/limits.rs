//! Limits of a host: locked memory, descriptors and objects of the device, with their current use.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::card::Card;

/// Bytes of a page of the emulated host, equal on all machines, as are results of tests. Memory is locked by whole pages.
const PAGE_SIZE: u64 = 4096;

/// Default maximum number of objects of each kind.
const MAX_OBJECTS: u64 = 1 << 20;

/// A limited resource of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// Bytes of locked memory.
    LockedMemory,
    Descriptors,
    QueuePairs,
    CompletionQueues,
    MemoryRegions,
    MemoryWindows,
    ProtectionDomains,
    SharedReceiveQueues,
    AddressHandles,
}

/// Number of resources.
const RESOURCES: usize = 9;

impl Resource {
    /// Error number at the limit.
    const fn errno(self) -> i32 {
        match self {
            Self::Descriptors => libc::EMFILE,
            _ => libc::ENOMEM,
        }
    }
}

/// Limits of a host, as the limits of a service (`setrlimit(2)`) and of a device, for
/// [`Host::set_limits`](crate::Host::set_limits).
///
/// By default locked memory and descriptors are unlimited, and the device has up to 1,048,576 objects of each kind. At a
/// limit a call fails with `ENOMEM`, or for descriptors with `EMFILE`, and changes nothing. The attributes of the device
/// (`ibv_query_device`) report the limits of its objects.
///
/// # Examples
/// ```
/// use softnic::{Fabric, Limits};
/// let fabric = Fabric::new();
/// let host = fabric.host("10.9.0.1".parse()?);
/// host.set_limits(Limits::new().locked_memory(64 << 10).queue_pairs(16).descriptors(8));
///
/// let ctx = host.run(|| verbs::devices()?.find("softnic0").unwrap().open())?;
/// assert_eq!(ctx.query_device()?.max_qp(), 16);
/// let pd = ctx.alloc_pd()?;
/// let large = pd.alloc_buf(60 << 10)?;
/// let error = pd.alloc_buf(8 << 10).unwrap_err();
/// assert_eq!((error.call(), error.raw_os_error()), ("ibv_reg_mr", Some(libc::ENOMEM)));
/// drop(large);
/// pd.alloc_buf(1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "set them on a host"]
pub struct Limits([u64; RESOURCES]);

impl Default for Limits {
    fn default() -> Self {
        let mut limits = Self([MAX_OBJECTS; RESOURCES]);
        for unlimited in [Resource::LockedMemory, Resource::Descriptors] {
            limits.0[unlimited as usize] = u64::MAX;
        }
        limits
    }
}

impl Limits {
    /// Creates the default limits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The default limits, with those of a card.
    fn of_card(card: Option<Card>) -> Self {
        let Some(row) = card.map(Card::specification) else {
            return Self::default();
        };
        let srqs = row.srq.map_or(Some(0), |srq| srq.max_srq);
        let limits = [
            (Resource::QueuePairs, row.max_qp),
            (Resource::CompletionQueues, row.max_cq),
            (Resource::MemoryRegions, row.max_mr),
            (Resource::ProtectionDomains, row.max_pd),
            (Resource::SharedReceiveQueues, srqs),
            (Resource::AddressHandles, row.max_ah),
        ];
        let sourced = limits.into_iter().filter_map(|(of, max)| Some((of, max?)));
        sourced.fold(Self::default(), |limits, (of, max)| {
            limits.set(of, max.into())
        })
    }

    fn set(mut self, resource: Resource, limit: u64) -> Self {
        self.0[resource as usize] = limit;
        self
    }

    /// Sets the number of bytes locked for the device, as `RLIMIT_MEMLOCK`: the pages of each memory region, and the
    /// queues of QPs, CQs and SRQs, which drivers such as mlx5 allocate in user memory. The sizes of the queues are
    /// softnic's, in whole pages for each object: 64 bytes for each send request with up to two elements and 16 for each
    /// further one, or the inline data if longer; 16 for each element of a receive; 64 for each completion. A resized
    /// queue has both sizes until the call returns.
    pub fn locked_memory(self, bytes: u64) -> Self {
        self.set(Resource::LockedMemory, bytes)
    }

    /// Sets the number of descriptors of event channels, completion channels and contexts (one each, for asynchronous
    /// events), as `RLIMIT_NOFILE`. Other descriptors of the process do not count, such as those of `verbs`' own
    /// `epoll(7)` instances. The connection manager opens one context for each host.
    pub fn descriptors(self, count: u32) -> Self {
        self.set(Resource::Descriptors, count.into())
    }

    /// Sets the number of queue pairs. Each handle of an XRC receiver counts, also one from `ibv_open_qp`.
    pub fn queue_pairs(self, count: u32) -> Self {
        self.set(Resource::QueuePairs, count.into())
    }

    /// Sets the number of completion queues.
    pub fn completion_queues(self, count: u32) -> Self {
        self.set(Resource::CompletionQueues, count.into())
    }

    /// Sets the number of memory regions.
    pub fn memory_regions(self, count: u32) -> Self {
        self.set(Resource::MemoryRegions, count.into())
    }

    /// Sets the number of memory windows.
    pub fn memory_windows(self, count: u32) -> Self {
        self.set(Resource::MemoryWindows, count.into())
    }

    /// Sets the number of protection domains.
    pub fn protection_domains(self, count: u32) -> Self {
        self.set(Resource::ProtectionDomains, count.into())
    }

    /// Sets the number of shared receive queues.
    pub fn shared_receive_queues(self, count: u32) -> Self {
        self.set(Resource::SharedReceiveQueues, count.into())
    }

    /// Sets the number of address handles.
    pub fn address_handles(self, count: u32) -> Self {
        self.set(Resource::AddressHandles, count.into())
    }
}

/// Limits of a host, and the amounts in use.
#[derive(Debug)]
pub(crate) struct Accounts {
    limits: [AtomicU64; RESOURCES],
    used: [AtomicU64; RESOURCES],
}

impl Accounts {
    /// Creates the accounts of a host, with the limits of a card.
    pub(super) fn new(card: Option<Card>) -> Arc<Self> {
        let accounts = Self {
            limits: Default::default(),
            used: Default::default(),
        };
        accounts.set_limits(Limits::of_card(card));
        Arc::new(accounts)
    }

    pub(super) fn set_limits(&self, limits: Limits) {
        for (limit, new) in self.limits.iter().zip(limits.0) {
            limit.store(new, Ordering::Relaxed);
        }
    }

    pub(crate) fn limit(&self, resource: Resource) -> u64 {
        self.limits[resource as usize].load(Ordering::Relaxed)
    }

    pub(super) fn used(&self, resource: Resource) -> u64 {
        self.used[resource as usize].load(Ordering::Relaxed)
    }

    /// Charges an amount, refunded by dropping the result. Fails with the error number of the resource at its limit.
    pub(crate) fn charge(self: &Arc<Self>, resource: Resource, amount: u64) -> Result<Charge, i32> {
        let limit = self.limit(resource);
        let add = |used: u64| used.checked_add(amount).filter(|sum| *sum <= limit);
        let used = &self.used[resource as usize];
        // Objects without memory exist at any limit, also at one set below the amount in use.
        if amount > 0 && (used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)).is_err() {
            return Err(resource.errno());
        }
        Ok(Charge {
            accounts: Arc::clone(self),
            resource,
            amount,
        })
    }

    /// Charges an object with this number of bytes of locked memory.
    pub(crate) fn charge_object(
        self: &Arc<Self>,
        kind: Resource,
        bytes: u64,
    ) -> Result<ObjectCharge, i32> {
        Ok(ObjectCharge {
            _object: self.charge(kind, 1)?,
            memory: self.charge(Resource::LockedMemory, bytes)?,
        })
    }
}

/// Bytes of the pages of a range.
pub(crate) fn locked(start: u64, len: u64) -> u64 {
    let offset = start % PAGE_SIZE;
    match len {
        0 => 0,
        _ => len
            .saturating_add(offset)
            .div_ceil(PAGE_SIZE)
            .saturating_mul(PAGE_SIZE),
    }
}

/// An amount in use, refunded by the drop.
#[derive(Debug)]
#[must_use = "dropping it refunds the amount"]
pub(crate) struct Charge {
    accounts: Arc<Accounts>,
    resource: Resource,
    amount: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.accounts.used[self.resource as usize].fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// An object in use with its locked memory, refunded by the drop.
#[derive(Debug)]
#[must_use = "dropping it refunds the object"]
pub(crate) struct ObjectCharge {
    _object: Charge,
    pub(crate) memory: Charge,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_range_are_locked_whole() {
        assert_eq!(locked(123, 0), 0);
        assert_eq!(locked(0, 1), 4096);
        assert_eq!(locked(4095, 1), 4096);
        assert_eq!(locked(4095, 2), 8192);
        assert_eq!(locked(4096, 4096), 4096);
        assert_eq!(locked(1, u64::MAX), u64::MAX);
    }

    #[test]
    fn charges_up_to_the_limit_are_refunded() {
        let accounts = Accounts::new(None);
        accounts.set_limits(Limits::new().locked_memory(8192).queue_pairs(2));
        let first = accounts.charge_object(Resource::QueuePairs, 8192).unwrap();
        let full = accounts.charge_object(Resource::QueuePairs, 1);
        assert_eq!(full.unwrap_err(), libc::ENOMEM);
        assert_eq!(accounts.used(Resource::QueuePairs), 1);
        drop(first);
        assert_eq!(accounts.used(Resource::QueuePairs), 0);
        assert_eq!(accounts.used(Resource::LockedMemory), 0);
    }
}
