//! Where the requests of a batch wait to be posted.

use std::{
    marker::PhantomData,
    mem::MaybeUninit,
    num::NonZero,
    ptr::{self, NonNull},
};

use ibverbs_sys as ffi;

use crate::{bad_wr::BadWr, op::SendWr, work::SgeList, wr_id::WrId};

/// Requests and their elements, each written where C will read it.
///
/// They point to each other, so they are reached only through the pointers, and stay where they
/// are until the queue is dropped. How many are written is up to the batch, which has the place of
/// the next one.
pub(super) struct Staging {
    // INVARIANT: boxes of as many requests as are in `wrs..end`, and of `stride` elements for each,
    // of which nobody else has a reference; freed in `drop`. Each request has the next as its
    // successor, but for the last one while C has the list.
    wrs: NonNull<SendWr>,
    end: NonNull<SendWr>,
    sges: NonNull<MaybeUninit<ffi::ibv_sge>>,
    stride: NonZero<usize>,
}

/// Where the next request of a batch will lie.
#[derive(Clone, Copy)]
pub(super) struct Next(
    // INVARIANT: a request of the box of a staging area, or one past its end. Those before it are
    // written, and so are their elements, wherever they are.
    NonNull<SendWr>,
);

// SAFETY: nothing is done with it but by the staging area, which may change threads.
unsafe impl Send for Next {}
// SAFETY: see above.
unsafe impl Sync for Next {}

/// The place for one more request of a batch, which [`Staging::add`] has begun.
pub(super) struct Place<'s> {
    // INVARIANT: a request of the box.
    wr: NonNull<SendWr>,
    staging: PhantomData<&'s mut Staging>,
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
        }
    }

    /// Begins a batch of at most so many requests, which is the same number each time.
    #[inline]
    pub(super) fn begin(&mut self, room: usize) -> Next {
        if self.room() == 0 {
            self.allocate(room);
        }
        Next(self.wrs)
    }

    #[cold]
    #[inline(never)]
    fn allocate(&mut self, room: usize) {
        let wrs: Box<[SendWr]> = (0..room).map(|_| SendWr::unwritten()).collect();
        // Every later pointer to a request is made of this one, so that none ends another's validity.
        let first: NonNull<SendWr> = NonNull::from(Box::leak(wrs)).cast();
        for index in 0..room {
            // SAFETY: a request of the box.
            let mut wr = unsafe { first.add(index) };
            // SAFETY: as above, and nothing else uses it yet.
            unsafe { wr.as_mut() }.link(first.as_ptr().wrapping_add(index + 1).cast());
        }
        let sges: Box<[MaybeUninit<ffi::ibv_sge>]> =
            Box::new_uninit_slice(room * self.stride.get());
        self.wrs = first;
        self.sges = NonNull::from(Box::leak(sges)).cast();
        // SAFETY: one past the end of the box.
        self.end = unsafe { self.wrs.add(room) };
    }

    #[inline]
    fn room(&self) -> usize {
        between(self.wrs, self.end)
    }

    /// How many requests there are before `next`.
    #[inline]
    pub(super) fn len(&self, next: Next) -> usize {
        between(self.wrs, next.0)
    }

    /// Begins a request, of which the caller writes the rest; `None` if it has too many elements.
    ///
    /// # Safety
    /// - `next` is of this area, and not its end: since [`begin`](Self::begin), fewer requests have
    ///   been added than there is room for.
    #[inline]
    pub(super) unsafe fn add(
        &mut self,
        next: Next,
        id: WrId,
        sges: &SgeList,
        flags: ffi::ibv_send_flags,
    ) -> Option<Place<'_>> {
        debug_assert!(self.len(next) < self.room());
        if sges.len() > self.stride.get() {
            return None;
        }
        let elements = match sges.resident() {
            Some(resident) => resident.as_ptr(),
            None => self.copy(next, sges),
        };
        let mut place = Place {
            wr: next.0,
            staging: PhantomData,
        };
        place.wr().begin_linked(id, elements, sges.count(), flags);
        Some(place)
    }

    /// Copies the elements of the next request, of which there are at most `stride`.
    #[inline]
    fn copy(&mut self, next: Next, sges: &SgeList) -> *mut ffi::ibv_sge {
        let first = self.len(next) * self.stride.get();
        let elements: *mut ffi::ibv_sge = self.sges.as_ptr().wrapping_add(first).cast();
        // SAFETY: there is room for `stride` elements of each request (invariant). They are not
        // those of `sges`, which nobody has a reference to.
        unsafe { ptr::copy_nonoverlapping(sges.as_ptr(), elements, sges.len()) };
        elements
    }

    /// The list of the requests before `next`, ended after the last; `None` if there is none.
    ///
    /// [`relink`](Self::relink) comes after it, when C has read the list.
    ///
    /// # Safety
    /// - `next` is of this area.
    #[inline]
    pub(super) unsafe fn list(&mut self, next: Next) -> Option<*mut ffi::ibv_send_wr> {
        if next.0 == self.wrs {
            return None;
        }
        // SAFETY: the caller's promise, and there is a request before it.
        unsafe { self.link_last(next, ptr::null_mut()) };
        Some(self.wrs.as_ptr().cast())
    }

    /// Undoes what [`list`](Self::list) has done.
    ///
    /// # Safety
    /// - `next` is of this area, and not its first request.
    #[inline]
    pub(super) unsafe fn relink(&mut self, next: Next) {
        // SAFETY: the caller's promise.
        unsafe { self.link_last(next, next.0.as_ptr().cast()) };
    }

    /// # Safety
    /// - `next` is of this area, and not its first request.
    #[inline]
    unsafe fn link_last(&mut self, next: Next, successor: *mut ffi::ibv_send_wr) {
        // SAFETY: there is a request before `next` in the box, as the caller promises.
        let mut last = unsafe { next.0.sub(1) };
        // SAFETY: the request is inside of the box, and borrowed with `self`.
        unsafe { last.as_mut() }.link(successor);
    }

    /// How many requests of a batch count as posted, after a post that has failed with `errno`.
    pub(super) fn posted(&self, next: Next, errno: i32, bad: &BadWr<ffi::ibv_send_wr>) -> usize {
        bad.first_of(errno, self.len(next), |index| self.wr(index))
    }

    /// How many requests have not been signaled after the first `count`, if so many had not been
    /// before the batch.
    ///
    /// # Safety
    /// - The batch has had so many requests.
    pub(super) unsafe fn unsignaled(&self, before: u32, count: usize) -> u32 {
        (0..count).fold(before, |unsignaled, index| {
            // SAFETY: the request is inside of the box, and has its flags written, as the caller
            // promises.
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
        // SAFETY: inside of the box (invariant), which is borrowed with the staging area.
        unsafe { self.wr.as_mut() }
    }

    /// The place after this request, which is complete.
    #[inline]
    pub(super) fn take(self) -> Next {
        // SAFETY: a request of the box (invariant), so this is one, or one past the end.
        Next(unsafe { self.wr.add(1) })
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

    fn add(staging: &mut Staging, next: &mut Next, sequence: u32, lengths: &'static [u32]) -> bool {
        let id = QueueId::send(QpId::next()).wr_id(sequence);
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        let sges = SgeList::of(&Lengths(lengths));
        assert!(staging.len(*next) < staging.room());
        // SAFETY: as asserted.
        let place = unsafe { staging.add(*next, id, &sges, flags) };
        let place = place.map(Place::take);
        *next = place.unwrap_or(*next);
        place.is_some()
    }

    /// The lengths of the elements of each request in the list, as C would find them.
    fn listed(staging: &mut Staging, batch: Next) -> Vec<Vec<u32>> {
        // SAFETY: of this area, as in every test.
        let Some(mut next) = (unsafe { staging.list(batch) }) else {
            return Vec::new();
        };
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
        // SAFETY: of this area, and there is a request before it.
        unsafe { staging.relink(batch) };
        lengths
    }

    fn staging(room: usize, stride: u32) -> (Staging, Next) {
        let mut staging = Staging::new(NonZero::new(stride).unwrap());
        let next = staging.begin(room);
        (staging, next)
    }

    #[test]
    fn requests_are_linked_with_their_own_elements() {
        let (mut staging, _) = staging(4, 3);
        for round in 0..2 {
            let mut next = staging.begin(4);
            assert_eq!(listed(&mut staging, next), Vec::<Vec<u32>>::new());
            assert!(add(&mut staging, &mut next, round, &[1, 2, 3]));
            assert!(add(&mut staging, &mut next, round, &[]));
            assert!(add(&mut staging, &mut next, round, &[4]));
            let lengths = listed(&mut staging, next);
            assert_eq!(lengths, [vec![1, 2, 3], vec![], vec![4]]);
        }
    }

    #[test]
    fn what_has_too_many_elements_is_not_added() {
        let (mut staging, mut next) = staging(2, 2);
        assert!(
            !add(&mut staging, &mut next, 0, &[1, 2, 3]),
            "more elements than the stride"
        );
        assert!(add(&mut staging, &mut next, 0, &[1]) && add(&mut staging, &mut next, 1, &[2]));
        assert_eq!(listed(&mut staging, next), [[1], [2]]);
    }

    #[test]
    fn an_element_that_lies_still_is_not_copied() {
        // SAFETY: never reaches a device.
        let sge = unsafe { Sge::new(NonNull::dangling(), 5, 0) };
        let (mut list, (mut staging, next)) = (SgeList::new(), staging(1, 1));
        // SAFETY: it outlives the list.
        unsafe { list.push_resident(NonNull::from(&sge)) };
        let id = QueueId::send(QpId::next()).wr_id(0);
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        // SAFETY: there is room for one, and it is the first.
        let place = unsafe { staging.add(next, id, &list, flags) };
        let next = place.unwrap().take();
        // SAFETY: of this area.
        let first = unsafe { staging.list(next) }.unwrap();
        // SAFETY: a request of the list, which has this field written.
        let elements = unsafe { (*first).sg_list };
        assert!(ptr::eq(elements, (&raw const sge).cast()));
        assert_eq!(listed(&mut staging, next), [[5]]);
    }

    #[test]
    fn the_request_that_c_names_is_found() {
        let (mut staging, mut next) = staging(3, 1);
        for sequence in 0..3 {
            assert!(add(&mut staging, &mut next, sequence, &[1]));
        }
        // SAFETY: of this area.
        let first = unsafe { staging.list(next) }.unwrap();
        // SAFETY: a request of the list, whose common fields are written.
        let second = unsafe { (*first).next };
        let posted = |named| {
            let mut bad = BadWr::new();
            // SAFETY: the place is of `bad`.
            unsafe { *bad.place() = named };
            staging.posted(next, libc::EINVAL, &bad)
        };
        assert_eq!((posted(first), posted(second)), (0, 1));
        assert_eq!(posted(ptr::null_mut()), 3, "none is named");
    }
}
