//! Where the requests of a batch wait to be posted.

use std::{
    marker::PhantomData,
    mem::MaybeUninit,
    num::NonZero,
    ptr::{self, NonNull},
};

use ibverbs_sys as ffi;

use crate::{
    bad_wr::{BadWr, Effect, QueueKind},
    op::SendWr,
    quirk::FailedPosts,
    work::{NO_MEMORY, SgeList},
    wr_id::WrId,
};

/// Requests and their elements, written in place for C.
///
/// They point to each other, so all access is through pointers, and they do not move until the
/// queue is dropped. The batch tracks the number written, by the place of the next one.
pub(super) struct Staging {
    // INVARIANT: boxes of all requests of `wrs..end`, and of `stride` elements for each, without
    // any other reference; freed in `drop`. Each request has the next as its successor, except for
    // the last one while C has the list.
    wrs: NonNull<SendWr>,
    end: NonNull<SendWr>,
    sges: NonNull<MaybeUninit<ffi::ibv_sge>>,
    stride: NonZero<usize>,
}

/// Where the next request of a batch will lie.
#[derive(Clone, Copy)]
pub(super) struct Next(
    // INVARIANT: a request in the box of a staging area, or one past the end. The requests before
    // are written, and so are their elements, wherever they are.
    NonNull<SendWr>,
);

// SAFETY: only the staging area uses the pointer, and the area may change threads.
unsafe impl Send for Next {}
// SAFETY: see above.
unsafe impl Sync for Next {}

/// The place for one more request of a batch, begun by [`Staging::add`].
pub(super) struct Place<'s> {
    // INVARIANT: a request of the box.
    wr: NonNull<SendWr>,
    staging: PhantomData<&'s mut Staging>,
}

impl Staging {
    /// An area for requests of at most `stride` elements, allocated at first use.
    pub(super) fn new(stride: NonZero<u32>) -> Self {
        Self {
            wrs: NonNull::dangling(),
            end: NonNull::dangling(),
            sges: NonNull::dangling(),
            // As many as memory can have.
            stride: NonZero::new(stride.get() as usize).unwrap_or(NonZero::<usize>::MIN),
        }
    }

    /// Begins a batch of at most `capacity` requests, the same number each time.
    #[inline]
    pub(super) fn begin(&mut self, capacity: usize) -> Next {
        if self.capacity() == 0 {
            self.allocate(capacity);
        }
        Next(self.wrs)
    }

    #[cold]
    #[inline(never)]
    fn allocate(&mut self, capacity: usize) {
        let wrs: Box<[SendWr]> = (0..capacity).map(|_| SendWr::unwritten()).collect();
        // Every later pointer to a request derives from this one, so that none invalidates another.
        let first: NonNull<SendWr> = NonNull::from(Box::leak(wrs)).cast();
        for index in 0..capacity {
            // SAFETY: a request of the box.
            let mut wr = unsafe { first.add(index) };
            // SAFETY: as above, and not in use yet.
            unsafe { wr.as_mut() }.link(first.as_ptr().wrapping_add(index + 1).cast());
        }
        let sges: Box<[MaybeUninit<ffi::ibv_sge>]> =
            Box::new_uninit_slice(capacity * self.stride.get());
        self.wrs = first;
        self.sges = NonNull::from(Box::leak(sges)).cast();
        // SAFETY: one past the end of the box.
        self.end = unsafe { self.wrs.add(capacity) };
    }

    #[inline]
    fn capacity(&self) -> usize {
        between(self.wrs, self.end)
    }

    /// The number of requests before `next`.
    #[inline]
    pub(super) fn len(&self, next: Next) -> usize {
        between(self.wrs, next.0)
    }

    /// Begins a request, to be completed by the caller; `None` if there are too many elements.
    ///
    /// # Safety
    /// - `next` is of this area, and not its end: since [`begin`](Self::begin), fewer requests have
    ///   been added than the area has room for.
    #[inline]
    pub(super) unsafe fn add(
        &mut self,
        next: Next,
        id: WrId,
        sges: &SgeList,
        flags: ffi::ibv_send_flags,
    ) -> Option<Place<'_>> {
        debug_assert!(self.len(next) < self.capacity());
        if sges.len() > self.stride.get() {
            return None;
        }
        let elements = match sges.resident() {
            Some(resident) => resident.as_ptr(),
            None => self.copy(next, sges),
        };
        let mut request = Place {
            wr: next.0,
            staging: PhantomData,
        };
        request.wr().begin_linked(id, elements, sges.count(), flags);
        Some(request)
    }

    /// Copies the elements of the next request, at most `stride`.
    #[inline]
    fn copy(&mut self, next: Next, sges: &SgeList) -> *mut ffi::ibv_sge {
        let first = self.len(next) * self.stride.get();
        let elements: *mut ffi::ibv_sge = self.sges.as_ptr().wrapping_add(first).cast();
        if sges.len() == 0 {
            // See `SgeList::as_mut_ptr`.
            // SAFETY: there is room for at least one element of each request (invariant).
            unsafe { elements.write(NO_MEMORY) };
        }
        // SAFETY: there is room for `stride` elements of each request (invariant). They do not
        // overlap `sges`, since no reference to them exists.
        unsafe { ptr::copy_nonoverlapping(sges.as_ptr(), elements, sges.len()) };
        elements
    }

    /// The list of the requests before `next`, ended after the last; `None` if there is none.
    ///
    /// Call [`relink`](Self::relink) after C has read the list.
    ///
    /// # Safety
    /// - `next` is of this area.
    #[inline]
    pub(super) unsafe fn list(&mut self, next: Next) -> Option<*mut ffi::ibv_send_wr> {
        if next.0 == self.wrs {
            return None;
        }
        // SAFETY: as the caller promises, and there is a request before `next`.
        unsafe { self.link_last(next, ptr::null_mut()) };
        Some(self.wrs.as_ptr().cast())
    }

    /// Undoes [`list`](Self::list).
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

    /// The effect of a failed post of a batch.
    pub(super) fn effect(
        &self,
        proven: FailedPosts,
        next: Next,
        bad: &BadWr<ffi::ibv_send_wr>,
    ) -> Effect {
        bad.effect_on(proven, QueueKind::Send, self.len(next), |index| {
            self.wr(index)
        })
    }

    /// The number of unsignaled requests after the first `count`, with `before` unsignaled ones
    /// before the batch.
    ///
    /// # Safety
    /// - The batch has at least `count` requests.
    pub(super) unsafe fn unsignaled(&self, before: u32, count: usize) -> u32 {
        (0..count).fold(before, |unsignaled, index| {
            // SAFETY: the request is inside the box, and has its flags written, as the caller
            // promises.
            let flags = unsafe { (*self.wr(index)).send_flags };
            if flags & ffi::ibv_send_flags::IBV_SEND_SIGNALED.0 == 0 {
                unsignaled + 1
            } else {
                0
            }
        })
    }

    /// A request: inside the box, or one past the end.
    fn wr(&self, index: usize) -> *mut ffi::ibv_send_wr {
        self.wrs.as_ptr().wrapping_add(index).cast()
    }
}

impl Place<'_> {
    /// The request.
    #[inline]
    pub(super) fn wr(&mut self) -> &mut SendWr {
        // SAFETY: inside the box (invariant), and borrowed with the staging area.
        unsafe { self.wr.as_mut() }
    }

    /// The place after this complete request.
    #[inline]
    pub(super) fn take(self) -> Next {
        // SAFETY: a request of the box (invariant), so this is one, or one past the end.
        Next(unsafe { self.wr.add(1) })
    }
}

/// The number of requests from one to another, of one box.
#[inline]
fn between(first: NonNull<SendWr>, end: NonNull<SendWr>) -> usize {
    (end.addr().get() - first.addr().get()) / size_of::<SendWr>()
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.capacity() == 0 {
            return;
        }
        let wrs = ptr::slice_from_raw_parts_mut(self.wrs.as_ptr(), self.capacity());
        // SAFETY: the leaked box (invariant). Its content is not used any more.
        drop(unsafe { Box::from_raw(wrs) });
        let elements = self.capacity() * self.stride.get();
        let sges = ptr::slice_from_raw_parts_mut(self.sges.as_ptr(), elements);
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(sges) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        quirk::Named,
        work::{Gather, Sge},
        wr_id::{QpId, QueueId},
    };

    /// Work with elements of these lengths, never passed to a device.
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
        assert!(staging.len(*next) < staging.capacity());
        // SAFETY: as asserted.
        let request = unsafe { staging.add(*next, id, &sges, flags) };
        let request = request.map(Place::take);
        *next = request.unwrap_or(*next);
        request.is_some()
    }

    /// The lengths of the elements of each request in the list, as seen by C.
    fn listed(staging: &mut Staging, batch: Next) -> Vec<Vec<u32>> {
        // SAFETY: of this area, as in every test.
        let Some(mut next) = (unsafe { staging.list(batch) }) else {
            return Vec::new();
        };
        let mut lengths = Vec::new();
        while !next.is_null() {
            // SAFETY: a request of the list, with this field written.
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
        // SAFETY: of this area, and there is a request before `batch`.
        unsafe { staging.relink(batch) };
        lengths
    }

    fn staging(capacity: usize, stride: u32) -> (Staging, Next) {
        let mut staging = Staging::new(NonZero::new(stride).unwrap());
        let next = staging.begin(capacity);
        (staging, next)
    }

    #[test]
    fn staged_requests_are_linked_with_their_elements() {
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

    /// Some providers read the first element without looking at the number.
    #[test]
    fn staged_request_without_elements_points_to_no_memory() {
        let (mut staging, mut next) = staging(1, 2);
        assert!(add(&mut staging, &mut next, 0, &[5, 6]));
        assert_eq!(listed(&mut staging, next), [[5, 6]]);
        let mut next = staging.begin(1);
        assert!(add(&mut staging, &mut next, 1, &[]));
        // SAFETY: of this area.
        let first = unsafe { staging.list(next) }.unwrap();
        // SAFETY: a request of the list, with this field written.
        let elements = unsafe { (*first).sg_list };
        // SAFETY: there is always one element.
        let element = unsafe { *elements };
        assert_eq!((element.addr, element.length, element.lkey), (0, 0, 0));
    }

    #[test]
    fn staging_refuses_too_many_elements() {
        let (mut staging, mut next) = staging(2, 2);
        assert!(
            !add(&mut staging, &mut next, 0, &[1, 2, 3]),
            "more elements than the stride"
        );
        assert!(add(&mut staging, &mut next, 0, &[1]) && add(&mut staging, &mut next, 1, &[2]));
        assert_eq!(listed(&mut staging, next), [[1], [2]]);
    }

    #[test]
    fn staging_does_not_copy_a_resident_element() {
        // SAFETY: never reaches a device.
        let sge = unsafe { Sge::new(NonNull::dangling(), 5, 0) };
        let (mut list, (mut staging, next)) = (SgeList::new(), staging(1, 1));
        // SAFETY: the element outlives the list.
        unsafe { list.push_resident(NonNull::from(&sge)) };
        let id = QueueId::send(QpId::next()).wr_id(0);
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        // SAFETY: there is room for one, the first.
        let request = unsafe { staging.add(next, id, &list, flags) };
        let next = request.unwrap().take();
        // SAFETY: of this area.
        let first = unsafe { staging.list(next) }.unwrap();
        // SAFETY: a request of the list, with this field written.
        let elements = unsafe { (*first).sg_list };
        assert!(ptr::eq(elements, (&raw const sge).cast()));
        assert_eq!(listed(&mut staging, next), [[5]]);
    }

    #[test]
    fn staging_finds_the_bad_request() {
        let proven = FailedPosts {
            named_send: Named::Unposted,
            ..FailedPosts::UNKNOWN
        };
        let (mut staging, mut next) = staging(3, 1);
        for sequence in 0..3 {
            assert!(add(&mut staging, &mut next, sequence, &[1]));
        }
        // SAFETY: of this area.
        let first = unsafe { staging.list(next) }.unwrap();
        // SAFETY: a request of the list, whose common fields are written.
        let second = unsafe { (*first).next };
        let effect = |named| {
            let mut bad = BadWr::new();
            // SAFETY: the place is of `bad`.
            unsafe { *bad.as_out() = named };
            staging.effect(proven, next, &bad)
        };
        assert_eq!(effect(first), Effect::Posted(0));
        assert_eq!(effect(second), Effect::Posted(1));
        assert_eq!(effect(ptr::null_mut()), Effect::Unknown, "none is named");
    }
}
