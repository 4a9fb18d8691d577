//! Memory registered several times.

use std::{fmt, ptr::NonNull, sync::Arc};

use super::{memory::Memory, provider_memory::ProviderMemory};

/// A handle of memory, for several registrations of the same bytes: with several devices, or in several domains.
///
/// Cloning is cheap: the memory is reference-counted, like an `Arc`. Each clone can be registered, as a
/// [`RemoteRegion`](crate::RemoteRegion) with keys of its own, and the memory is freed after the end of the last registration.
/// The bytes are only copied in and out, since every device may write them.
///
/// A single handle that remains, in a region, can be [revoked](crate::RemoteRegion::revoke).
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// use verbs::{RemoteAccess, mr::{Mapping, MemoryHandle}};
/// let memory = MemoryHandle::new(Mapping::new(1 << 20)?);
/// // The domains of two devices, on a machine with two.
/// let domains = [ctx.alloc_pd()?, ctx.alloc_pd()?];
/// let [first, second] = domains
///     .map(|pd| pd.register(memory.clone()).remote(RemoteAccess::WRITE).create().unwrap());
/// first.write(0, b"the same bytes");
/// let mut bytes = [0; 14];
/// second.read(0, &mut bytes);
/// assert_eq!(&bytes, b"the same bytes");
/// assert_ne!(first.token().rkey, second.token().rkey);
/// # Ok::<(), verbs::Error>(())
/// ```
pub struct MemoryHandle<M>(Arc<Content<M>>);

struct Content<M> {
    // INVARIANT: the range of `memory`, the same for every handle: so all of them access each byte in one size.
    range: NonNull<[u8]>,
    memory: M,
}

// SAFETY: an address, and memory that may be moved to another thread.
unsafe impl<M: Send> Send for Content<M> {}
// SAFETY: shared handles read the address, and share the memory's value only if that is allowed.
unsafe impl<M: Sync> Sync for Content<M> {}

impl<M: Memory + Sync> MemoryHandle<M> {
    /// The first handle.
    pub fn new(memory: M) -> Self {
        let mut content = Arc::new(Content {
            range: NonNull::slice_from_raw_parts(NonNull::dangling(), 0),
            memory,
        });
        // The range is that of the memory's final position: the value is not moved any more.
        if let Some(content) = Arc::get_mut(&mut content) {
            content.range = content.memory.range();
        }
        Self(content)
    }

    /// The number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "memory without bytes cannot be registered"
    )]
    pub fn len(&self) -> usize {
        self.0.range.len()
    }

    /// The range of each handle.
    pub(super) fn bytes(&self) -> NonNull<[u8]> {
        self.0.range
    }
}

impl<M> Clone for MemoryHandle<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: fmt::Debug> fmt::Debug for MemoryHandle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryHandle").field(&self.0.memory).finish()
    }
}

// SAFETY: the range of memory that the handles keep. All handles have the same range, so each byte is accessed in one size,
// also by the regions of several handles, and no handle gives a reference to the bytes.
unsafe impl<M: Memory + Sync> Memory for MemoryHandle<M> {
    fn range(&mut self) -> NonNull<[u8]> {
        self.0.range
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        self.0.memory.provider()
    }

    fn frees_pages(&self) -> bool {
        self.0.memory.frees_pages()
    }

    fn is_exclusive(&self) -> bool {
        // Only this handle can be cloned, and its owner does not do that before giving it up. Seeing that others are gone
        // sees their accesses too: a decrement of the count releases them.
        let is_alone = Arc::strong_count(&self.0) == 1;
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        is_alone && self.0.memory.is_exclusive()
    }
}
