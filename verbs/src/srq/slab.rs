//! The works that a shared queue has in flight, which come back in any order.

/// Works by slot, each of which is given out again when its work has been taken.
pub(super) struct Slab<W> {
    slots: Vec<Option<W>>,
    /// The empty slots. INVARIANT: below the length of `slots`.
    empty: Vec<u32>,
    /// At most so many slots are full; not more than there are.
    limit: u32,
}

impl<W> Slab<W> {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| None).collect(),
            empty: (0..slots).rev().collect(),
            limit: slots,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.empty.len()
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Makes room for more works, or for fewer: not for fewer than there are.
    pub(super) fn set_limit(&mut self, limit: u32) {
        debug_assert!(limit as usize >= self.len());
        let slots = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        if limit > slots {
            self.slots.resize_with(limit as usize, || None);
            self.empty.extend((slots..limit).rev());
        }
        self.limit = limit;
    }

    /// The slot that the next work goes to.
    #[inline]
    pub(super) fn free(&self) -> Option<u32> {
        if self.len() >= self.limit as usize {
            return None;
        }
        self.empty.last().copied()
    }

    /// Puts a work where [`free`](Self::free) has said.
    #[inline]
    pub(super) fn put(&mut self, slot: u32, work: W) {
        debug_assert_eq!(self.free(), Some(slot));
        self.empty.pop();
        self.slots[slot as usize] = Some(work);
    }

    /// The work of a slot, if there is any.
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut W> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    /// Takes the work of a slot, if there is any.
    #[inline]
    pub(super) fn take(&mut self, slot: u32) -> Option<W> {
        let work = self.slots.get_mut(slot as usize)?.take()?;
        self.empty.push(slot);
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back_in_any_order_and_only_once() {
        let mut slab = Slab::new(3);
        let mut slots = Vec::new();
        while let Some(slot) = slab.free() {
            slab.put(slot, slot * 10);
            slots.push(slot);
        }
        assert_eq!((slab.len(), slots.len()), (3, 3));
        assert_eq!(slab.get_mut(1), Some(&mut 10));
        assert_eq!(slab.take(1), Some(10));
        assert_eq!(slab.take(1), None, "taken twice");
        assert_eq!(slab.get_mut(1), None);
        assert_eq!(slab.get_mut(7), None);
        assert_eq!(slab.take(7), None, "no such slot");
        assert_eq!(slab.free(), Some(1));
        slab.put(1, 77);
        assert_eq!(
            (slab.take(0), slab.take(2), slab.take(1)),
            (Some(0), Some(20), Some(77))
        );
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn a_slab_grows_and_shrinks() {
        let mut slab = Slab::new(2);
        for slot in [0, 1] {
            slab.put(slot, slot);
        }
        assert_eq!(slab.free(), None);
        slab.set_limit(4);
        slab.put(2, 2);
        slab.set_limit(3);
        assert_eq!((slab.free(), slab.len(), slab.limit()), (None, 3, 3));
        assert_eq!(slab.take(0), Some(0));
        assert_eq!(slab.free(), Some(0));
    }
}
