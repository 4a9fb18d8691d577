//! Work: the memory that a request makes the device read or write.
//!
//! Posting moves *work* into the queue, and the completion returns the work. Work is anything
//! that owns registered memory: a [`Buf`](crate::Buf), a [`SharedBuf`](crate::SharedBuf), several
//! values of work as an array, a tuple, a vector or an option, [`Either`] of two kinds, or any of these
//! [`With`] a context of the caller. All of these need no `unsafe`, nor does a type of the caller around work:
//! [`gather_fields!`](crate::gather_fields) and [`scatter_fields!`](crate::scatter_fields). An [`Arc`] of work is work for
//! any number of requests that read.

use std::{
    io,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use ibverbs_sys as ffi;

#[doc(hidden)]
pub use crate::newtype::{__gather, __scatter};
use crate::{context::ContextId, error::Error};

/// Maximum number of scatter/gather elements in a request. No known device takes more: most take up
/// to 32, and a few up to 96. On a device with a higher limit, the excess is unusable.
pub const MAX_SGE: usize = 128;

/// Maximum number of bytes of a request: of a message of InfiniBand.
const MAX_BYTES: u64 = 1 << 31;

/// Maximum number of bytes of an element. Providers keep the length in 31 bits: the device takes the
/// highest bit of 32 for the mark of inline data.
pub(crate) const MAX_ELEMENT: u32 = (1 << 31) - 1;

/// `ibv_sge`—One element of a scatter/gather list: a range of registered memory.
///
/// Safe code cannot make one, because an element determines the memory a device writes.
#[doc(alias = "ibv_sge")]
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct Sge(ffi::ibv_sge);

impl Sge {
    /// Describes `len` bytes from `start`, registered under `lkey`.
    ///
    /// # Safety
    /// - The range is inside a memory region whose LKey is `lkey`; or the element is sent inline.
    /// - The element is handed only to a [`SgeList`] in [`Gather::gather`]; the rules there govern
    ///   access to the range, and its duration.
    #[inline]
    pub unsafe fn new(start: NonNull<u8>, len: u32, lkey: u32) -> Self {
        Self(ffi::ibv_sge {
            addr: start.as_ptr() as u64,
            length: len,
            lkey,
        })
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.0.length
    }

    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// Sets the length, within the limits of [`new`](Self::new).
    #[inline]
    pub(crate) fn set_len(&mut self, len: u32) {
        self.0.length = len;
    }
}

/// An element without bytes, under no key.
pub(crate) const NO_MEMORY: ffi::ibv_sge = ffi::ibv_sge {
    addr: 0,
    length: 0,
    lkey: 0,
};

/// The scatter/gather list of one request, being filled by [`Gather::gather`].
#[derive(Debug)]
pub struct SgeList {
    // INVARIANT: the first `len.min(MAX_SGE)` elements are initialised.
    elements: [MaybeUninit<ffi::ibv_sge>; MAX_SGE],
    // May be more than `MAX_SGE`: excess elements are counted, and the post is refused.
    len: usize,
    // INVARIANT: where the element, of at most `MAX_ELEMENT` bytes, lies for as long as the work
    // does, if there is one element and this is not null.
    resident: *mut ffi::ibv_sge,
    special: Option<Special>,
    /// Whether work adds at most one element for each of its ranges: see [`pass`](Self::pass).
    single: bool,
    /// Whether some work has more than its single element.
    incomplete: bool,
}

/// Properties of elements other than memory of this process at its virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Special {
    /// The only device on which such elements are valid; `None` if the elements are of several
    /// devices.
    pub(crate) device: Option<ContextId>,
    /// Whether an address is valid on the device only: in this process it names other memory, or
    /// none.
    pub(crate) foreign_addresses: bool,
    /// Whether an element is no memory at all.
    pub(crate) no_memory: bool,
}

impl SgeList {
    #[inline]
    pub(crate) fn new() -> Self {
        Self {
            elements: [const { MaybeUninit::uninit() }; MAX_SGE],
            len: 0,
            resident: ptr::null_mut(),
            special: None,
            single: false,
            incomplete: false,
        }
    }

    /// A list for all elements; or, unless `all`, for the usual case: each range of memory is one element, at the range's
    /// own address. So the compiler knows the number of elements, and the list needs no memory. [`finish`](Self::finish)
    /// reports the other cases.
    #[inline]
    pub(crate) fn pass(all: bool) -> Self {
        Self {
            single: !all,
            ..Self::new()
        }
    }

    /// Ends a [pass](Self::pass). Returns false if a pass for all elements must follow: some range has more than one
    /// element or an address of the device's, or an element has no bytes.
    #[inline]
    pub(crate) fn finish(&mut self) -> bool {
        if self.single {
            return !self.incomplete && !self.has_empty();
        }
        self.omit_empty();
        true
    }

    /// The elements of some work that have bytes.
    #[inline]
    pub(crate) fn of(work: &(impl Gather + ?Sized)) -> Self {
        let mut list = Self::new();
        work.gather(&mut list);
        list.omit_empty();
        list
    }

    /// The stored elements.
    #[inline]
    pub(crate) fn elements(&self) -> &[ffi::ibv_sge] {
        let filled = &self.elements[..self.len.min(MAX_SGE)];
        // SAFETY: these elements are initialised (invariant), and `MaybeUninit` does not change the
        // layout.
        unsafe { slice::from_raw_parts(filled.as_ptr().cast(), filled.len()) }
    }

    /// The array for C; see [`as_mut_ptr`](Self::as_mut_ptr). A single
    /// non-resident element is copied to `single`, so that a list of known length need not lie in
    /// memory.
    #[inline]
    pub(crate) fn lay_out(&mut self, single: &mut MaybeUninit<ffi::ibv_sge>) -> *mut ffi::ibv_sge {
        if let Some(resident) = self.resident() {
            return resident.as_ptr();
        }
        match self.elements() {
            [sge] => single.write(*sge),
            _ => self.as_mut_ptr(),
        }
    }

    /// The only element, in the work's own memory, valid as long as the work. C only reads there.
    #[inline]
    pub(crate) fn resident(&self) -> Option<NonNull<ffi::ibv_sge>> {
        if self.len == 1 {
            NonNull::new(self.resident)
        } else {
            None
        }
    }

    /// The number of bytes, possibly beyond any device's limit.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.elements()
            .iter()
            .map(|sge| u64::from(sge.length))
            .sum()
    }

    /// Why no request can have these elements, because of their lengths, if so.
    #[inline]
    pub(crate) fn too_long(&self, call: &'static str) -> Option<Error> {
        // A resident element has at most `MAX_ELEMENT` bytes.
        if self.resident().is_some() || self.bytes() < MAX_BYTES {
            return None;
        }
        self.lengths_refusal(call)
    }

    #[cold]
    #[inline(never)]
    fn lengths_refusal(&self, call: &'static str) -> Option<Error> {
        let bytes = self.bytes();
        let mut elements = self.elements().iter();
        if bytes <= MAX_BYTES && elements.all(|sge| sge.length <= MAX_ELEMENT) {
            return None;
        }
        let reason = format!(
            "{bytes} bytes; a request has at most {MAX_BYTES}, and an element at most {MAX_ELEMENT}: \
             post the memory in parts"
        );
        Some(Error::refused(call, io::ErrorKind::InvalidInput, reason))
    }

    /// Adds an element. Elements without bytes are omitted from the request.
    #[inline]
    pub fn push(&mut self, sge: Sge) {
        if let Some(slot) = self.elements.get_mut(self.len) {
            slot.write(sge.0);
        }
        self.len += 1;
    }

    /// Adds an element stored in the work: as the only one, C reads the element in place.
    ///
    /// # Safety
    /// - The element stays at its address, unchanged, until the work is dropped or returned,
    ///   regardless of moves of the work, and has at most [`MAX_ELEMENT`] bytes.
    #[inline]
    pub(crate) unsafe fn push_resident(&mut self, sge: NonNull<Sge>) {
        self.resident = sge.as_ptr().cast();
        // SAFETY: the element exists, and is not being changed, as the caller promises.
        self.push(unsafe { *sge.as_ptr() });
    }

    /// Adds a range of memory: `sge`, if that is [all of the range](Self::pass), or the elements of `all`.
    ///
    /// # Safety
    /// - As for [`push_resident`](Self::push_resident).
    #[inline]
    pub(crate) unsafe fn push_resident_range(
        &mut self,
        sge: NonNull<Sge>,
        is_all: bool,
        all: impl FnOnce(&mut Self),
    ) {
        if self.single || is_all {
            // SAFETY: the caller's promise.
            unsafe { self.push_resident(sge) };
            self.incomplete |= !is_all;
        } else {
            all(self);
        }
    }

    /// Adds an element whose address is only the device's.
    pub(crate) fn push_elsewhere(&mut self, sge: Sge, device: ContextId) {
        self.push_special(sge, device, false);
    }

    /// Adds an element without memory.
    pub(crate) fn push_no_memory(&mut self, sge: Sge, device: ContextId) {
        self.push_special(sge, device, true);
    }

    fn push_special(&mut self, sge: Sge, device: ContextId, no_memory: bool) {
        self.push(sge);
        let device = Some(device);
        let before = self.special.unwrap_or(Special {
            device,
            foreign_addresses: false,
            no_memory: false,
        });
        self.special = Some(Special {
            device: device.filter(|_| before.device == device),
            foreign_addresses: before.foreign_addresses || !no_memory,
            no_memory: before.no_memory || no_memory,
        });
    }

    /// Properties of the elements other than plain memory of this process, if any.
    #[inline]
    pub(crate) fn special(&self) -> Option<Special> {
        self.special
    }

    /// Whether there is an element to [omit](Self::omit_empty).
    #[inline]
    pub(crate) fn has_empty(&self) -> bool {
        match self.elements() {
            [sge] => sge.length == 0,
            list => list.iter().any(|sge| sge.length == 0),
        }
    }

    /// Removes elements without bytes, before a post. Assumption: an element of length 0 has no bytes. False for
    /// some devices (mthca, and receives of mlx4 and mlx5): they take 0 for 2 GiB.
    ///
    /// A list of more than [`MAX_SGE`] elements stays too long.
    #[inline]
    pub(crate) fn omit_empty(&mut self) {
        if self.has_empty() {
            self.remove_empty();
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_empty(&mut self) {
        if self.len > MAX_SGE {
            return;
        }
        let mut retained = 0;
        for index in 0..self.len {
            let sge = self.elements()[index];
            if sge.length > 0 {
                self.elements[retained].write(sge);
                retained += 1;
            }
        }
        self.len = retained;
        // The resident element may have been removed.
        self.resident = ptr::null_mut();
    }

    /// The number of pushed elements.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of elements, in C's type. At most [`MAX_SGE`].
    #[inline]
    pub(crate) fn count(&self) -> i32 {
        debug_assert!(self.len <= MAX_SGE);
        #[expect(clippy::cast_possible_truncation, reason = "at most `MAX_SGE`")]
        #[expect(clippy::cast_possible_wrap, reason = "at most `MAX_SGE`")]
        let count = self.len as i32;
        count
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *const ffi::ibv_sge {
        self.elements.as_ptr().cast()
    }

    /// The array for C. Assumption: C reads as many elements as a request has. False for some providers:
    /// they hand the first one to the device also if there is none (irdma for writes, reads and
    /// receives, erdma for reads). So the array of an empty list begins with an element without memory.
    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut ffi::ibv_sge {
        if self.len == 0 {
            self.elements[0].write(NO_MEMORY);
        }
        self.elements.as_mut_ptr().cast()
    }
}

/// Work whose memory a device may read: the source of a send or of an RDMA write.
///
/// # Safety
/// For every element pushed by [`gather`](Self::gather), from the call until `self` is dropped or
/// returned:
/// - the range stays registered, and at its address, however `self` is moved;
/// - either nothing writes the range, or no reference to the range exists: then all access is
///   through pointers, and expects concurrent changes.
///
/// And `gather` pushes the same elements every time, and an [`Sge`] has no other use. If `gather`
/// calls the `gather` of work inside `self`, that work stays inside, unchanged.
#[diagnostic::on_unimplemented(
    message = "a device cannot read the memory of `{Self}`",
    label = "not registered memory",
    note = "register the bytes: `ProtectionDomain::register_buf` takes a value, `alloc_buf` makes a `Buf`; for a context beside it, use `With`"
)]
pub unsafe trait Gather {
    /// Pushes the elements, in the device's reading order.
    fn gather(&self, list: &mut SgeList);
}

/// Work whose memory a device may write: the target of a receive or of an RDMA read.
///
/// # Safety
/// As for [`Gather`], and of every element, until `self` is dropped or returned:
/// - nothing reads the range either, and no other work covers any part of the range; or no
///   reference to the range exists, as above;
/// - the range is registered for local writing.
#[diagnostic::on_unimplemented(
    message = "a device cannot write the memory of `{Self}`",
    label = "not registered memory without other readers",
    note = "receives and reads need memory of their own: a `Buf`, parts of one, a `PoolBuf`, or a `RemoteRegion`"
)]
pub unsafe trait Scatter: Gather {}

/// Work with a context of the caller: any value needed at completion.
///
/// ```
/// # fn f(buf: verbs::Buf) {
/// let work = verbs::work::With::new(buf, "request 17");
/// assert_eq!(work.context, "request 17");
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct With<W, C> {
    /// The bytes for the device to read or write.
    pub work: W,
    /// The caller's value.
    pub context: C,
}

impl<W, C> With<W, C> {
    /// Joins the two.
    pub fn new(work: W, context: C) -> Self {
        Self { work, context }
    }
}

impl<W: AsRef<[u8]>, C> AsRef<[u8]> for With<W, C> {
    fn as_ref(&self) -> &[u8] {
        self.work.as_ref()
    }
}

// SAFETY: the elements belong to `work`, owned by `self`.
unsafe impl<W: Gather, C> Gather for With<W, C> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }
}

// SAFETY: the elements belong to `work`, owned by `self`.
unsafe impl<W: Scatter, C> Scatter for With<W, C> {}

/// Work of one of two kinds, for a queue of both. A third kind is an `Either` in an `Either`.
///
/// # Examples
/// A queue for buffers of its own, and for messages shared by several peers:
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(64)?);
/// use verbs::{Buf, QueuePair, Reset, SharedBuf, work::Either};
/// let qp: QueuePair<verbs::Rc, Reset, Either<Buf, SharedBuf>> = pd.qp_builder(cq, cq).create_for()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Either<A, B> {
    /// Of the first kind.
    Left(A),
    /// Of the second kind.
    Right(B),
}

impl<A: AsRef<[u8]>, B: AsRef<[u8]>> AsRef<[u8]> for Either<A, B> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Left(work) => work.as_ref(),
            Self::Right(work) => work.as_ref(),
        }
    }
}

// SAFETY: the elements belong to the one work, owned by `self`.
unsafe impl<A: Gather, B: Gather> Gather for Either<A, B> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        match self {
            Self::Left(work) => work.gather(list),
            Self::Right(work) => work.gather(list),
        }
    }
}

// SAFETY: the elements belong to the one work, owned by `self`.
unsafe impl<A: Scatter, B: Scatter> Scatter for Either<A, B> {}

// SAFETY: there is no element: a zero-length request.
unsafe impl Gather for () {
    #[inline]
    fn gather(&self, _list: &mut SgeList) {}
}

// SAFETY: there is no element.
unsafe impl Scatter for () {}

/// Implements both traits for a container that owns its parts, without interior mutability.
macro_rules! impl_for_container {
    ([$($param:ident),*] $ty:ty, |$this:ident, $list:ident| $body:expr) => {
        // SAFETY: the elements belong to the parts, owned by `self`; the parts keep the rules of
        // the trait themselves.
        unsafe impl<$($param: Gather),*> Gather for $ty {
            #[inline]
            fn gather(&self, $list: &mut SgeList) {
                let $this = self;
                $body
            }
        }
    };
}

impl_for_container!([W] Option<W>, |this, list| if let Some(work) = this { work.gather(list) });
impl_for_container!([W] Box<W>, |this, list| this.as_ref().gather(list));
// For an `Arc`, which shares its parts: each owner has shared access, so the parts do not change, and the last owner drops them.
// No `Scatter`: two owners could have the device write the same memory.
impl_for_container!([W] Arc<W>, |this, list| this.as_ref().gather(list));
impl_for_container!([W] Vec<W>, |this, list| this.iter().for_each(|work| work.gather(list)));
impl_for_container!([A, B](A, B), |this, list| {
    this.0.gather(list);
    this.1.gather(list);
});
impl_for_container!([A, B, C](A, B, C), |this, list| {
    this.0.gather(list);
    this.1.gather(list);
    this.2.gather(list);
});

// SAFETY: the elements belong to the parts, owned by `self`; the parts keep the rules of the trait
// themselves.
unsafe impl<W: Gather, const N: usize> Gather for [W; N] {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        self.iter().for_each(|work| work.gather(list));
    }
}

// SAFETY: two parts of one container own different memory, each the only owner of its own.
unsafe impl<W: Scatter> Scatter for Option<W> {}
// SAFETY: see above.
unsafe impl<W: Scatter> Scatter for Box<W> {}
// SAFETY: see above.
unsafe impl<W: Scatter> Scatter for Vec<W> {}
// SAFETY: see above.
unsafe impl<A: Scatter, B: Scatter> Scatter for (A, B) {}
// SAFETY: see above.
unsafe impl<A: Scatter, B: Scatter, C: Scatter> Scatter for (A, B, C) {}
// SAFETY: see above.
unsafe impl<W: Scatter, const N: usize> Scatter for [W; N] {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of `n` elements without memory, never passed to a device.
    struct Elements(usize);

    // SAFETY: never posted.
    unsafe impl Gather for Elements {
        fn gather(&self, list: &mut SgeList) {
            for i in (1..).take(self.0) {
                // SAFETY: never reaches a device.
                list.push(unsafe { Sge::new(NonNull::dangling(), i, 0) });
            }
        }
    }

    fn lengths(work: &impl Gather) -> Vec<u32> {
        let list = SgeList::of(work);
        list.elements().iter().map(|sge| sge.length).collect()
    }

    #[test]
    fn gather_list_keeps_the_order() {
        assert_eq!(lengths(&()), []);
        assert_eq!(
            lengths(&(Elements(2), [Elements(1), Elements(3)])),
            [1, 2, 1, 1, 2, 3]
        );
        assert_eq!(
            lengths(&With::new(vec![Elements(1), Elements(2)], "context")),
            [1, 1, 2]
        );
        assert_eq!(lengths(&None::<Elements>), []);
        let works: [Either<Elements, [Elements; 2]>; 2] = [
            Either::Left(Elements(2)),
            Either::Right([Elements(1), Elements(2)]),
        ];
        assert_eq!(works.each_ref().map(lengths), [vec![1, 2], vec![1, 1, 2]]);
    }

    #[test]
    fn sge_list_counts_excess_elements_without_storing_them() {
        let list = SgeList::of(&Elements(MAX_SGE + 9));
        assert_eq!(list.len(), MAX_SGE + 9);
    }

    /// Work with elements of these lengths, never passed to a device; the first one is resident.
    struct Lengths(&'static [u32]);

    // SAFETY: never posted.
    unsafe impl Gather for Lengths {
        fn gather(&self, list: &mut SgeList) {
            for (index, &length) in self.0.iter().enumerate() {
                // SAFETY: never reaches a device.
                let sge = unsafe { Sge::new(NonNull::dangling(), length, 7) };
                match index {
                    // SAFETY: a leaked element, never changed.
                    0 => unsafe { list.push_resident(NonNull::from(Box::leak(Box::new(sge)))) },
                    _ => list.push(sge),
                }
            }
        }
    }

    /// An element without bytes means 2 GiB to some devices.
    #[test]
    fn elements_without_bytes_are_omitted() {
        for (pushed, expected) in [
            (&[0, 1, 0, 2, 1, 0][..], &[1, 2, 1][..]),
            (&[0, 5], &[5]),
            (&[5, 0], &[5]),
            (&[0], &[]),
        ] {
            let mut list = SgeList::of(&Lengths(pushed));
            let lengths: Vec<_> = list.elements().iter().map(|sge| sge.length).collect();
            assert_eq!((&lengths[..], list.len()), (expected, expected.len()));
            // The first element for C, in every layout.
            let mut single = MaybeUninit::uninit();
            let first = list.lay_out(&mut single);
            // SAFETY: there is at least one element.
            let first = unsafe { *first };
            assert_eq!(first.length, *expected.first().unwrap_or(&0), "{pushed:?}");
        }
    }

    /// Lists of every four lengths at a limit, compared with sums of 128 bits.
    #[test]
    fn every_list_beyond_a_limit_is_too_long() {
        let lengths = [
            0,
            1,
            1 << 30,
            MAX_ELEMENT - 1,
            MAX_ELEMENT,
            MAX_ELEMENT + 1,
            u32::MAX,
        ];
        // SAFETY: never reaches a device.
        let sge = |length| unsafe { Sge::new(NonNull::dangling(), length, 7) };
        for case in 0..7_usize.pow(4) {
            let picked = [1, 7, 49, 343].map(|weight| lengths[case / weight % 7]);
            let mut list = SgeList::new();
            picked.iter().for_each(|&length| list.push(sge(length)));
            let sum: u128 = picked.iter().map(|&length| u128::from(length)).sum();
            assert_eq!(u128::from(list.bytes()), sum);
            let longest = picked.iter().max();
            let fits = sum <= u128::from(MAX_BYTES) && longest.is_some_and(|&l| l <= MAX_ELEMENT);
            assert_eq!(list.too_long("ibv_post_send").is_none(), fits, "{picked:?}");
        }
        let mut longest = SgeList::new();
        (0..MAX_SGE).for_each(|_| longest.push(sge(u32::MAX)));
        assert_eq!(longest.bytes(), MAX_SGE as u64 * u64::from(u32::MAX));
        assert!(longest.too_long("ibv_post_send").is_some());
    }

    #[test]
    fn array_of_an_empty_list_begins_with_no_memory() {
        let mut list = SgeList::of(&());
        let mut single = MaybeUninit::uninit();
        // SAFETY: there is at least one element.
        let first = unsafe { *list.lay_out(&mut single) };
        assert_eq!((first.addr, first.length, first.lkey), (0, 0, 0));
    }
}
