//! Kinds of memory for registration.

use std::{
    alloc::{self, Layout},
    fmt, io,
    ptr::NonNull,
};

use super::provider_memory::ProviderMemory;
use crate::error::{Error, Result};

/// Memory for registration with a device, possibly with other users at the same time.
///
/// Becomes a [`RemoteRegion`](crate::RemoteRegion), with bytes only copied in and out.
/// [`OwnedMemory`] can become a [`Buf`](crate::Buf) as well.
///
/// Registering moves the value into the registration, and the registration drops the value after
/// `ibv_dereg_mr` has succeeded. If `ibv_dereg_mr` fails, the value is never dropped.
///
/// # Safety
/// Of the range returned by [`range`](Self::range), from then on until the value is dropped:
/// - the range is readable, writable and initialised, and keeps its address wherever the value is
///   moved: the bytes are not part of the value itself;
/// - no reference to the range exists, and every access of this process is atomic: of the word, if
///   an aligned word of 8 bytes lies wholly inside the range, and of the byte otherwise.
///
/// If [`provider`](Self::provider) returns memory, the range is that memory's.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be registered",
    label = "no memory at a constant address",
    note = "`Vec<u8>`, `Box<[u8]>` and mappings can; for memory of others, implement `Memory` with its contract"
)]
pub unsafe trait Memory: fmt::Debug + Send + 'static {
    /// The range: the same for every call.
    fn range(&mut self) -> NonNull<[u8]>;

    /// The provider's memory behind the range, if any: registered by a call of its own.
    fn provider(&self) -> Option<&ProviderMemory> {
        None
    }

    /// Whether the drop of the value gives the pages of the range back to the kernel, and no other memory of this process
    /// is in these pages: `false` for memory of an allocator, which uses the bytes again. Soft-iWARP accepts no other
    /// memory for peers: its accesses for a peer may end after the registration.
    ///
    /// An implementation that returns `true` promises both.
    fn frees_pages(&self) -> bool {
        false
    }

    /// Whether the value is the only user of the range, as [`OwnedMemory`] demands: then a
    /// [`Prefix`] may end anywhere, and a [revoked](crate::RemoteRegion::revoke) region can be read in place.
    ///
    /// An implementation that returns `true` promises that, from this call until the value is dropped, unless a method outside
    /// of this trait is called on the value.
    fn is_exclusive(&self) -> bool {
        false
    }
}

/// Memory with no other user while registered.
///
/// [`Memory::is_exclusive`] is the same at run time.
///
/// # Safety
/// - From the call of [`range`](Memory::range) until the value is dropped, all reads and writes of
///   the range, in this process and in others, go through the returned pointer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may have other users while registered",
    label = "memory shared with others",
    note = "register it as a `RemoteRegion`, whose bytes are copied in and out"
)]
pub unsafe trait OwnedMemory: Memory {}

// SAFETY: a vector's bytes are on the heap, initialised, and do not move with the vector;
// references borrow the vector, so none exist after a move.
unsafe impl Memory for Vec<u8> {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.as_mut_slice())
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

// SAFETY: a vector is the only owner of its bytes.
unsafe impl OwnedMemory for Vec<u8> {}

// SAFETY: as for a vector. Moves of the box happen before `range` is called or after the device has
// lost its access.
unsafe impl Memory for Box<[u8]> {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

// SAFETY: a box is the only owner of its bytes.
unsafe impl OwnedMemory for Box<[u8]> {}

/// The first bytes of some memory: the rest is not registered, so neither the device nor a peer can
/// access the rest.
///
/// # Examples
/// ```
/// use verbs::mr::Prefix;
/// let memory = Prefix::new(vec![0; 4096], 1000).expect("it has as many");
/// assert_eq!(Prefix::new(vec![0; 10], 11).unwrap_err(), [0; 10]);
/// # drop(memory);
/// ```
#[derive(Debug)]
pub struct Prefix<M> {
    memory: M,
    // INVARIANT: at most the length of the memory.
    len: usize,
}

impl<M: Memory> Prefix<M> {
    /// The first `len` bytes.
    ///
    /// # Errors
    /// The memory has fewer bytes; or others may use the memory ([`Memory::is_exclusive`]) and the last byte is inside an
    /// aligned word of 8 bytes, which they access whole. The error returns the memory.
    pub fn new(mut memory: M, len: usize) -> Result<Self, M> {
        let range = memory.range();
        let end = range.cast::<u8>().addr().get().wrapping_add(len);
        let splits_word = len < range.len() && !end.is_multiple_of(size_of::<u64>());
        if len > range.len() || splits_word && !memory.is_exclusive() {
            return Err(memory);
        }
        Ok(Self { memory, len })
    }

    /// All of the memory.
    pub fn into_inner(self) -> M {
        self.memory
    }
}

// SAFETY: a part of the range of `memory`, owned by `self`.
unsafe impl<M: Memory> Memory for Prefix<M> {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.memory.range().cast(), self.len)
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        self.memory.provider()
    }

    fn frees_pages(&self) -> bool {
        self.memory.frees_pages()
    }

    fn is_exclusive(&self) -> bool {
        self.memory.is_exclusive()
    }
}

// SAFETY: as for `memory`.
unsafe impl<M: OwnedMemory> OwnedMemory for Prefix<M> {}

/// Zero bytes beginning on a word boundary, which an allocation of bytes does not guarantee.
#[derive(Debug)]
pub(super) struct Words(Box<[u64]>);

impl Words {
    /// `len` zero bytes. Zeroed by the allocator: pages of large memory are not touched.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or beyond the address space.
    /// - `ENOMEM`: less memory is free.
    pub(super) fn zeroed(len: usize) -> Result<Prefix<Self>> {
        let fail = |err: Error| err.detail(format!("{len} bytes"));
        let layout = Layout::array::<u64>(len.div_ceil(size_of::<u64>()));
        let Some(layout) = layout.ok().filter(|layout| layout.size() > 0) else {
            let reason = "a region has at least one byte, and fits into the address space";
            let refused = Error::refused("ibv_reg_mr", io::ErrorKind::InvalidInput, reason);
            return Err(fail(refused));
        };
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc::alloc_zeroed(layout) };
        let Some(first) = NonNull::new(memory.cast::<u64>()) else {
            return Err(fail(Error::from_errno("calloc", libc::ENOMEM)));
        };
        let words = NonNull::slice_from_raw_parts(first, layout.size() / size_of::<u64>());
        // SAFETY: just allocated by the allocator of boxes, with the layout of these words, all zero.
        let words = unsafe { Box::from_raw(words.as_ptr()) };
        // At most as many as allocated.
        Ok(Prefix {
            memory: Self(words),
            len,
        })
    }
}

// SAFETY: as for a vector of bytes; every byte of a number is initialised.
unsafe impl Memory for Words {
    fn range(&mut self) -> NonNull<[u8]> {
        let words = NonNull::from(&mut *self.0);
        NonNull::slice_from_raw_parts(words.cast(), size_of::<u64>() * words.len())
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

// SAFETY: a box is the only owner of its words.
unsafe impl OwnedMemory for Words {}

// SAFETY: as for the content of the box, which does not move with the box.
unsafe impl Memory for Box<dyn Memory> {
    fn range(&mut self) -> NonNull<[u8]> {
        (**self).range()
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        (**self).provider()
    }

    fn frees_pages(&self) -> bool {
        (**self).frees_pages()
    }

    fn is_exclusive(&self) -> bool {
        (**self).is_exclusive()
    }
}

/// Memory of the caller, registered under a contract with the caller.
///
/// Prefer an owner of memory with an implementation of [`Memory`] and [`OwnedMemory`]: its drop then signals
/// the end of the registration.
///
/// # Examples
/// ```
/// use std::ptr::NonNull;
///
/// use verbs::mr::RawMemory;
///
/// # let (_fabric, ctx) = doctest::device();
/// # let pd = ctx.alloc_pd()?;
/// static mut ARENA: [u8; 4096] = [0; 4096];
/// let arena = NonNull::new(&raw mut ARENA).expect("statics have addresses");
/// // SAFETY: nothing else uses this static.
/// let memory = unsafe { RawMemory::new(arena) };
/// let buf = pd.register(memory).create_buf()?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Debug)]
pub struct RawMemory {
    // INVARIANT: as `new` demands.
    range: NonNull<[u8]>,
}

// SAFETY: an address, of bytes given up by the caller of `new`.
unsafe impl Send for RawMemory {}

impl RawMemory {
    /// Takes a range of memory, under the contract below.
    ///
    /// # Safety
    /// Until the value is dropped, or for the life of the process if `ibv_dereg_mr` fails:
    /// - the range is readable, writable and initialised;
    /// - the range is neither read nor written by other code, in this process or another, and no
    ///   reference to the range exists.
    pub unsafe fn new(range: NonNull<[u8]>) -> Self {
        Self { range }
    }
}

// SAFETY: the promise of `RawMemory::new`.
unsafe impl Memory for RawMemory {
    fn range(&mut self) -> NonNull<[u8]> {
        self.range
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

// SAFETY: the promise of `RawMemory::new`.
unsafe impl OwnedMemory for RawMemory {}
