//! Keys of memory: bounds and rights of regions and windows.
//!
//! A key consists of an index (upper 24 bits) and a tag (lower 8 bits), both pseudorandom: a peer cannot guess a key from
//! others. An index is used again only after all others, so that a stale key stays invalid. The tag of a window is the
//! program's.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    access::Access,
    error::EngineError,
    ids::PdId,
    memory::{HostRange, Shared},
};
use crate::seed::{Seed, Sequence};

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Protection domain.
    pub pd: PdId,
    /// Address of the first byte in the host's memory.
    pub host: u64,
    /// Address of the first byte, as named in requests.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
}

/// Kind of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Bound by a call; usable by all queue pairs of the domain.
    Type1,
    /// Bound by a request; usable only by the binding queue pair.
    Type2,
}

/// Range of a region opened by a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Key of the region.
    pub region: u32,
    /// Address of the first byte, as an address of the region.
    pub addr: u64,
    /// Length in bytes; 0 unbinds.
    pub len: u64,
    /// Rights.
    pub access: Access,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    pd: PdId,
    kind: WindowKind,
    bound: Option<(Binding, u32)>,
}

impl Window {
    /// The binding, if the window grants a peer's access at some address.
    fn opened(&self, requested: &RemoteAccess) -> Option<Binding> {
        let (binding, qp) = self.bound?;
        let other_qp = self.kind == WindowKind::Type2 && qp != requested.qp;
        let granted = self.pd == requested.pd && binding.access.contains(requested.access);
        (granted && !other_qp).then_some(binding)
    }
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Region(Region),
    Window(Window),
}

impl Entry {
    fn pd(&self) -> PdId {
        match self {
            Self::Region(region) => region.pd,
            Self::Window(window) => window.pd,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u8,
    entry: Entry,
}

/// Maximum number of keys at the same time: half of the indices, so that the search for a free one is short.
const MAX_KEYS: usize = 1 << 23;

/// A remote access before the check.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteAccess {
    pub(super) pd: PdId,
    pub(super) qp: u32,
    pub(super) rkey: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) access: Access,
}

/// All keys of a device.
#[derive(Debug)]
pub(super) struct KeyTable {
    /// Regions and windows by index.
    slots: BTreeMap<u32, Slot>,
    indices: Sequence,
    tags: Sequence,
    /// Indices of windows.
    windows: BTreeSet<u32>,
    /// Number of regions and windows of each protection domain, without zero counts.
    users: BTreeMap<PdId, usize>,
    /// Number of windows bound to each region, without zero counts.
    bindings: BTreeMap<u32, usize>,
    /// Difference (XOR) between the key in this table and the one that peers name; 0 in the lowest 8 bits, which are the
    /// program's.
    remote_difference: u32,
    /// Whether the key removed last is issued again at once.
    reuses: bool,
    last_freed: Option<u32>,
}

impl KeyTable {
    /// Creates a table with the keys of a seed.
    pub(super) fn new(seed: &Seed) -> Self {
        Self {
            slots: BTreeMap::new(),
            indices: Sequence::of_24_bits(seed.part(0)),
            tags: Sequence::of_24_bits(seed.part(1)),
            windows: BTreeSet::new(),
            users: BTreeMap::new(),
            bindings: BTreeMap::new(),
            remote_difference: 0,
            reuses: false,
            last_freed: None,
        }
    }

    /// Makes the keys named by peers unlike those of the table.
    pub(super) fn distinguish_remote_keys(&mut self, difference: u64) {
        let [a, b, c, ..] = difference.to_le_bytes();
        self.remote_difference = u32::from_le_bytes([0, a | 1, b, c]);
    }

    /// Issues the key removed last again at once.
    pub(super) fn reuse(&mut self) {
        self.reuses = true;
    }

    /// The key that peers name for a key of the table, and the reverse.
    pub(super) fn remote_key(&self, key: u32) -> u32 {
        key ^ self.remote_difference
    }

    /// Whether writes to a region have no order.
    pub(super) fn is_relaxed(&self, rkey: u32) -> bool {
        let entry = self.entry(self.remote_key(rkey));
        matches!(entry, Some(Entry::Region(region)) if region.access.contains(Access::RELAXED_ORDERING))
    }

    /// Number of regions and windows.
    pub(super) fn len(&self) -> usize {
        self.users.values().sum()
    }

    /// Sum of the lengths of the regions.
    pub(super) fn registered_bytes(&self) -> u64 {
        let lens = self.slots.values().map(|slot| match &slot.entry {
            Entry::Region(region) => region.len,
            Entry::Window(_) => 0,
        });
        lens.fold(0, u64::saturating_add)
    }

    /// Registers memory. The result is the local and the remote key.
    pub(super) fn register(&mut self, region: Region) -> Result<u32, EngineError> {
        let fits = region.len.checked_sub(1).is_none_or(|last| {
            region.start.checked_add(last).is_some() && region.host.checked_add(last).is_some()
        });
        if !fits {
            return Err(EngineError::Invalid(
                "the region wraps around the address space",
            ));
        }
        self.insert(Entry::Region(region))
    }

    /// Deregisters memory, unless a window is bound to the region; `unbinds` unbinds windows instead.
    pub(super) fn deregister(&mut self, key: u32, unbinds: bool) -> Result<(), EngineError> {
        if !matches!(self.entry(key), Some(Entry::Region(_))) {
            return Err(EngineError::NotFound("region", key));
        }
        if self.bindings.contains_key(&key) {
            if !unbinds {
                return Err(EngineError::Busy("a memory window is bound to the region"));
            }
            self.unbind_windows(|(_, binding, _)| binding.region == key);
        }
        self.remove(key);
        Ok(())
    }

    pub(super) fn alloc_window(&mut self, pd: PdId, kind: WindowKind) -> Result<u32, EngineError> {
        let key = self.insert(Entry::Window(Window {
            pd,
            kind,
            bound: None,
        }))?;
        Ok(self.remote_key(key))
    }

    /// Destroys a window by its current or an earlier key: binding changes the tag.
    pub(super) fn dealloc_window(&mut self, rkey: u32) -> Result<(), EngineError> {
        let key = self.remote_key(rkey);
        match self.slots.get(&(key >> 8)).map(|slot| slot.entry) {
            Some(Entry::Window(_)) => {
                self.remove(key);
                Ok(())
            }
            _ => Err(EngineError::NotFound("memory window", rkey)),
        }
    }

    /// Whether a protection domain has a region or a window.
    pub(super) fn uses(&self, pd: PdId) -> bool {
        self.users.contains_key(&pd)
    }

    /// Binds a window for queue pair `qp`, and changes the tag of the window's key from that of `rkey` to that of `new_key`.
    /// The other bits of `new_key` have no effect, as on a device.
    ///
    /// `None` if the window or the region does not allow the binding.
    pub(super) fn bind(
        &mut self,
        pd: PdId,
        qp: u32,
        (rkey, new_key): (u32, u32),
        binding: Binding,
    ) -> Option<()> {
        let key = self.remote_key(rkey);
        let Some(Entry::Window(window)) = self.entry(key) else {
            return None;
        };
        let suits = match window.kind {
            WindowKind::Type1 => !binding.access.contains(Access::ZERO_BASED),
            // Only an invalidation unbinds.
            WindowKind::Type2 => window.bound.is_none() && binding.len > 0,
        };
        let is_known = Access::ALL.contains(binding.access);
        if window.pd != pd || !suits || !is_known {
            return None;
        }
        if binding.len > 0 {
            let region = self.region(binding.region)?;
            let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let may_write = region.access.contains(Access::LOCAL_WRITE);
            if region.pd != pd
                || !region.access.contains(Access::MW_BIND)
                || region.access.contains(Access::ZERO_BASED)
                || (binding.access.intersects(writes) && !may_write)
            {
                return None;
            }
            region.host_range(binding.addr, binding.len)?;
        }
        let bound = (binding.len > 0).then_some((binding, qp));
        let [tag, ..] = new_key.to_le_bytes();
        self.slots.get_mut(&(key >> 8))?.tag = tag;
        self.set_bound(key >> 8, bound);
        Some(())
    }

    /// Replaces the binding of a window, and updates the counts of the regions.
    fn set_bound(&mut self, index: u32, bound: Option<(Binding, u32)>) {
        let slot = self.slots.get_mut(&index);
        let Some(Entry::Window(window)) = slot.map(|slot| &mut slot.entry) else {
            return;
        };
        let before = std::mem::replace(&mut window.bound, bound);
        if let Some((binding, _)) = before {
            count_down(&mut self.bindings, binding.region);
        }
        if let Some((binding, _)) = bound {
            *self.bindings.entry(binding.region).or_default() += 1;
        }
    }

    /// Unbinds a type 2 window by its key, for a request of queue pair `qp` or of its peer.
    pub(super) fn invalidate(&mut self, pd: PdId, qp: u32, rkey: u32) -> Option<()> {
        let key = self.remote_key(rkey);
        let Some(Entry::Window(window)) = self.entry(key) else {
            return None;
        };
        let bound_by = window.bound.map(|(_, bound_by)| bound_by);
        if window.pd != pd || window.kind != WindowKind::Type2 || bound_by != Some(qp) {
            return None;
        }
        self.set_bound(key >> 8, None);
        Some(())
    }

    /// Unbinds all type 2 windows of a queue pair, at destruction or reset.
    pub(super) fn unbind_all(&mut self, qp: u32) {
        self.unbind_windows(|(window, _, by)| window.kind == WindowKind::Type2 && by == qp);
    }

    /// Unbinds the windows whose binding, by a queue pair, is to end.
    fn unbind_windows(&mut self, ends: impl Fn((&Window, &Binding, u32)) -> bool) {
        let ends = |index: &u32| match self.slots.get(index).map(|slot| slot.entry) {
            Some(Entry::Window(window)) => window
                .bound
                .as_ref()
                .is_some_and(|(binding, by)| ends((&window, binding, *by))),
            _ => false,
        };
        let unbound: Vec<_> = self.windows.iter().copied().filter(ends).collect();
        for index in unbound {
            self.set_bound(index, None);
        }
    }

    /// Host memory of a local access; `None` if the key does not allow the access.
    pub(super) fn local(
        &self,
        pd: PdId,
        lkey: u32,
        addr: u64,
        len: u64,
        writes: bool,
    ) -> Option<HostRange> {
        let region = self.region(lkey)?;
        let allowed = !writes || region.access.contains(Access::LOCAL_WRITE);
        (region.pd == pd && allowed)
            .then(|| region.host_range(addr, len))
            .flatten()
    }

    /// Host memory of a peer's access; `None` if the key does not allow the access.
    pub(super) fn remote(&self, requested: RemoteAccess) -> Option<HostRange> {
        let RemoteAccess {
            pd,
            addr,
            len,
            access,
            ..
        } = requested;
        match self.entry(self.remote_key(requested.rkey))? {
            Entry::Region(region) if region.pd == pd && region.access.contains(access) => {
                region.host_range(addr, len)
            }
            Entry::Region(_) => None,
            Entry::Window(window) => {
                let binding = window.opened(&requested)?;
                let offset = if binding.access.contains(Access::ZERO_BASED) {
                    addr
                } else {
                    addr.checked_sub(binding.addr)?
                };
                if offset.checked_add(len)? > binding.len {
                    return None;
                }
                let region = self.region(binding.region)?;
                region.host_range(binding.addr.checked_add(offset)?, len)
            }
        }
    }

    /// Whether a key allows a peer's access at some address: the range of the access is ignored.
    pub(super) fn permits(&self, requested: RemoteAccess) -> bool {
        match self.entry(self.remote_key(requested.rkey)) {
            Some(Entry::Region(region)) => {
                region.pd == requested.pd && region.access.contains(requested.access)
            }
            Some(Entry::Window(window)) => window.opened(&requested).is_some(),
            None => false,
        }
    }

    fn region(&self, key: u32) -> Option<Region> {
        match self.entry(key)? {
            Entry::Region(region) => Some(region),
            Entry::Window(_) => None,
        }
    }

    fn entry(&self, key: u32) -> Option<Entry> {
        let slot = self.slots.get(&(key >> 8))?;
        (u32::from(slot.tag) == key & 0xff).then_some(slot.entry)
    }

    fn insert(&mut self, entry: Entry) -> Result<u32, EngineError> {
        if self.slots.len() >= MAX_KEYS {
            return Err(EngineError::Full("keys of memory"));
        }
        // Index 0 stays free, so that no key is 0.
        let (mut index, mut reused) = (0, None);
        if let Some(key) = self.last_freed.take().filter(|_| self.reuses)
            && !self.slots.contains_key(&(key >> 8))
        {
            (index, reused) = (key >> 8, Some(key));
        }
        while index == 0 || self.slots.contains_key(&index) {
            index = self.indices.draw();
        }
        let tag = reused.unwrap_or_else(|| self.tags.draw());
        let [tag, ..] = tag.to_le_bytes();
        *self.users.entry(entry.pd()).or_default() += 1;
        if let Entry::Window(_) = entry {
            self.windows.insert(index);
        }
        self.slots.insert(index, Slot { tag, entry });
        Ok(index << 8 | u32::from(tag))
    }

    fn remove(&mut self, key: u32) {
        let index = key >> 8;
        self.set_bound(index, None);
        if let Some(removed) = self.slots.remove(&index) {
            count_down(&mut self.users, removed.entry.pd());
            self.windows.remove(&index);
            self.last_freed = Some(key);
        }
    }
}

/// Decrements a count, and removes the entry at 0.
fn count_down<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let std::collections::btree_map::Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

impl Region {
    /// Host memory of a range; `None` if the range exceeds the region.
    fn host_range(&self, addr: u64, len: u64) -> Option<HostRange> {
        let offset = if self.access.contains(Access::ZERO_BASED) {
            addr
        } else {
            addr.checked_sub(self.start)?
        };
        let available = self.len.checked_sub(offset)?;
        let len = (len <= available).then(|| usize::try_from(len).ok())??;
        Some(HostRange {
            addr: self.host.wrapping_add(offset),
            len,
            shared: Shared::of(self.host, self.len, self.access),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(1);

    fn region(access: Access) -> Region {
        Region {
            pd: PD,
            host: 0x9000,
            start: 0x1000,
            len: 0x100,
            access,
        }
    }

    fn requested(rkey: u32, addr: u64, len: u64) -> RemoteAccess {
        RemoteAccess {
            pd: PD,
            qp: 7,
            rkey,
            addr,
            len,
            access: Access::REMOTE_READ,
        }
    }

    fn addr(range: Option<HostRange>) -> Option<u64> {
        range.map(|range| range.addr)
    }

    #[test]
    fn memory_is_shared_where_the_region_has_rights_for_peers() {
        let shared = Shared {
            start: 0x9000,
            end: 0x9100,
        };
        for (rights, expected) in [
            (Access::LOCAL_WRITE, Shared::default()),
            (Access::LOCAL_WRITE | Access::REMOTE_READ, shared),
            (Access::LOCAL_WRITE | Access::REMOTE_WRITE, shared),
            (Access::LOCAL_WRITE | Access::MW_BIND, shared),
            (Access::LOCAL_WRITE | Access::SHARED_WITH_PROGRAM, shared),
        ] {
            let mut keys = KeyTable::new(&7.into());
            let key = keys.register(region(rights)).unwrap();
            let range = keys.local(PD, key, 0x1011, 3, true).unwrap();
            let expected = HostRange {
                addr: 0x9011,
                len: 3,
                shared: expected,
            };
            assert_eq!(range, expected, "{rights:?}");
        }
    }

    #[test]
    fn bounds_rights_and_domains_are_enforced() {
        let mut keys = KeyTable::new(&7.into());
        let key = keys.register(region(Access::REMOTE_READ)).unwrap();
        assert_eq!(
            addr(keys.remote(requested(key, 0x1000, 0x100))),
            Some(0x9000)
        );
        assert_eq!(addr(keys.remote(requested(key, 0x10ff, 1))), Some(0x90ff));
        for (addr, len) in [
            (0xfff, 1),
            (0x1000, 0x101),
            (0x1100, 1),
            (u64::MAX, 2),
            (0x10ff, u64::MAX),
        ] {
            assert_eq!(
                keys.remote(requested(key, addr, len)),
                None,
                "{addr:#x} {len:#x}"
            );
        }
        let write = RemoteAccess {
            access: Access::REMOTE_WRITE,
            ..requested(key, 0x1000, 1)
        };
        assert_eq!(keys.remote(write), None, "no right");
        let other = RemoteAccess {
            pd: PdId(2),
            ..requested(key, 0x1000, 1)
        };
        assert_eq!(keys.remote(other), None, "another domain");
        assert_eq!(addr(keys.local(PD, key, 0x1000, 1, false)), Some(0x9000));
        assert_eq!(keys.local(PD, key, 0x1000, 1, true), None, "no right");
    }

    #[test]
    fn stale_key_is_refused() {
        let mut keys = KeyTable::new(&7.into());
        let old = keys.register(region(Access::REMOTE_READ)).unwrap();
        keys.deregister(old, false).unwrap();
        assert_eq!(keys.remote(requested(old, 0x1000, 1)), None);
        let new = keys.register(region(Access::REMOTE_READ)).unwrap();
        assert_ne!(old >> 8, new >> 8, "the index is not used again");
        assert_eq!(keys.remote(requested(old, 0x1000, 1)), None);
        assert_eq!(addr(keys.remote(requested(new, 0x1000, 1))), Some(0x9000));
        assert_eq!(
            keys.deregister(old, false),
            Err(EngineError::NotFound("region", old))
        );
    }

    #[test]
    fn keys_are_those_of_the_seed_and_never_zero() {
        let keys = |seed: Seed| -> Vec<u32> {
            let mut keys = KeyTable::new(&seed);
            let regions = (0..1000).map(|_| keys.register(region(Access::REMOTE_READ)).unwrap());
            regions.collect()
        };
        assert_eq!(keys(7.into()), keys(7.into()));
        assert_ne!(keys(7.into()), keys(8.into()));
        assert_ne!(keys(Seed::of_system()), keys(Seed::of_system()));
        let unordered = keys(7.into());
        assert!(unordered.iter().all(|key| key >> 8 != 0));
        assert!(!unordered.is_sorted());
        let distinct: BTreeSet<_> = unordered.iter().map(|key| key >> 8).collect();
        assert_eq!(distinct.len(), 1000);
    }

    fn bind(keys: &mut KeyTable, kind: WindowKind) -> (u32, u32) {
        let mr = keys.register(region(Access::MW_BIND)).unwrap();
        let window = keys.alloc_window(PD, kind).unwrap();
        let binding = Binding {
            region: mr,
            addr: 0x1010,
            len: 0x10,
            access: Access::REMOTE_READ,
        };
        keys.bind(PD, 7, (window, window), binding).unwrap();
        (mr, window)
    }

    #[test]
    fn windows_have_bounds_of_their_own() {
        let mut keys = KeyTable::new(&7.into());
        let (mr, window) = bind(&mut keys, WindowKind::Type1);
        assert_eq!(
            addr(keys.remote(requested(window, 0x1010, 0x10))),
            Some(0x9010)
        );
        assert_eq!(keys.remote(requested(window, 0x100f, 1)), None);
        assert_eq!(keys.remote(requested(window, 0x1010, 0x11)), None);
        assert!(keys.deregister(mr, false).is_err(), "a window is bound");
        keys.dealloc_window(window ^ 1).unwrap();
        keys.deregister(mr, false).unwrap();
    }

    #[test]
    fn window_of_a_deregistered_region_is_unbound() {
        let mut keys = KeyTable::new(&7.into());
        keys.reuse();
        let (mr, window) = bind(&mut keys, WindowKind::Type1);
        keys.deregister(mr, true).unwrap();
        // The key of the region is issued again.
        assert_eq!(keys.register(region(Access::MW_BIND)), Ok(mr));
        assert_eq!(keys.remote(requested(window, 0x1010, 0x10)), None);
        keys.deregister(mr, false).unwrap();
    }

    #[test]
    fn type_2_windows_belong_to_their_queue_pair() {
        let mut keys = KeyTable::new(&7.into());
        let (_, window) = bind(&mut keys, WindowKind::Type2);
        assert!(keys.remote(requested(window, 0x1010, 1)).is_some());
        let other = RemoteAccess {
            qp: 8,
            ..requested(window, 0x1010, 1)
        };
        assert_eq!(keys.remote(other), None);
        assert_eq!(keys.invalidate(PD, 8, window), None);
        assert_eq!(keys.invalidate(PD, 7, window), Some(()));
        assert_eq!(keys.remote(requested(window, 0x1010, 1)), None);
    }

    #[test]
    fn regions_are_busy_while_windows_are_bound_to_them() {
        let mut keys = KeyTable::new(&7.into());
        let opened = Access::REMOTE_READ | Access::MW_BIND;
        let key = keys.register(region(opened)).unwrap();
        let binding = Binding {
            region: key,
            addr: 0x1000,
            len: 16,
            access: Access::REMOTE_READ,
        };
        for end in 0..4 {
            let kind = match end {
                3 => WindowKind::Type1,
                _ => WindowKind::Type2,
            };
            let window = keys.alloc_window(PD, kind).unwrap();
            keys.bind(PD, 7, (window, window), binding).unwrap();
            assert!(keys.deregister(key, false).is_err(), "{end}");
            assert_eq!(keys.len(), 2);
            match end {
                0 => keys.dealloc_window(window).unwrap(),
                1 => keys.invalidate(PD, 7, window).unwrap(),
                2 => keys.unbind_all(7),
                _ => {
                    let none = Binding { len: 0, ..binding };
                    keys.bind(PD, 7, (window, window), none).unwrap();
                }
            }
            assert_eq!(keys.bindings.len(), 0, "{end}");
            if end != 0 {
                keys.dealloc_window(window).unwrap();
            }
        }
        // Windows of another queue pair stay bound.
        let window = keys.alloc_window(PD, WindowKind::Type2).unwrap();
        keys.bind(PD, 7, (window, window), binding).unwrap();
        keys.unbind_all(8);
        assert!(keys.deregister(key, false).is_err());
        keys.dealloc_window(window).unwrap();
        assert!(keys.uses(PD));
        keys.deregister(key, false).unwrap();
        assert!(!keys.uses(PD));
        assert_eq!(keys.len(), 0);
    }
}
