//! Where the requests of a batch wait to be posted.

use std::{
    mem::MaybeUninit,
    num::NonZero,
    ptr::{self, NonNull},
};

use ibverbs_sys as ffi;

use crate::{op::SendWr, work::SgeList, wr_id::WrId};

/// Requests and their elements, each written where C will read it.
///
/// They point to each other, so they are reached only through the two pointers, and stay where they
/// are until the queue is dropped.
pub(super) struct Staging {
    // INVARIANT: boxes of `room` requests and of `room * stride` elements, of which nobody else
    // has a reference; freed in `drop`.
    wrs: NonNull<SendWr>,
    sges: NonNull<MaybeUninit<ffi::ibv_sge>>,
    room: usize,
    stride: NonZero<usize>,
    // INVARIANT: the first `len` requests are written, each with the next as its successor, and so
    // are their elements, from `index * stride`. At most `room`.
    len: usize,
}

impl Staging {
    /// An area for requests of at most so many elements, which is allocated when it is needed.
    pub(super) fn new(stride: NonZero<u32>) -> Self {
        Self {
            wrs: NonNull::dangling(),
            sges: NonNull::dangling(),
            room: 0,
            // As many as memory can have.
            stride: NonZero::new(stride.get() as usize).unwrap_or(NonZero::<usize>::MIN),
            len: 0,
        }
    }

    /// Begins a batch of at most so many requests, which is the same number each time.
    pub(super) fn begin(&mut self, room: usize) {
        // What a forgotten batch has left behind is not posted; its work comes back with later work.
        self.len = 0;
        if self.room == 0 {
            self.allocate(room);
        }
    }

    #[cold]
    fn allocate(&mut self, room: usize) {
        let wrs: Box<[SendWr]> = (0..room).map(|_| SendWr::unwritten()).collect();
        let sges: Box<[MaybeUninit<ffi::ibv_sge>]> =
            Box::new_uninit_slice(room * self.stride.get());
        self.wrs = NonNull::from(Box::leak(wrs)).cast();
        self.sges = NonNull::from(Box::leak(sges)).cast();
        self.room = room;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets the requests.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a request, of which the caller writes the rest; `None` if there is no room for it.
    #[inline]
    pub(super) fn add(
        &mut self,
        id: WrId,
        sges: &SgeList,
        flags: ffi::ibv_send_flags,
    ) -> Option<&mut SendWr> {
        if self.len >= self.room || sges.len() > self.stride.get() {
            return None;
        }
        let elements = self.sges_of(self.len);
        // SAFETY: there is room for `stride` elements, and so for these (invariant). They are not
        // those of `sges`, which nobody has a reference to.
        unsafe { ptr::copy_nonoverlapping(sges.as_ptr(), elements, sges.len()) };
        let (wr, next) = (self.wr(self.len), self.wr(self.len + 1));
        // SAFETY: the request is inside of the box (invariant), and borrowed with `self`.
        let wr = unsafe { &mut *wr };
        wr.begin(id, elements, sges.count(), flags);
        wr.link(next.cast());
        self.len += 1;
        Some(wr)
    }

    /// Ends the list after the last request, and returns the first; `None` if there is none.
    pub(super) fn list(&mut self) -> Option<*mut ffi::ibv_send_wr> {
        let last = self.wr(self.len.checked_sub(1)?);
        // SAFETY: the request is inside of the box (invariant), and borrowed with `self`.
        unsafe { &mut *last }.link(ptr::null_mut());
        Some(self.wr(0).cast())
    }

    /// The index of the request that C has named as the first it did not post. If it has named
    /// none, nobody knows, so every request counts as posted: the device may have any of them.
    pub(super) fn position(&self, bad: *mut ffi::ibv_send_wr) -> usize {
        let named = (0..self.len).find(|&index| ptr::eq(self.wr(index).cast(), bad));
        named.unwrap_or(self.len)
    }

    /// How many requests have not been signaled after the first `count`, if so many had not been
    /// before the batch.
    pub(super) fn unsignaled(&self, before: u32, count: usize) -> u32 {
        (0..count.min(self.len)).fold(before, |unsignaled, index| {
            let wr: *mut ffi::ibv_send_wr = self.wr(index).cast();
            // SAFETY: the request is inside of the box, and has its flags written (invariant).
            let flags = unsafe { (*wr).send_flags };
            if flags & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 == 0 {
                unsignaled + 1
            } else {
                0
            }
        })
    }

    /// A request: inside of the box, or one past its end.
    #[inline]
    fn wr(&self, index: usize) -> *mut SendWr {
        self.wrs.as_ptr().wrapping_add(index)
    }

    #[inline]
    fn sges_of(&self, index: usize) -> *mut ffi::ibv_sge {
        let first = index * self.stride.get();
        self.sges.as_ptr().wrapping_add(first).cast()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.room == 0 {
            return;
        }
        let wrs = ptr::slice_from_raw_parts_mut(self.wrs.as_ptr(), self.room);
        // SAFETY: the box that was leaked (invariant). What it points to is not used any more.
        drop(unsafe { Box::from_raw(wrs) });
        let elements = self.room * self.stride.get();
        let sges = ptr::slice_from_raw_parts_mut(self.sges.as_ptr(), elements);
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(sges) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        work::{Gather, Sge},
        wr_id::{QpId, QueueId},
    };

    /// Work of elements of these lengths, which never reaches a device.
    struct Lengths(&'static [u32]);

    // SAFETY: never posted.
    unsafe impl Gather for Lengths {
        fn gather(&self, list: &mut SgeList) {
            for &length in self.0 {
                // SAFETY: never reaches a device.
                list.push(unsafe { Sge::new(NonNull::dangling(), length, 0) });
            }
        }
    }

    fn add(staging: &mut Staging, sequence: u32, lengths: &'static [u32]) -> bool {
        let id = QueueId::send(QpId::next()).wr_id(sequence);
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        let sges = SgeList::of(&Lengths(lengths));
        staging.add(id, &sges, flags).is_some()
    }

    /// The lengths of the elements of each request in the list, as C would find them.
    fn listed(staging: &mut Staging) -> Vec<Vec<u32>> {
        let mut next = staging.list().unwrap_or(ptr::null_mut());
        let mut lengths = Vec::new();
        while !next.is_null() {
            // SAFETY: a request of the list, which has this field written.
            let first = unsafe { (*next).sg_list };
            // SAFETY: as above.
            let count = usize::try_from(unsafe { (*next).num_sge }).unwrap();
            let of = |index| {
                // SAFETY: one of the elements of the request.
                unsafe { (*first.wrapping_add(index)).length }
            };
            lengths.push((0..count).map(of).collect());
            // SAFETY: as above.
            next = unsafe { (*next).next };
        }
        lengths
    }

    fn staging(room: usize, stride: u32) -> Staging {
        let mut staging = Staging::new(NonZero::new(stride).unwrap());
        staging.begin(room);
        staging
    }

    #[test]
    fn requests_are_linked_with_their_own_elements() {
        let mut staging = staging(4, 3);
        assert!(staging.list().is_none());
        for round in 0..2 {
            assert!(add(&mut staging, round, &[1, 2, 3]));
            assert!(add(&mut staging, round, &[]));
            assert!(add(&mut staging, round, &[4]));
            assert_eq!(listed(&mut staging), [vec![1, 2, 3], vec![], vec![4]]);
            staging.begin(4);
            assert_eq!(listed(&mut staging), Vec::<Vec<u32>>::new());
        }
    }

    #[test]
    fn what_has_no_room_is_not_added() {
        let mut staging = staging(2, 2);
        assert!(
            !add(&mut staging, 0, &[1, 2, 3]),
            "more elements than the stride"
        );
        assert!(add(&mut staging, 0, &[1]) && add(&mut staging, 1, &[2]));
        assert!(!add(&mut staging, 2, &[3]), "more requests than room");
        assert_eq!(listed(&mut staging), [[1], [2]]);
        let mut nowhere = Staging::new(NonZero::<u32>::MIN);
        assert!(!add(&mut nowhere, 0, &[1]), "nothing has been begun");
    }

    #[test]
    fn the_request_that_c_names_is_found() {
        let mut staging = staging(3, 1);
        for sequence in 0..3 {
            assert!(add(&mut staging, sequence, &[1]));
        }
        let first = staging.list().unwrap();
        // SAFETY: a request of the list, whose common fields are written.
        let second = unsafe { (*first).next };
        assert_eq!((staging.position(first), staging.position(second)), (0, 1));
        assert_eq!(staging.position(ptr::null_mut()), 3, "none is named");
    }
}
