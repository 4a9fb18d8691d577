//! Memory that can be registered.

use std::{fmt, ptr::NonNull};

use super::provider_memory::ProviderMemory;

/// Memory that can be registered with a device, and that others may use meanwhile.
///
/// It becomes a [`RemoteRegion`](crate::RemoteRegion), whose bytes are only copied in and out. If it
/// is [`OwnedMemory`] as well, it can become a [`Buf`](crate::Buf).
///
/// Registering moves the value into the registration, which drops it after `ibv_dereg_mr` has
/// succeeded. If that fails, the value is never dropped.
///
/// # Safety
/// Of the range that [`range`](Self::range) returns, from then on until the value is dropped:
/// - it is readable, writable and initialised, and it stays where it is, wherever the value is
///   moved: it is not part of the value itself;
/// - nobody has a reference to it, and every access of this process is atomic: of the word, if an aligned word of 8
///   bytes lies wholly inside of the range, and of the byte otherwise.
///
/// What [`provider`](Self::provider) returns, if anything, is what has the range.
pub unsafe trait Memory: fmt::Debug + Send + 'static {
    /// The range: the same one, however often it is asked for.
    fn range(&mut self) -> NonNull<[u8]>;

    /// The provider's memory that the range is, if it is such: that is registered in its own way.
    fn provider(&self) -> Option<&ProviderMemory> {
        None
    }
}

/// Memory that nobody else uses while it is registered.
///
/// # Safety
/// - From the call of [`range`](Memory::range) until the value is dropped, nobody reads or writes
///   the range but by the pointer that was returned, neither in this process nor in another one.
pub unsafe trait OwnedMemory: Memory {}

// SAFETY: a vector's bytes are on the heap, initialised, and do not move with it; nobody can have a
// reference to them while the vector is owned by somebody else.
unsafe impl Memory for Vec<u8> {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::from(self.as_mut_slice())
    }
}

// SAFETY: a vector is the only owner of its bytes.
unsafe impl OwnedMemory for Vec<u8> {}

// SAFETY: as for a vector. What moves the box does so before `range` is called or after the device
// has lost its access.
unsafe impl Memory for Box<[u8]> {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: a box is the only owner of its bytes.
unsafe impl OwnedMemory for Box<[u8]> {}

/// The first bytes of some memory: the rest of it is not registered, so neither the device nor a peer reaches it.
///
/// # Examples
/// ```
/// use verbs::Prefix;
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
    /// The memory has fewer; it is given back.
    pub fn new(mut memory: M, len: usize) -> Result<Self, M> {
        if len > memory.range().len() {
            return Err(memory);
        }
        Ok(Self { memory, len })
    }

    /// All of the memory.
    pub fn into_inner(self) -> M {
        self.memory
    }
}

// SAFETY: a part of the range of `memory`, which `self` owns.
unsafe impl<M: Memory> Memory for Prefix<M> {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.memory.range().cast(), self.len)
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        self.memory.provider()
    }
}

// SAFETY: as for `memory`.
unsafe impl<M: OwnedMemory> OwnedMemory for Prefix<M> {}

/// Zero bytes that begin with a word, whatever the allocator's alignment of bytes is.
#[derive(Debug)]
pub(super) struct Words(Vec<u64>);

impl Words {
    /// So many words. Zeroed by the allocator, which for large memory means not touched at all.
    pub(super) fn zeroed(words: usize) -> Self {
        Self(vec![0; words])
    }
}

// SAFETY: as for a vector of bytes; every byte of a number is initialised.
unsafe impl Memory for Words {
    fn range(&mut self) -> NonNull<[u8]> {
        let words = NonNull::from(self.0.as_mut_slice());
        NonNull::slice_from_raw_parts(words.cast(), size_of::<u64>() * words.len())
    }
}

// SAFETY: as for what is in the box, which does not move with it.
unsafe impl Memory for Box<dyn Memory> {
    fn range(&mut self) -> NonNull<[u8]> {
        (**self).range()
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        (**self).provider()
    }
}

/// Memory that the caller has, and says it is fine to register.
///
/// What owns its memory should rather implement [`Memory`] and [`OwnedMemory`], since it is told
/// when the registration is over: by being dropped.
///
/// # Examples
/// ```no_run
/// use std::ptr::NonNull;
///
/// use verbs::RawMemory;
///
/// # fn f(pd: verbs::ProtectionDomain) -> verbs::Result<()> {
/// static mut ARENA: [u8; 4096] = [0; 4096];
/// let arena = NonNull::new(&raw mut ARENA).expect("statics have addresses");
/// // SAFETY: nothing else uses this static.
/// let memory = unsafe { RawMemory::new(arena) };
/// let buf = pd.register(memory).buf()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RawMemory {
    // INVARIANT: as `new` demands.
    range: NonNull<[u8]>,
}

// SAFETY: an address, of bytes that the caller of `new` has given up.
unsafe impl Send for RawMemory {}

impl RawMemory {
    /// Promises that a range can be registered.
    ///
    /// # Safety
    /// Until the value is dropped, and that is for ever if `ibv_dereg_mr` fails:
    /// - the range is readable, writable and initialised;
    /// - nobody reads or writes it, neither in this process nor in another one, and there are no
    ///   references to it.
    pub unsafe fn new(range: NonNull<[u8]>) -> Self {
        Self { range }
    }
}

// SAFETY: the promise of `RawMemory::new`.
unsafe impl Memory for RawMemory {
    fn range(&mut self) -> NonNull<[u8]> {
        self.range
    }
}

// SAFETY: the promise of `RawMemory::new`.
unsafe impl OwnedMemory for RawMemory {}
