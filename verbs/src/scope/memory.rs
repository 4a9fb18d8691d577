//! Borrowed memory, as work.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use crate::work::{Gather, MAX_ELEMENT, Scatter, Sge, SgeList};

/// A range of memory registered by a scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    pub(super) lkey: u32,
}

impl Part {
    #[inline]
    fn sge(self) -> Sge {
        let len = u32::try_from(self.len).unwrap_or(MAX_ELEMENT);
        // SAFETY: the range is registered with this key; registration checked that its length is at
        // most `MAX_ELEMENT`.
        unsafe { Sge::new(self.start, len, self.lkey) }
    }
}

/// Borrowed memory, registered for reading and writing until its [`scope`](crate::scope()) ends.
///
/// Like a [`Buf`](crate::Buf), a scoped buffer moves into a queue when posted, and returns with the
/// completion.
#[derive(Debug)]
pub struct ScopedBuf<'scope> {
    // INVARIANT: borrowed exclusively for longer than `'scope`.
    memory: Part,
    scope: PhantomData<&'scope mut [u8]>,
}

/// Borrowed memory, registered for reading until its [`scope`](crate::scope()) ends.
///
/// Like a [`SharedBuf`](crate::SharedBuf), a scoped slice can be posted many times at once.
#[derive(Clone, Copy, Debug)]
pub struct ScopedSlice<'scope> {
    // INVARIANT: borrowed for longer than `'scope`.
    memory: Part,
    scope: PhantomData<&'scope [u8]>,
}

impl ScopedBuf<'_> {
    /// # Safety
    /// - The range is registered in a scope for writing, and borrowed exclusively for longer than
    ///   the scope.
    pub(super) unsafe fn new(memory: Part) -> Self {
        let scope = PhantomData;
        Self { memory, scope }
    }
}

impl ScopedSlice<'_> {
    /// # Safety
    /// - The range is registered in a scope, and borrowed for longer than the scope.
    pub(super) unsafe fn new(memory: Part) -> Self {
        let scope = PhantomData;
        Self { memory, scope }
    }
}

// SAFETY: an exclusive borrow of bytes may change threads.
unsafe impl Send for ScopedBuf<'_> {}
// SAFETY: a shared one only allows reading.
unsafe impl Sync for ScopedBuf<'_> {}
// SAFETY: a shared borrow of bytes may change threads.
unsafe impl Send for ScopedSlice<'_> {}
// SAFETY: see `Send`.
unsafe impl Sync for ScopedSlice<'_> {}

impl Deref for ScopedBuf<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised and borrowed exclusively by `self` (invariant).
        // Assumption: a device accesses local memory for posted requests only. Posting would have
        // moved `self` away.
        unsafe { slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.len) }
    }
}

impl DerefMut for ScopedBuf<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.len) }
    }
}

impl AsRef<[u8]> for ScopedBuf<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for ScopedSlice<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised and borrowed (invariant), so nothing writes them.
        unsafe { slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.len) }
    }
}

impl AsRef<[u8]> for ScopedSlice<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the element is memory borrowed exclusively and registered until the scope ends. Only a
// queue pair of the scope, or of a nested scope, can own `self`, and the scope destroys its queue
// pairs before its end: forgotten ones as well.
unsafe impl Gather for ScopedBuf<'_> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        list.push(self.memory.sge());
    }
}

// SAFETY: see `Gather`; registered for local writing.
unsafe impl Scatter for ScopedBuf<'_> {}

// SAFETY: as for `ScopedBuf`; the memory is borrowed, so nothing writes it.
unsafe impl Gather for ScopedSlice<'_> {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        list.push(self.memory.sge());
    }
}
