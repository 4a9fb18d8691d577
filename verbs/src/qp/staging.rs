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
/// They point to each other, so they are reached only through the pointers, and stay where they
/// are until the queue is dropped.
pub(super) struct Staging {
    // INVARIANT: boxes of as many requests as are in `wrs..end`, and of `stride` elements for each,
    // of which nobody else has a reference; freed in `drop`. Each request has the next as its
    // successor, but for the last one while C has the list.
    wrs: NonNull<SendWr>,
    end: NonNull<SendWr>,
    sges: NonNull<MaybeUninit<ffi::ibv_sge>>,
    stride: NonZero<usize>,
    // INVARIANT: a request of the box, or `end`. Those before it are written, and so are their
    // elements, wherever they are.
    next: NonNull<SendWr>,
}

/// The place for one more request of a batch, which [`Staging::add`] has begun.
pub(super) struct Place<'s> {
    // INVARIANT: the `next` of `staging`, which is not `end`.
    wr: NonNull<SendWr>,
    staging: &'s mut Staging,
}

impl Staging {
    /// An area for requests of at most so many elements, which is allocated when it is needed.
    pub(super) fn new(stride: NonZero<u32>) -> Self {
        Self {
            wrs: NonNull::dangling(),
            end: NonNull::dangling(),
            sges: NonNull::dangling(),
            // As many as memory can have.
            stride: NonZero::new(stride.get() as usize).unwrap_or(NonZero::<usize>::MIN),
            next: NonNull::dangling(),
        }
    }

    /// Begins a batch of at most so many requests, which is the same number each time.
    #[inline]
    pub(super) fn begin(&mut self, room: usize) {
        // What a forgotten batch has left behind is not posted; its work comes back with later work,
        // or, where completions come in any order, when the queue pair is destroyed.
        self.clear();
        if self.room() == 0 {
            self.allocate(room);
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate(&mut self, room: usize) {
        let mut wrs: Box<[SendWr]> = (0..room).map(|_| SendWr::unwritten()).collect();
        let first = wrs.as_mut_ptr();
        for (index, wr) in (1..).zip(&mut wrs) {
            wr.link(first.wrapping_add(index).cast());
        }
        let sges: Box<[MaybeUninit<ffi::ibv_sge>]> =
            Box::new_uninit_slice(room * self.stride.get());
        self.wrs = NonNull::from(Box::leak(wrs)).cast();
        self.sges = NonNull::from(Box::leak(sges)).cast();
        // SAFETY: one past the end of the box.
        self.end = unsafe { self.wrs.add(room) };
        self.next = self.wrs;
    }

    #[inline]
    fn room(&self) -> usize {
        between(self.wrs, self.end)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        between(self.wrs, self.next)
    }

    /// Forgets the requests.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.next = self.wrs;
    }

    /// Begins a request, of which the caller writes the rest; `None` if it has too many elements.
    ///
    /// # Safety
    /// - Since [`begin`](Self::begin), fewer requests have been added than there is room for.
    #[inline]
    pub(super) unsafe fn add(
        &mut self,
        id: WrId,
        sges: &SgeList,
        flags: ffi::ibv_send_flags,
    ) -> Option<Place<'_>> {
        debug_assert!(self.len() < self.room());
        if sges.len() > self.stride.get() {
            return None;
        }
        let elements = match sges.resident() {
            Some(resident) => resident.as_ptr(),
            None => self.copy(sges),
        };
        let mut place = Place {
            wr: self.next,
            staging: self,
        };
        place.wr().begin_linked(id, elements, sges.count(), flags);
        Some(place)
    }

    /// Copies the elements of the next request, of which there are at most `stride`.
    #[inline]
    fn copy(&mut self, sges: &SgeList) -> *mut ffi::ibv_sge {
        let first = self.len() * self.stride.get();
        let elements: *mut ffi::ibv_sge = self.sges.as_ptr().wrapping_add(first).cast();
        // SAFETY: there is room for `stride` elements of each request (invariant). They are not
        // those of `sges`, which nobody has a reference to.
        unsafe { ptr::copy_nonoverlapping(sges.as_ptr(), elements, sges.len()) };
        elements
    }

    /// The list of the requests, ended after the last; `None` if there is none.
    ///
    /// [`relink`](Self::relink) comes after it, when C has read the list.
    #[inline]
    pub(super) fn list(&mut self) -> Option<*mut ffi::ibv_send_wr> {
        self.link_last(ptr::null_mut());
        (self.len() > 0).then(|| self.wrs.as_ptr().cast())
    }

    /// Undoes what [`list`](Self::list) has done.
    #[inline]
    pub(super) fn relink(&mut self) {
        self.link_last(self.next.as_ptr().cast());
    }

    #[inline]
    fn link_last(&mut self, successor: *mut ffi::ibv_send_wr) {
        if self.len() == 0 {
            return;
        }
        // SAFETY: there is a request before `next` in the box (invariant).
        let mut last = unsafe { self.next.sub(1) };
        // SAFETY: the request is inside of the box, and borrowed with `self`.
        unsafe { last.as_mut() }.link(successor);
    }

    /// The index of the request that C has named as the first it did not post. If it has named
    /// none, nobody knows, so every request counts as posted: the device may have any of them.
    pub(super) fn position(&self, bad: *mut ffi::ibv_send_wr) -> usize {
        let named = (0..self.len()).find(|&index| ptr::eq(self.wr(index), bad));
        named.unwrap_or(self.len())
    }

    /// How many requests have not been signaled after the first `count`, if so many had not been
    /// before the batch.
    pub(super) fn unsignaled(&self, before: u32, count: usize) -> u32 {
        (0..count.min(self.len())).fold(before, |unsignaled, index| {
            // SAFETY: the request is inside of the box, and has its flags written (invariant).
            let flags = unsafe { (*self.wr(index)).send_flags };
            if flags & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 == 0 {
                unsignaled + 1
            } else {
                0
            }
        })
    }

    /// A request: inside of the box, or one past its end.
    fn wr(&self, index: usize) -> *mut ffi::ibv_send_wr {
        self.wrs.as_ptr().wrapping_add(index).cast()
    }
}

impl Place<'_> {
    /// The request.
    #[inline]
    pub(super) fn wr(&mut self) -> &mut SendWr {
        // SAFETY: inside of the box (invariants of both), which is borrowed with `self`.
        unsafe { self.wr.as_mut() }
    }

    /// Adds the request, which is complete, to the batch.
    #[inline]
    pub(super) fn take(self) {
        // SAFETY: a request of the box (invariant), so this is one, or `end`.
        self.staging.next = unsafe { self.wr.add(1) };
    }
}

/// How many requests there are from one to another, of one box.
#[inline]
fn between(first: NonNull<SendWr>, end: NonNull<SendWr>) -> usize {
    (end.addr().get() - first.addr().get()) / size_of::<SendWr>()
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.room() == 0 {
            return;
        }
        let wrs = ptr::slice_from_raw_parts_mut(self.wrs.as_ptr(), self.room());
        // SAFETY: the box that was leaked (invariant). What it points to is not used any more.
        drop(unsafe { Box::from_raw(wrs) });
        let elements = self.room() * self.stride.get();
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
        assert!(staging.len() < staging.room());
        // SAFETY: as asserted.
        let place = unsafe { staging.add(id, &sges, flags) };
        place.map(Place::take).is_some()
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
        staging.relink();
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
    fn what_has_too_many_elements_is_not_added() {
        let mut staging = staging(2, 2);
        assert!(
            !add(&mut staging, 0, &[1, 2, 3]),
            "more elements than the stride"
        );
        assert!(add(&mut staging, 0, &[1]) && add(&mut staging, 1, &[2]));
        assert_eq!(listed(&mut staging), [[1], [2]]);
    }

    #[test]
    fn an_element_that_lies_still_is_not_copied() {
        // SAFETY: never reaches a device.
        let sge = unsafe { Sge::new(NonNull::dangling(), 5, 0) };
        let (mut list, mut staging) = (SgeList::new(), staging(1, 1));
        // SAFETY: it outlives the list.
        unsafe { list.push_resident(NonNull::from(&sge)) };
        let id = QueueId::send(QpId::next()).wr_id(0);
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        // SAFETY: there is room for one, and it is the first.
        unsafe { staging.add(id, &list, flags) }.unwrap().take();
        let first = staging.list().unwrap();
        // SAFETY: a request of the list, which has this field written.
        let elements = unsafe { (*first).sg_list };
        assert!(ptr::eq(elements, (&raw const sge).cast()));
        assert_eq!(listed(&mut staging), [[5]]);
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
