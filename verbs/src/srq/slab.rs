//! The work in flight on a shared queue, completed in any order.

use crate::wr_id::SEQUENCES;

/// Work by name. A slot is reused under another name, so that a repeated completion of the first
/// work is detected.
///
/// Names repeat after all names of a slot have been used: 2^24 over all slots.
pub(super) struct Slab<W> {
    /// A power of two of slots, or none.
    // INVARIANT: the low bits of a name are the index of its slot.
    slots: Vec<Option<(u32, W)>>,
    /// The bits of a name with the slot's index.
    // INVARIANT: the number of slots less one.
    mask: u32,
    /// The next names of the empty slots, one for each.
    empty: Vec<u32>,
    /// Maximum number of full slots; at most the number of slots.
    limit: u32,
}

impl<W> Slab<W> {
    /// `limit` slots, at most half the number of names.
    pub(super) fn new(limit: u32) -> Self {
        let mut slab = Self {
            slots: Vec::new(),
            mask: u32::MAX,
            empty: Vec::new(),
            limit: 0,
        };
        slab.set_limit(limit);
        slab
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.empty.len()
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Hands out no slot any more. The works in flight stay.
    pub(super) fn close(&mut self) {
        self.limit = 0;
    }

    /// Changes the number of slots, to at least the number in use.
    pub(super) fn set_limit(&mut self, limit: u32) {
        debug_assert!(limit as usize >= self.len());
        if limit as usize > self.slots.len() {
            self.grow(limit.next_power_of_two());
        }
        self.limit = limit;
    }

    /// Moves everything to `slots` slots, with unchanged names.
    fn grow(&mut self, slots: u32) {
        let full = std::mem::take(&mut self.slots);
        let names = full.iter().flatten().map(|(name, _)| name);
        let latest = names.chain(&self.empty).max().copied();
        self.slots.resize_with(slots as usize, || None);
        self.mask = slots - 1;
        // Different slots stay different: the names differ in the low bits.
        for (name, work) in full.into_iter().flatten() {
            let slot = self.slot(name);
            self.slots[slot] = Some((name, work));
        }
        let mut named: Vec<_> = self.slots.iter().map(Option::is_some).collect();
        for &name in &self.empty {
            named[self.slot(name)] = true;
        }
        // The others begin with unused names.
        let first = latest.map_or(0, |latest| (latest / slots + 1) * slots);
        let unnamed = (0..slots).filter(|slot| !named[*slot as usize]);
        let mut names: Vec<_> = unnamed.map(|slot| (first + slot) % SEQUENCES).collect();
        names.reverse();
        names.append(&mut self.empty);
        self.empty = names;
    }

    /// The slot of a name; out of bounds, if there are none.
    #[inline]
    fn slot(&self, name: u32) -> usize {
        (name & self.mask) as usize
    }

    /// The name of the next work.
    #[inline]
    pub(super) fn free(&self) -> Option<u32> {
        if self.len() >= self.limit as usize {
            return None;
        }
        self.empty.last().copied()
    }

    /// Stores work under a name from [`free`](Self::free).
    #[inline]
    pub(super) fn put(&mut self, name: u32, work: W) {
        debug_assert_eq!(self.free(), Some(name));
        self.empty.pop();
        let slot = self.slot(name);
        self.slots[slot] = Some((name, work));
    }

    /// The work of a name, if there is any.
    pub(super) fn get_mut(&mut self, name: u32) -> Option<&mut W> {
        let slot = self.slot(name);
        match self.slots.get_mut(slot)? {
            Some((found, work)) if *found == name => Some(work),
            _ => None,
        }
    }

    /// Takes the work of a name, if there is any.
    #[inline]
    pub(super) fn take(&mut self, name: u32) -> Option<W> {
        let slot = self.slot(name);
        let (_, work) = self
            .slots
            .get_mut(slot)?
            .take_if(|(found, _)| *found == name)?;
        let next = name.wrapping_add(self.mask).wrapping_add(1);
        self.empty.push(next % SEQUENCES);
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores work in the next slot, and returns its name.
    fn put<W>(slab: &mut Slab<W>, work: W) -> u32 {
        let name = slab.free().unwrap();
        slab.put(name, work);
        name
    }

    #[test]
    fn slab_slots_complete_in_any_order_and_only_once() {
        let mut slab = Slab::new(3);
        let names = [0, 10, 20].map(|work| put(&mut slab, work));
        assert_eq!((slab.free(), slab.len()), (None, 3));
        assert_eq!(slab.get_mut(names[1]), Some(&mut 10));
        assert_eq!(slab.take(names[1]), Some(10));
        assert_eq!(slab.take(names[1]), None, "taken twice");
        assert_eq!(slab.get_mut(names[1]), None);
        assert_eq!(slab.get_mut(77), None);
        assert_eq!(slab.take(77), None, "no such name");
        let again = put(&mut slab, 77);
        assert_eq!(slab.free(), None);
        assert_eq!(slab.get_mut(names[1]), None, "another has its slot");
        assert_eq!(slab.take(names[1]), None, "another has its slot");
        let positions = [names[0], names[2], again].map(|name| slab.take(name));
        assert_eq!(positions, [Some(0), Some(20), Some(77)]);
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn slab_resize_keeps_works() {
        let mut slab = Slab::new(2);
        let names = [0, 1].map(|work| put(&mut slab, work));
        assert_eq!(slab.free(), None);
        slab.set_limit(4);
        put(&mut slab, 2);
        slab.set_limit(3);
        assert_eq!((slab.free(), slab.len(), slab.limit()), (None, 3, 3));
        assert_eq!(slab.take(names[0]), Some(0));
        assert_eq!(put(&mut slab, 3) % 4, 0, "the slot that is empty");
        assert_eq!(slab.take(names[1]), Some(1));
    }

    #[test]
    fn slab_without_slots_is_empty() {
        let mut slab = Slab::<u8>::new(0);
        assert_eq!((slab.free(), slab.len(), slab.limit()), (None, 0, 0));
        assert_eq!(slab.take(0), None);
        assert_eq!(slab.get_mut(9), None);
    }

    /// Work is found by its name and by no older one, however the slab grows meanwhile.
    #[test]
    fn slab_name_is_reused_after_all_other_names() {
        for sizes in [[1, 2, 3], [3, 3, 8], [2, 5, 64], [7, 100, 101]] {
            let mut slab = Slab::new(sizes[0]);
            let (mut full, mut removed) = (Vec::new(), Vec::new());
            for (i, size) in sizes.into_iter().cycle().take(3).enumerate() {
                slab.set_limit(size);
                for round in 0..50_u32 {
                    while slab.len() < size as usize {
                        let name = put(&mut slab, round);
                        assert!(!removed.contains(&name), "{sizes:?}, {i}, {round}: {name}");
                        full.push((name, round));
                    }
                    // Not always the oldest one.
                    let which = round as usize * 7 % full.len();
                    let (name, work) = full.swap_remove(which);
                    assert_eq!(slab.take(name), Some(work));
                    removed.push(name);
                    assert!(removed.iter().all(|name| slab.get_mut(*name).is_none()));
                }
                assert!(
                    full.iter()
                        .all(|(name, work)| slab.get_mut(*name) == Some(&mut { *work }))
                );
            }
        }
    }

    #[test]
    fn slab_names_wrap_around() {
        let half = SEQUENCES / 2;
        let mut slab = Slab::new(half);
        let first = slab.free().unwrap();
        for expected in [first, first + half, first] {
            assert_eq!(put(&mut slab, ()), expected);
            assert_eq!(slab.take(expected), Some(()));
        }
    }
}
