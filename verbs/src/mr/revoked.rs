//! Memory for peers after the end of their access.

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
};

use super::{
    memory::{Memory, OwnedMemory},
    provider_memory::ProviderMemory,
    remote::RemoteRegion,
};
use crate::{
    error::{Error, Refused},
    quirk,
};

const CALL: &str = "ibv_dereg_mr";

impl RemoteRegion {
    /// `ibv_dereg_mr`—Ends the registration, and returns all of its memory for reading and writing in place: no peer
    /// can access the bytes any more. Enters the kernel.
    ///
    /// The region must not be in use: no other handle, no part, no request in flight, and no memory window may be left.
    /// The memory can be [registered](crate::ProtectionDomain::register) again, with other keys.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::RemoteAccess;
    /// let pd = ctx.alloc_pd()?;
    /// let region = pd.alloc_remote(4096, RemoteAccess::WRITE)?;
    /// // … until a peer has written its page …
    /// let page = region.revoke()?;
    /// assert_eq!(page[..4], [0; 4]); // read in place
    /// let region = pd.register(page).remote(RemoteAccess::WRITE).create()?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error returns the region, unchanged:
    /// - `ResourceBusy`: the region is in use.
    /// - `InvalidInput`: others may use the memory ([`Memory::is_exclusive`]), or the registration is of
    ///   [`Everything`](crate::mr::Everything).
    /// - `Unsupported`: on Soft-iWARP, whose accesses for a peer may end later.
    /// - `EBUSY`: a window is still bound to the memory.
    ///
    /// # References
    /// [ibv_dereg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(mut self) -> Result<RevokedMemory, Refused<Self>> {
        match self.try_revoke() {
            Ok(memory) => Ok(memory),
            Err(error) => Err(Refused { value: self, error }),
        }
    }

    fn try_revoke(&mut self) -> Result<RevokedMemory, Error> {
        let ctx = self.pd().context();
        ctx.check_process(CALL)?;
        if quirk::access_outlives_registration(ctx)? {
            let reason = "Soft-iWARP may access memory for a peer after the end of its registration; copy the bytes by \
                          `read`";
            let kind = io::ErrorKind::Unsupported;
            return Err(Error::refused(CALL, kind, reason));
        }
        let Some(region) = self.region_mut() else {
            let reason = "another handle, a part, a request in flight or a window uses the region; drop them first";
            let kind = io::ErrorKind::ResourceBusy;
            return Err(Error::refused(CALL, kind, reason));
        };
        let range = NonNull::slice_from_raw_parts(region.start(), region.len());
        let memory = region.revoke(CALL)?;
        Ok(RevokedMemory { range, memory })
    }
}

/// Memory of a [`RemoteRegion`] whose registration has [ended](RemoteRegion::revoke): reads and writes like a `[u8]`.
pub struct RevokedMemory {
    // INVARIANT: the registered range of `memory`, which has no other user: `Memory::is_exclusive` was true when no device
    // had access any more.
    range: NonNull<[u8]>,
    memory: Box<dyn Memory>,
}

// SAFETY: an address of bytes that `self` owns alone, and memory that may be moved to another thread.
unsafe impl Send for RevokedMemory {}

impl Deref for RevokedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised, kept by `self`, and have no other user (invariant).
        unsafe { slice::from_raw_parts(self.range.cast().as_ptr(), self.range.len()) }
    }
}

impl DerefMut for RevokedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(self.range.cast().as_ptr(), self.range.len()) }
    }
}

impl AsRef<[u8]> for RevokedMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RevokedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevokedMemory")
            .field("len", &self.range.len())
            .finish_non_exhaustive()
    }
}

// SAFETY: the range keeps its address wherever `self` is moved, and references borrow `self`, so none exist after a move.
unsafe impl Memory for RevokedMemory {
    fn range(&mut self) -> NonNull<[u8]> {
        self.range
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        self.memory.provider()
    }

    fn frees_pages(&self) -> bool {
        self.memory.frees_pages()
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

// SAFETY: the bytes have no other user (invariant).
unsafe impl OwnedMemory for RevokedMemory {}
