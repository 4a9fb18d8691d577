//! The memory of a ring.

use std::{
    alloc::{self, Layout},
    fmt,
    ptr::{self, NonNull},
};

use crate::wr_id::WrId;

/// Slots for work, a power of two: a request's slot is given by the lower bits of its sequence
/// number.
///
/// The owner tracks the initialised slots.
#[repr(C)]
pub(super) struct Slots<W> {
    // One word, since each memory access costs more than a shift.
    // INVARIANT: the address of the first of `count` slots, at least two, allocated, and freed in
    // `drop`. The address is a multiple of `ALIGN`; the lower bits, otherwise zero, hold the left
    // shift by which only the slot bits remain of a 64-bit number.
    tagged: NonNull<u8>,
    // The original pointer, since leak detectors do not recognise the tagged one.
    // INVARIANT: the first slot.
    memory: NonNull<W>,
}

/// Size in bytes from which slots are allocated as whole pages: unused parts then take up no
/// physical memory.
const PAGES_FROM: usize = 4 * PAGE;
const PAGE: usize = 4096;

/// Number of low bits of a tagged address with the shift: one more than needed. A processor's shift
/// uses the low six bits; with exactly six, compilers would mask the address explicitly.
const TAG_BITS: u32 = u64::BITS.trailing_zeros() + 1;

impl<W> Slots<W> {
    /// Alignment of the first slot, in bytes.
    const ALIGN: usize = {
        let (work, tag) = (align_of::<W>(), 1 << TAG_BITS);
        if work > tag { work } else { tag }
    };

    /// At least `at_least` slots, none of them initialised.
    ///
    /// # Panics
    /// Panics when the slots do not fit into the address space.
    pub(super) fn new(at_least: u32) -> Self {
        // A single slot would need a shift by all 64 bits, which processors do not perform.
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

    /// The left shift of slot numbers, in the low bits.
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

    /// The number of slots.
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

    /// The number of slots from a request's slot to the end: at least one.
    pub(super) fn to_the_end(&self, id: WrId) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "less than `count`")]
        let index = self.index(id) as u32;
        self.count() - index
    }

    /// The slot of a request: always a valid one.
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
    fn slot_index_is_the_low_bits_of_the_sequence() {
        for (at_least, count) in [(0, 2), (1, 2), (2, 2), (3, 4), (64, 64), (65, 128)] {
            check::<u64>(at_least, count);
            check::<[u8; 3]>(at_least, count);
        }
    }

    /// Slots of work without bytes need no memory.
    #[test]
    fn every_sequence_has_a_slot_in_a_ring_of_every_size() {
        let queue = QueueId::send(QpId::next());
        for count in (1..=24).map(|bits| 1_u32 << bits) {
            let slots = Slots::<()>::new(count);
            let step = if count == 1 << 24 { 1 } else { 251 };
            for sequence in (0..MAX_IN_FLIGHT).step_by(step) {
                let id = queue.wr_id(sequence);
                assert_eq!(slots.index(id), (sequence % count) as usize);
                assert_eq!(slots.to_the_end(id), count - sequence % count);
            }
        }
    }

    #[test]
    fn largest_ring_has_a_slot_for_each_request() {
        check::<u8>(MAX_IN_FLIGHT, MAX_IN_FLIGHT);
    }

    #[test]
    fn zero_sized_or_aligned_work_has_slots() {
        #[repr(align(128))]
        struct Wide(#[expect(dead_code, reason = "only its place counts")] u8);

        check::<()>(5, 8);
        check::<()>(MAX_IN_FLIGHT, MAX_IN_FLIGHT);
        check::<Wide>(5, 8);
    }

    #[test]
    fn large_slot_array_is_page_aligned() {
        check::<[u64; 9]>(512, 512);
        let layout = Slots::<[u64; 9]>::layout(512);
        assert_eq!((layout.align(), layout.size()), (PAGE, 9 * PAGE));
        let layout = Slots::<[u64; 9]>::layout(256);
        assert_eq!((layout.align(), layout.size()), (PAGE, 5 * PAGE));
        let layout = Slots::<[u64; 9]>::layout(128);
        assert_eq!(layout.align(), Slots::<[u64; 9]>::ALIGN);
    }

    #[test]
    fn slots_keep_written_works() {
        let slots = Slots::<u64>::new(16);
        let queue = QueueId::send(QpId::next());
        for i in 0..16 {
            // SAFETY: one of the slots, not shared.
            unsafe { slots.slot(queue.wr_id(i)).write(i.into()) };
        }
        for i in 0..16 {
            // SAFETY: as above, and written.
            let read = unsafe { slots.slot(queue.wr_id(i)).read() };
            assert_eq!(read, u64::from(i));
        }
    }
}
