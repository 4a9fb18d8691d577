//! Buffers of a pool.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use super::{
    buf::length_panic,
    pool::{BufPool, PoolShared},
};
use crate::work::{Gather, Scatter, Sge, SgeList};

/// A buffer of a [`BufPool`].
///
/// Like a [`Buf`](crate::Buf), a pool buffer moves to the device when posted, and returns with the
/// completion. The size is one pointer.
pub struct PoolBuf {
    // INVARIANT: taken from the pool's list, and named by no other buffer; has the pool's handle of `Slot::pool`.
    slot: NonNull<Slot>,
}

/// The bytes of a buffer, at a fixed address: C reads the element in place.
#[repr(C)]
pub(super) struct Slot {
    // INVARIANT: from `start`, and at most the pool's capacity in bytes, with the LKey of the pool's region.
    sge: Sge,
    // INVARIANT: the first byte of the slot's part of the region, which no other slot overlaps.
    start: NonNull<u8>,
    /// The pool, while the slot is taken: `Arc::into_raw`, owned by the buffer.
    pool: *const PoolShared,
}

// SAFETY: a `PoolBuf` owns its bytes alone while it has the slot, and bytes may be owned by any
// thread. The list makes this owner's writes visible to the next owner.
unsafe impl Send for PoolBuf {}
// SAFETY: a shared one only allows reading.
unsafe impl Sync for PoolBuf {}

impl Slot {
    /// A free slot of `capacity` bytes from `start`, registered with this LKey.
    pub(super) fn new(start: NonNull<u8>, capacity: u32, lkey: u32) -> Self {
        Self {
            // SAFETY: the range is inside of the pool's region, and is only handed to a list.
            sge: unsafe { Sge::new(start, capacity, lkey) },
            start,
            pool: std::ptr::null(),
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are the slot's, initialised (invariant), and nothing writes them: a `PoolBuf` owns them alone,
        // and frozen ones do not change. Assumption: a device accesses local memory for posted requests only. Posting
        // would have moved a `PoolBuf` away.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.sge.len() as usize) }
    }

    #[inline]
    fn pool(&self) -> &PoolShared {
        // SAFETY: the owner of the slot keeps the pool.
        unsafe { &*self.pool }
    }

    /// Another handle of the pool.
    fn pool_handle(&self) -> BufPool {
        // SAFETY: from `Arc::into_raw`, and the owner of the slot has a handle.
        unsafe { Arc::increment_strong_count(self.pool) };
        // SAFETY: the handle counted above.
        BufPool::of(unsafe { Arc::from_raw(self.pool) })
    }

    /// Returns a slot to its pool. Takes a pointer in a register, so that a buffer need not lie in memory.
    ///
    /// # Safety
    /// - The slot is taken, and its owner does not use it any more.
    #[inline(never)]
    unsafe fn give_back(this: NonNull<Self>) {
        // SAFETY: the slot exists, since its owner has a handle of the pool.
        let pool = unsafe { this.as_ref() }.pool;
        // SAFETY: the owner's handle, taken once.
        let pool = unsafe { Arc::from_raw(pool) };
        pool.free.give_back(pool.index(this));
    }
}

impl PoolBuf {
    /// The buffer of a slot, at full length.
    ///
    /// # Safety
    /// - The slot was taken from the list of `pool`, and has no other owner.
    #[inline]
    pub(super) unsafe fn of(mut slot: NonNull<Slot>, pool: Arc<PoolShared>) -> Self {
        // SAFETY: the slot has no other owner.
        let taken = unsafe { slot.as_mut() };
        taken.sge.set_len(pool.capacity);
        taken.pool = Arc::into_raw(pool);
        Self { slot }
    }

    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: the slot is this buffer's (invariant). While the device's provider reads the element, `self` is in a
        // queue, and no mutable borrow exists.
        unsafe { self.slot.as_ref() }
    }

    #[inline]
    fn slot_mut(&mut self) -> &mut Slot {
        // SAFETY: as for `slot`; `&mut self` excludes every other reference.
        unsafe { self.slot.as_mut() }
    }

    /// The maximum length for [`set_len`](Self::set_len), in bytes.
    pub fn capacity(&self) -> usize {
        self.slot().pool().capacity as usize
    }

    /// Sets the length in bytes: of the slice, of a send, and of the space for a receive.
    ///
    /// # Panics
    /// Panics when `len` is more than the capacity.
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        match u32::try_from(len) {
            Ok(len) if len <= self.slot().pool().capacity => self.slot_mut().sge.set_len(len),
            _ => length_panic(len, self.capacity()),
        }
    }

    /// Sets the length back to the whole capacity.
    #[inline]
    pub fn set_full(&mut self) {
        let capacity = self.slot().pool().capacity;
        self.slot_mut().sge.set_len(capacity);
    }

    /// The pool of this buffer.
    pub fn pool(&self) -> BufPool {
        self.slot().pool_handle()
    }

    /// Whether the buffer is of this pool.
    #[inline]
    pub(super) fn is_of(&self, pool: &Arc<PoolShared>) -> bool {
        std::ptr::eq(self.slot().pool, Arc::as_ptr(pool))
    }

    /// Freezes the buffer at the current length, so that any number of requests can read concurrently. The drop of the
    /// last handle returns the buffer to the pool.
    ///
    /// Does not allocate.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// let pool = ctx.alloc_pd()?.alloc_pool(1, 4096)?;
    /// let page = pool.try_take().expect("none is out yet").freeze();
    /// let for_other_peer = page.clone();
    /// drop(page);
    /// assert!(pool.try_take().is_none());
    /// drop(for_other_peer);
    /// assert!(pool.try_take().is_some());
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn freeze(self) -> SharedPoolBuf {
        let slot = ManuallyDrop::new(self).slot;
        // SAFETY: the slot was this buffer's (invariant), which keeps the pool.
        let pool = unsafe { slot.as_ref() }.pool();
        pool.free.begin_sharing(pool.index(slot));
        SharedPoolBuf { slot }
    }
}

impl Drop for PoolBuf {
    // Inlined up to the call: the pointer is passed in a register.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this buffer's slot (invariant), not used any more.
        unsafe { Slot::give_back(self.slot) };
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.slot().bytes()
    }
}

impl DerefMut for PoolBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let slot = self.slot_mut();
        // SAFETY: as for `Slot::bytes`, and `&mut self` excludes every other reference to these bytes.
        unsafe { slice::from_raw_parts_mut(slot.start.as_ptr(), slot.sge.len() as usize) }
    }
}

impl AsRef<[u8]> for PoolBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for PoolBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for PoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuf")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

// SAFETY: the element is a range of registered memory owned by `self` alone: registered and at a
// fixed address until `self` is dropped, and neither read nor written elsewhere.
unsafe impl Gather for PoolBuf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // SAFETY: the element is in a slot of the pool (invariant). Only `self` can change or return the slot, and `self`
        // is not touched while in a queue.
        unsafe { list.push_resident(NonNull::from(&self.slot().sge)) };
    }
}

// SAFETY: see `Gather`: owned alone, and registered for local writing.
unsafe impl Scatter for PoolBuf {}

/// A frozen [`PoolBuf`]: the program and any number of requests may read concurrently; writing is impossible.
///
/// Cloning is cheap, and neither allocates nor registers: use one for a page that several peers get. The drop of the
/// last handle returns the buffer to the pool.
pub struct SharedPoolBuf {
    // INVARIANT: a taken slot of the pool that it keeps, whose owners are counted in the pool's list: all handles together
    // own it.
    slot: NonNull<Slot>,
}

// SAFETY: handles allow only reading, and the last one returns the slot, from any thread.
unsafe impl Send for SharedPoolBuf {}
// SAFETY: see `Send`.
unsafe impl Sync for SharedPoolBuf {}

impl SharedPoolBuf {
    #[inline]
    fn slot(&self) -> &Slot {
        // SAFETY: the slot is of all handles (invariant), and does not change.
        unsafe { self.slot.as_ref() }
    }

    /// Gives this handle up, and returns the buffer if the handle is the last one: no request in
    /// flight has another; see [`SharedBuf::thaw`](crate::SharedBuf::thaw).
    pub fn thaw(self) -> Option<PoolBuf> {
        let slot = ManuallyDrop::new(self).slot;
        // SAFETY: this handle, given up here.
        unsafe { Self::give_up(slot) }.then(|| PoolBuf { slot })
    }

    /// The pool of this buffer.
    pub fn pool(&self) -> BufPool {
        self.slot().pool_handle()
    }

    /// Gives a handle up. Returns whether it was the last one: the caller then owns the slot.
    ///
    /// # Safety
    /// - `slot` is of a handle not used any more.
    #[inline]
    unsafe fn give_up(slot: NonNull<Slot>) -> bool {
        // SAFETY: the handle keeps the pool until the end of its share.
        let pool = unsafe { slot.as_ref() }.pool();
        pool.free.end_share(pool.index(slot))
    }
}

impl Clone for SharedPoolBuf {
    #[inline]
    fn clone(&self) -> Self {
        let pool = self.slot().pool();
        pool.free.add_share(pool.index(self.slot));
        Self { slot: self.slot }
    }
}

impl Drop for SharedPoolBuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this handle, not used any more.
        if unsafe { Self::give_up(self.slot) } {
            // SAFETY: this handle was the last, so the slot has no other owner.
            unsafe { Slot::give_back(self.slot) };
        }
    }
}

impl Deref for SharedPoolBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.slot().bytes()
    }
}

impl AsRef<[u8]> for SharedPoolBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedPoolBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPoolBuf")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

// SAFETY: the element is a range of registered memory. `self` keeps the range registered and at its
// address, and no write happens while a handle exists: only the last handle can thaw the buffer.
unsafe impl Gather for SharedPoolBuf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // SAFETY: the element is in a slot of the pool, `self` is a handle, and frozen slots do not change.
        unsafe { list.push_resident(NonNull::from(&self.slot().sge)) };
    }
}
