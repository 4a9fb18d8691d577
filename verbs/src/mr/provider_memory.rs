//! Memory allocated by a device's provider.

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    os::fd::{FromRawFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
};

use ibverbs_sys as ffi;

use super::memory::{Memory, OwnedMemory};
use crate::{
    error::{Error, Result, cvt_neg, cvt_ptr, found},
    pd::ProtectionDomain,
};

/// `ibv_buf`—Zeroed memory of the kind best for the device in its provider's judgement. For
/// registration in the domain of its [allocation](ProtectionDomain::alloc_provider_memory), alone or
/// as a [pool](crate::mr::BufPool).
///
/// In a virtual machine with encrypted memory, a device reaches ordinary memory by copies only.
/// There, provider memory is shared with the host, if the domain is a parent domain with
/// [`allow_unprotected`](crate::pd::ParentDomainBuilder::allow_unprotected). Elsewhere there is no
/// such difference.
///
/// # Examples
/// ```no_run
/// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
/// let pd = ctx.alloc_pd()?;
/// let parent = pd.parent_domain_builder().allow_unprotected().create()?;
/// let memory = parent.alloc_provider_memory(1 << 20)?;
/// let buf = parent.register(memory).create_buf()?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_alloc_buf(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_alloc_buf.3.md)
#[doc(alias = "ibv_buf")]
pub struct ProviderMemory {
    // INVARIANT: allocated in `pd` until `self` is dropped.
    raw: NonNull<ffi::ibv_buf>,
    // INVARIANT: the `len` bytes of `raw`: readable, writable, initialised, and owned by `self`
    // alone.
    start: NonNull<u8>,
    len: usize,
    pd: ProtectionDomain,
}

// SAFETY: the memory owns its bytes alone (invariant). Assumption: calls of libibverbs may be made from
// any thread, and several at once.
unsafe impl Send for ProviderMemory {}
// SAFETY: a shared one only allows reading.
unsafe impl Sync for ProviderMemory {}

impl ProtectionDomain {
    /// `ibv_alloc_buf(pd, …)`—Lets the provider allocate `len` bytes, all zero. May enter the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or beyond the address space.
    /// - `EOPNOTSUPP`: the library is older than rdma-core 64, or the provider cannot allocate the
    ///   kind of memory requested by the domain.
    /// - `ENOMEM`: less memory is free.
    ///
    /// # References
    /// [ibv_alloc_buf(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_alloc_buf.3.md)
    #[doc(alias = "ibv_alloc_buf")]
    pub fn alloc_provider_memory(&self, len: usize) -> Result<ProviderMemory> {
        const CALL: &str = "ibv_alloc_buf";
        let fail = |err: Error| err.detail(format!("{len} bytes"));
        if len == 0 || isize::try_from(len).is_err() {
            let reason = "memory has at least one byte, and fits into the address space";
            let refused = Error::refused(CALL, io::ErrorKind::InvalidInput, reason);
            return Err(fail(refused));
        }
        self.context().check_process(CALL).map_err(fail)?;
        let alloc = found(CALL, ffi::late::ibv_alloc_buf()).map_err(fail)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the domain is allocated for as long as `self` lives, and `raw` is written to until the call
        // returns.
        let start = unsafe { alloc(self.as_raw(), len, &raw mut raw) };
        let start: NonNull<u8> = cvt_ptr(CALL, start.cast()).map_err(fail)?;
        let Some(raw) = NonNull::new(raw) else {
            let reason = "the provider gave no handle";
            return Err(fail(Error::refused(CALL, io::ErrorKind::Other, reason)));
        };
        // SAFETY: `len` bytes have just been allocated, and the address has not been shared yet.
        unsafe { start.as_ptr().write_bytes(0, len) };
        let pd = self.clone();
        Ok(ProviderMemory {
            raw,
            start,
            len,
            pd,
        })
    }
}

impl ProviderMemory {
    /// The protection domain of the allocation.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// `ibv_export_buf_dmabuf_fd(buf)`—Creates a dma-buf descriptor of the memory, for other devices
    /// and processes. Enters the kernel.
    ///
    /// # Errors
    /// - `ENODATA`: the memory is not a dma-buf.
    /// - `EOPNOTSUPP`: the library is older than rdma-core 65.
    ///
    /// # Safety
    /// - While the program has a reference to the bytes, or a [`Buf`](crate::Buf) of them, no user
    ///   of the descriptor writes the memory; while the program may write through such a reference,
    ///   no user reads the memory either.
    ///
    /// # References
    /// [ibv_export_buf_dmabuf_fd(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_alloc_buf.3.md)
    #[doc(alias = "ibv_export_buf_dmabuf_fd")]
    pub unsafe fn export_dmabuf(&self) -> Result<OwnedFd> {
        const CALL: &str = "ibv_export_buf_dmabuf_fd";
        let export = found(CALL, ffi::late::ibv_export_buf_dmabuf_fd())?;
        // SAFETY: allocated (invariant).
        let fd = cvt_neg(CALL, unsafe { export(self.as_raw()) })?;
        // SAFETY: the call made the descriptor for its caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_buf {
        self.raw.as_ptr()
    }
}

impl Deref for ProviderMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are initialised, and `self`'s alone (invariant).
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for ProviderMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for ProviderMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderMemory")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for ProviderMemory {
    fn drop(&mut self) {
        if let Some(free) = ffi::late::ibv_free_buf() {
            let _: i32 = self.pd.context().destroy(|| {
                // SAFETY: allocated, and freed once, here; the domain is allocated, since its field is
                // dropped later. A registration drops the memory after its own end.
                unsafe { free(self.raw.as_ptr()) };
                0
            });
        }
    }
}

// SAFETY: the bytes keep their address until the value is dropped, and references borrow the value,
// so none exist after a move.
unsafe impl Memory for ProviderMemory {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.len)
    }

    fn provider(&self) -> Option<&ProviderMemory> {
        Some(self)
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

// SAFETY: the memory has one owner (invariant).
unsafe impl OwnedMemory for ProviderMemory {}
