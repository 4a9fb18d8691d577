//! The memory of a ring.

use std::{
    alloc::{self, Layout},
    fmt,
    ptr::{self, NonNull},
};

use crate::wr_id::WrId;

/// Slots for the work of so many requests, a power of two: that of a request is the one with the lower
/// bits of its sequence number.
///
/// Whoever has them knows which of them are initialised.
pub(super) struct Slots<W> {
    // One word, since each look at memory costs more than a shift does.
    // INVARIANT: the address of the first of `count` slots, two at least, which are allocated, and
    // freed in `drop`. It is a multiple of `ALIGN`, and in the lower bits, which are zero because of
    // that, is how far to the left a number of 64 bits has to be shifted so that only those bits stay
    // that tell the slots apart.
    tagged: NonNull<u8>,
    // As it was allocated: who looks for leaks does not know the other.
    // INVARIANT: the first slot.
    memory: NonNull<W>,
}

/// Of this size, slots are pages of their own: until they are used, no page is there for a part of them.
const PAGES_FROM: usize = 4 * PAGE;
const PAGE: usize = 4096;

/// How many bits of a tagged address tell how far to shift: one more than do. For a shift, the processor looks at
/// six bits by itself; if the address were without just these, compilers would make them a number of their own.
const TAG_BITS: u32 = u64::BITS.trailing_zeros() + 1;

impl<W> Slots<W> {
    /// What the address of the first slot is a multiple of.
    const ALIGN: usize = {
        let (work, tag) = (align_of::<W>(), 1 << TAG_BITS);
        if work > tag { work } else { tag }
    };

    /// At least so many slots, none of them initialised.
    ///
    /// # Panics
    /// Panics when they do not fit into the address space.
    pub(super) fn new(at_least: u32) -> Self {
        // One slot would take a shift by all 64 bits, which is none.
        let count = at_least.max(2).next_power_of_two();
        let layout = Self::layout(count);
        let first = if layout.size() == 0 {
            ptr::without_provenance_mut(Self::ALIGN)
        } else {
            // SAFETY: the size is not zero.
            unsafe { alloc::alloc(layout) }
        };
        let Some(memory) = NonNull::new(first) else {
            alloc::handle_alloc_error(layout);
        };
        let shift = u64::BITS - count.trailing_zeros();
        Self {
            tagged: memory.map_addr(|addr| addr | shift as usize),
            memory: memory.cast(),
        }
    }

    fn layout(count: u32) -> Layout {
        let layout = Layout::array::<W>(count as usize);
        let aligned = layout.and_then(|layout| {
            if layout.size() < PAGES_FROM {
                return layout.align_to(Self::ALIGN);
            }
            Ok(layout.align_to(PAGE)?.pad_to_align())
        });
        aligned.expect("the slots do not fit into the address space")
    }

    /// How far to the left the numbers of slots are shifted, in the bits that count for a shift.
    #[inline]
    fn shift(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "the lower bits are meant")]
        let shift = self.tagged.addr().get() as u32;
        shift
    }

    /// The first slot, without a look at `memory`.
    #[inline]
    fn first(&self) -> *mut W {
        let mask = !((1 << TAG_BITS) - 1);
        self.tagged.as_ptr().map_addr(|addr| addr & mask).cast()
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        1 << (u64::BITS - self.shift() % u64::BITS)
    }

    /// The number of the slot of a request: less than `count`.
    #[inline]
    pub(super) fn index(&self, id: WrId) -> usize {
        let shift = self.shift();
        #[expect(clippy::cast_possible_truncation, reason = "less than `count`")]
        let index = id.0.wrapping_shl(shift).wrapping_shr(shift) as usize;
        index
    }

    /// How many slots there are from that of a request to the end: one, at least.
    pub(super) fn to_the_end(&self, id: WrId) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "less than `count`")]
        let index = self.index(id) as u32;
        self.count() - index
    }

    /// The slot of a request: always one of them.
    #[inline]
    pub(super) fn slot(&self, id: WrId) -> *mut W {
        self.first().wrapping_add(self.index(id))
    }
}

impl<W> Drop for Slots<W> {
    fn drop(&mut self) {
        let layout = Self::layout(self.count());
        if layout.size() > 0 {
            // SAFETY: allocated with this layout (invariant), and not used any more.
            unsafe { alloc::dealloc(self.memory.as_ptr().cast(), layout) };
        }
    }
}

impl<W> fmt::Debug for Slots<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("count", &self.count())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::{MAX_IN_FLIGHT, QpId, QueueId};

    fn check<W>(at_least: u32, count: u32) {
        let slots = Slots::<W>::new(at_least);
        assert_eq!(slots.count(), count, "at least {at_least}");
        assert_eq!(slots.first(), slots.memory.as_ptr());
        assert_eq!(slots.first().addr() % Slots::<W>::ALIGN, 0);
        let queue = QueueId::receive(QpId::next());
        for sequence in [0, 1, count - 1, count, 0x12_3456, 0xff_ffff] {
            let index = slots.index(queue.wr_id(sequence));
            assert_eq!(
                index,
                (sequence % count) as usize,
                "{sequence:#x} of {count}"
            );
            assert_eq!(
                slots.to_the_end(queue.wr_id(sequence)) as usize,
                count as usize - index
            );
            let distance = slots.slot(queue.wr_id(sequence)).addr() - slots.first().addr();
            assert_eq!(distance, index * size_of::<W>());
        }
    }

    #[test]
    fn a_slot_has_the_lower_bits_of_the_sequence_number() {
        for (at_least, count) in [(0, 2), (1, 2), (2, 2), (3, 4), (64, 64), (65, 128)] {
            check::<u64>(at_least, count);
            check::<[u8; 3]>(at_least, count);
        }
    }

    #[test]
    fn the_largest_ring_has_a_slot_for_each_request() {
        check::<u8>(MAX_IN_FLIGHT, MAX_IN_FLIGHT);
    }

    #[test]
    fn work_of_no_size_or_of_any_alignment_has_slots() {
        #[repr(align(128))]
        struct Wide(#[expect(dead_code, reason = "only its place counts")] u8);

        check::<()>(5, 8);
        check::<()>(MAX_IN_FLIGHT, MAX_IN_FLIGHT);
        check::<Wide>(5, 8);
    }

    #[test]
    fn many_slots_are_pages_of_their_own() {
        check::<[u64; 9]>(512, 512);
        let layout = Slots::<[u64; 9]>::layout(512);
        assert_eq!((layout.align(), layout.size()), (PAGE, 9 * PAGE));
        let layout = Slots::<[u64; 9]>::layout(256);
        assert_eq!((layout.align(), layout.size()), (PAGE, 5 * PAGE));
        let layout = Slots::<[u64; 9]>::layout(128);
        assert_eq!(layout.align(), Slots::<[u64; 9]>::ALIGN);
    }

    #[test]
    fn what_is_written_is_there() {
        let slots = Slots::<u64>::new(16);
        let queue = QueueId::send(QpId::next());
        for i in 0..16 {
            // SAFETY: one of the slots, which nobody else knows.
            unsafe { slots.slot(queue.wr_id(i)).write(i.into()) };
        }
        for i in 0..16 {
            // SAFETY: as above, and written.
            let read = unsafe { slots.slot(queue.wr_id(i)).read() };
            assert_eq!(read, u64::from(i));
        }
    }
}
