//! Buffers: ranges of registered memory.

use std::{
    fmt, io,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use super::{frozen::Frozen, memory::Words, region::Region};
use crate::{
    error::{Error, Result},
    pd::ProtectionDomain,
    work::{Gather, MAX_ELEMENT, Scatter, Sge, SgeList},
};

impl ProtectionDomain {
    /// `ibv_reg_mr`—Allocates `len` zero bytes and registers them.
    ///
    /// The device may read and write the buffer for requests of this process only; peers have no
    /// access. Enters the kernel, and pins the memory.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or at least 2 GiB, more than an element of a request can
    ///   have.
    /// - `ENOMEM`: the limit on locked memory (`ulimit -l`) is exceeded, or memory is exhausted.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// let pd = ctx.alloc_pd()?;
    /// let mut buf = pd.alloc_buf(1024)?;
    /// buf[..5].copy_from_slice(b"hello");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_buf(&self, len: usize) -> Result<Buf> {
        Buf::check(len)?;
        Ok(self.register(Words::zeroed(len)?).create_buf()?)
    }

    /// `ibv_reg_mr`—Registers memory of the caller, and takes ownership.
    ///
    /// Everything else is as for [`alloc_buf`](Self::alloc_buf).
    ///
    /// # Errors
    /// As for [`alloc_buf`](Self::alloc_buf).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_buf(&self, memory: impl Into<Box<[u8]>>) -> Result<Buf> {
        Ok(self.register(memory.into()).create_buf()?)
    }
}

/// A range of registered memory with one owner, in the manner of a byte vector of fixed capacity.
///
/// Reads and writes like a `[u8]`. Posting moves the buffer to the device, and the completion
/// returns it, so the program cannot touch the bytes in between. A buffer can be split without a
/// copy and without another registration; the registration ends when the last part is dropped.
///
/// A request transfers the buffer's current length, from [`set_len`](Self::set_len); the bytes
/// behind, up to the capacity, keep their content.
///
/// The size is one pointer, so moving a buffer into a queue and back is cheap.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// let pd = ctx.alloc_pd()?;
/// let mut buf = pd.alloc_buf(4096)?;
/// let body = buf.split_off(64); // two buffers, one registration
/// buf[..6].copy_from_slice(b"header");
/// buf.set_len(6); // a send of `buf` is 6 bytes long
/// assert_eq!((buf.len(), buf.capacity(), body.len()), (6, 64, 4032));
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_dereg_mr")]
#[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
pub struct Buf {
    // INVARIANT: a leaked box, owned by `self` alone. A pointer, since the device's provider reads
    // the element while the buffer is in a queue, and moving a box would assert exclusive access.
    range: NonNull<Range>,
}

/// The bytes of a buffer, and their registration.
// The element comes first, so that element and range have one address.
#[repr(C)]
struct Range {
    // INVARIANT: from `start`, and at most `capacity` bytes, with the LKey of `region`. `capacity` is
    // at most `MAX_ELEMENT`.
    sge: Sge,
    // INVARIANT: `start..start + capacity` is inside `region`, in whole granules, and no other `Range` overlaps.
    region: Arc<Region>,
    start: NonNull<u8>,
    capacity: u32,
}

// SAFETY: a range owns its bytes alone (invariant), and bytes may be owned by any thread.
unsafe impl Send for Range {}
// SAFETY: a shared range only allows reading.
unsafe impl Sync for Range {}

// SAFETY: the range is in a box of its own, so `Buf` is `Send` as `Range` is.
unsafe impl Send for Buf {}
// SAFETY: see `Send`.
unsafe impl Sync for Buf {}

impl Buf {
    /// Checks that a buffer can have `len` bytes.
    pub(super) fn check(len: usize) -> Result<()> {
        let reason = match u32::try_from(len) {
            Ok(1..=MAX_ELEMENT) => return Ok(()),
            Ok(0) => "a buffer has at least one byte",
            _ => "a buffer is at most 2147483647 bytes long; use several, or a `RemoteRegion`",
        };
        let error = Error::refused("ibv_reg_mr", io::ErrorKind::InvalidInput, reason);
        Err(error.detail(format!("{len} bytes")))
    }

    /// All of a region, whose length has been checked.
    pub(super) fn of_region(region: Region) -> Self {
        let len = u32::try_from(region.len()).unwrap_or(MAX_ELEMENT);
        let (start, lkey) = (region.start(), region.mr().lkey());
        Self::of(Range::new(start, len, lkey, Arc::new(region)))
    }

    fn of(range: Range) -> Self {
        let range = NonNull::from(Box::leak(Box::new(range)));
        Self { range }
    }

    #[inline]
    fn range(&self) -> &Range {
        // SAFETY: the box is owned by `self` (invariant) and borrowed with `self`. While the
        // device's provider reads the element, `self` is in a queue, and no mutable borrow exists.
        unsafe { self.range.as_ref() }
    }

    #[inline]
    fn range_mut(&mut self) -> &mut Range {
        // SAFETY: as for `range`; `&mut self` excludes every other reference.
        unsafe { self.range.as_mut() }
    }

    /// The maximum length for [`set_len`](Self::set_len), in bytes.
    pub fn capacity(&self) -> usize {
        self.range().capacity as usize
    }

    /// Sets the length in bytes: of the slice, of a send, and of the space for a receive.
    ///
    /// # Panics
    /// Panics when `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        match u32::try_from(len) {
            Ok(len) if len <= self.range().capacity => self.range_mut().sge.set_len(len),
            _ => length_panic(len, self.capacity()),
        }
    }

    /// Sets the length back to the whole capacity.
    pub fn set_full(&mut self) {
        let range = self.range_mut();
        range.sge.set_len(range.capacity);
    }

    /// Splits the buffer at `at`: `self` keeps `[0, at)`, the returned buffer has the rest of the
    /// capacity. Both are full.
    ///
    /// # Panics
    /// Panics when `at` is more than the capacity, and when the parts would share a page [paged on
    /// demand](crate::mr::Registration::on_demand) by Soft-RoCE.
    #[must_use = "the rest of the buffer is lost when this is dropped"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let head = match u32::try_from(at) {
            Ok(head) if head <= self.range().capacity => head,
            _ => length_panic(at, self.capacity()),
        };
        let range = self.range_mut();
        let granule = range.region.granule();
        let offset = range.start.addr().get() - range.region.start().addr().get() + at;
        assert!(
            granule.divides(offset),
            "Soft-RoCE accesses the start of a page paged on demand at any offset: split at a multiple of \
             {} bytes, not at {at}",
            granule.bytes()
        );
        let tail = range.capacity - head;
        // SAFETY: `at` is at most the capacity, so the result is inside `region` or one past the
        // end.
        let start = unsafe { range.start.add(at) };
        range.capacity = head;
        range.sge.set_len(head);
        let region = Arc::clone(&range.region);
        Self::of(Range::new(start, tail, range.sge.lkey(), region))
    }

    /// Freezes the buffer at the current length, so that any number of requests can read
    /// concurrently.
    pub fn freeze(self) -> SharedBuf {
        let this = ManuallyDrop::new(self);
        // SAFETY: the leaked box (invariant); `this` does not drop the box.
        let range = unsafe { Box::from_raw(this.range.as_ptr()) };
        SharedBuf {
            range: Frozen::new(*range),
        }
    }
}

impl Drop for Buf {
    // Inlined up to the call: the pointer is passed in a register, so a buffer need not lie in
    // memory.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the leaked box (invariant), not used any more.
        unsafe { Range::free(self.range) }
    }
}

impl Range {
    /// A range over all of `start..start + capacity`, inside `region` with this LKey.
    fn new(start: NonNull<u8>, capacity: u32, lkey: u32, region: Arc<Region>) -> Self {
        Self {
            // SAFETY: the range is inside of the region, and is only handed to a list.
            sge: unsafe { Sge::new(start, capacity, lkey) },
            region,
            start,
            capacity,
        }
    }

    /// # Safety
    /// - `range` is a leaked box, and is not used any more.
    #[inline(never)]
    unsafe fn free(range: NonNull<Self>) {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(range.as_ptr()) });
    }

    #[inline]
    fn len(&self) -> usize {
        self.sge.len() as usize
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are inside `region`, initialised and owned by `self` alone (invariant).
        // Assumption: a device accesses local memory for posted requests only. Posting would have
        // moved `self` away.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and `&mut self` excludes every other reference to these bytes.
        // Nor does the device read them.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

#[cold]
#[inline(never)]
#[expect(
    clippy::panic,
    reason = "a bug of the caller, as an index out of bounds is"
)]
pub(super) fn length_panic(len: usize, capacity: usize) -> ! {
    panic!("length {len} is more than the buffer's capacity of {capacity}")
}

impl Deref for Buf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.range().bytes()
    }
}

impl DerefMut for Buf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.range_mut().bytes_mut()
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("len", &self.range().len())
            .field("capacity", &self.range().capacity)
            .field("lkey", &self.range().sge.lkey())
            .finish_non_exhaustive()
    }
}

// SAFETY: the element is a range of registered memory owned by `self` alone: registered and at a
// fixed address until `self` is dropped, and neither read nor written elsewhere.
unsafe impl Gather for Buf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // SAFETY: the element is in a box (invariant). Only `self` can change or free the box, and
        // `self` is not touched while in a queue.
        unsafe { list.push_resident(NonNull::from(&self.range().sge)) };
    }
}

// SAFETY: see `Gather`: owned alone, and registered for local writing.
unsafe impl Scatter for Buf {}

/// A frozen [`Buf`]: the program and any number of requests may read concurrently; writing is
/// impossible.
///
/// Cloning is cheap. Use a `SharedBuf` for a message to several peers, or for a message to be kept
/// for retransmission.
#[derive(Clone)]
pub struct SharedBuf {
    range: Frozen<Range>,
}

impl SharedBuf {
    /// Gives this handle up, and returns the buffer if the handle is the last one: no request in
    /// flight has another.
    ///
    /// Like [`Arc::into_inner`]: if all owners call this, one of them gets the buffer, also if they
    /// call at the same time. `None` means that another owner has or will get the buffer.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// let pd = ctx.alloc_pd()?;
    /// let one = pd.alloc_buf(4096)?.freeze();
    /// let other = one.clone();
    /// assert!(one.thaw().is_none());
    /// let buf = other.thaw().expect("the last handle");
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn thaw(self) -> Option<Buf> {
        self.range.thaw().map(Buf::of)
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.range.bytes()
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuf")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

// SAFETY: the element is a range of registered memory. `self` keeps the range registered and at its
// address, and no write happens while a handle exists: only the last handle can thaw a frozen
// buffer.
unsafe impl Gather for SharedBuf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // SAFETY: the element is in an `Arc`, `self` is a handle, and shared content does not
        // change.
        unsafe { list.push_resident(NonNull::from(&self.range.sge)) };
    }
}
