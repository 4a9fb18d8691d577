//! Buffers: ranges of registered memory.

use std::{
    fmt, io,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use super::region::Region;
use crate::{
    error::{Error, Result},
    pd::ProtectionDomain,
    work::{Gather, Scatter, Sge, SgeList},
};

impl ProtectionDomain {
    /// `ibv_reg_mr`—Allocates `len` zero bytes and registers them.
    ///
    /// The device may read and write the buffer, but only for requests of this process: a peer has
    /// no access to it. Enters the kernel, and pins the memory.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or more than `u32::MAX`, the longest element of a request.
    /// - `ENOMEM`: the process may not lock that much memory (`ulimit -l`), or there is none.
    ///
    /// # Examples
    /// ```no_run
    /// # let ctx = verbs::devices()?.find("rxe0").expect("no such device").open()?;
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
        Ok(self.register(vec![0; len]).buf()?)
    }

    /// `ibv_reg_mr`—Registers memory the caller already has, and takes it over.
    ///
    /// Everything else is as for [`alloc_buf`](Self::alloc_buf).
    ///
    /// # Errors
    /// As for [`alloc_buf`](Self::alloc_buf).
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_buf(&self, memory: impl Into<Box<[u8]>>) -> Result<Buf> {
        Ok(self.register(memory.into()).buf()?)
    }
}

/// A range of registered memory with one owner, in the manner of a byte vector of fixed capacity.
///
/// It reads and writes like a `[u8]`. Posting it moves it to the device, and the completion gives
/// it back, so the program cannot touch it in between. It can be split, without a copy and without
/// another registration; the registration ends when the last part is dropped.
///
/// What a request transfers is the buffer's current length, from [`set_len`](Self::set_len); the
/// bytes behind it, up to the capacity, keep their content.
///
/// It is one pointer, so moving it into a queue and back costs next to nothing.
pub struct Buf {
    // INVARIANT: of a box that was leaked, which this owns alone. As a pointer, since the device's
    // provider reads the element in it while the buffer is in a queue, and to move a box would be
    // to say that nobody does.
    range: NonNull<Range>,
}

/// What a buffer covers.
// The element comes first, so that its address is that of the range.
#[repr(C)]
struct Range {
    // INVARIANT: from `start`, and at most `capacity` bytes, with the LKey of `region`.
    sge: Sge,
    // INVARIANT: `start..start + capacity` is inside `region`, and no other `Range` covers any
    // of it.
    region: Arc<Region>,
    start: NonNull<u8>,
    capacity: u32,
}

// SAFETY: a range owns its bytes alone (invariant), and bytes may be owned by any thread.
unsafe impl Send for Range {}
// SAFETY: a shared range only allows reading.
unsafe impl Sync for Range {}

// SAFETY: the range is in a box of its own, so this may do what a range may.
unsafe impl Send for Buf {}
// SAFETY: see `Send`.
unsafe impl Sync for Buf {}

impl Buf {
    /// Whether a buffer can have so many bytes.
    pub(super) fn check(len: usize) -> Result<()> {
        let reason = match u32::try_from(len) {
            Ok(1..) => return Ok(()),
            Ok(0) => "a buffer has at least one byte",
            Err(_) => "a buffer is at most 4294967295 bytes long",
        };
        let error = Error::refused("ibv_reg_mr", io::ErrorKind::InvalidInput, reason);
        Err(error.detail(format!("{len} bytes")))
    }

    /// All of a region, whose length has been checked.
    pub(super) fn whole(region: Region) -> Self {
        let len = u32::try_from(region.len()).unwrap_or(u32::MAX);
        let (start, lkey) = (region.start(), region.mr().lkey());
        Self::of(Range::new(start, len, lkey, Arc::new(region)))
    }

    fn of(range: Range) -> Self {
        let range = NonNull::from(Box::leak(Box::new(range)));
        Self { range }
    }

    #[inline]
    fn range(&self) -> &Range {
        // SAFETY: of a box that `self` owns (invariant), and borrowed with it. While the device's
        // provider reads the element, `self` is in a queue, and nobody borrows it mutably.
        unsafe { self.range.as_ref() }
    }

    #[inline]
    fn range_mut(&mut self) -> &mut Range {
        // SAFETY: as for `range`; `&mut self` excludes every other reference.
        unsafe { self.range.as_mut() }
    }

    /// The number of bytes that [`set_len`](Self::set_len) can make visible.
    pub fn capacity(&self) -> usize {
        self.range().capacity as usize
    }

    /// Sets the length: what the buffer shows, sends, and receives into.
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
    /// Panics when `at` is more than the capacity.
    #[must_use = "the rest of the buffer is lost when this is dropped"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let head = match u32::try_from(at) {
            Ok(head) if head <= self.range().capacity => head,
            _ => length_panic(at, self.capacity()),
        };
        let range = self.range_mut();
        let tail = range.capacity - head;
        // SAFETY: `at` is at most the capacity, so the result is inside `region` or one past its
        // end.
        let start = unsafe { range.start.add(at) };
        range.capacity = head;
        range.sge.set_len(head);
        let region = Arc::clone(&range.region);
        Self::of(Range::new(start, tail, range.sge.lkey(), region))
    }

    /// Freezes the buffer at its current length, so that any number of requests can read it at
    /// once.
    pub fn freeze(self) -> SharedBuf {
        let this = ManuallyDrop::new(self);
        // SAFETY: the box that was leaked (invariant), which `this` does not drop.
        let range = unsafe { Box::from_raw(this.range.as_ptr()) };
        SharedBuf {
            range: Arc::new(*range),
        }
    }
}

impl Drop for Buf {
    // Inlined up to the call, which takes the pointer, so that a buffer need not lie in memory.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the box that was leaked (invariant), which is not used any more.
        unsafe { Range::free(self.range) }
    }
}

impl Range {
    /// All of `start..start + capacity`, which are inside of `region`, whose LKey this is.
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
    /// - `range` is a box that was leaked, and is not used any more.
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
        // The device does not write them: it only does so for a posted `Buf`, which would have
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

// SAFETY: the element is a range of registered memory that `self` owns alone: it stays registered
// and at its address until `self` is dropped, and nobody else reads or writes it.
unsafe impl Gather for Buf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // SAFETY: the element is in a box (invariant), which only `self` can change or free, and
        // `self` is not touched while it is in a queue.
        unsafe { list.push_resident(NonNull::from(&self.range().sge)) };
    }
}

// SAFETY: see `Gather`: owned alone, and registered for local writing.
unsafe impl Scatter for Buf {}

/// A frozen [`Buf`]: many may read it at once, the program and the device alike, and nobody may
/// write it.
///
/// Cloning is cheap. A message that is sent to several peers, or may have to be sent again, is one
/// of these.
#[derive(Clone)]
pub struct SharedBuf {
    range: Arc<Range>,
}

impl SharedBuf {
    /// Gives the buffer back if this is the only handle, no request holding another one.
    ///
    /// # Errors
    /// There are other handles; this one is given back.
    pub fn try_thaw(self) -> Result<Buf, Self> {
        match Arc::try_unwrap(self.range) {
            Ok(range) => Ok(Buf::of(range)),
            Err(range) => Err(Self { range }),
        }
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

// SAFETY: the element is a range of registered memory that `self` keeps registered and at its
// address, and that nobody writes for as long as a handle to it exists: a frozen buffer can be
// thawed only by its last handle.
unsafe impl Gather for SharedBuf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // SAFETY: the element is in an `Arc`, of which `self` is a handle, and what is shared does
        // not change.
        unsafe { list.push_resident(NonNull::from(&self.range.sge)) };
    }
}
