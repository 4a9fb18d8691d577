//! Device memory: memory on the device.
//!
//! [`DeviceMemory`] can be registered, as an [`UnmappedRegion`](crate::mr::UnmappedRegion).
//!
//! # References
//! [ibv_alloc_dm(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)

use std::{
    fmt, io,
    os::fd::{FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Error, Result, cvt_errno, cvt_neg, cvt_ptr, found},
    event::KernelHandle,
};

/// `ibv_dm`—Memory on the device, accessible to requests without crossing the bus.
///
/// The program copies in and out. To use the memory in requests,
/// [register](crate::ProtectionDomain::register_dm) a part.
///
/// # Examples
/// ```no_run
/// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
/// let mut dm = ctx.alloc_dm(4096, 0)?;
/// dm.write(100, b"hello")?;
/// let mut back = [0; 5];
/// dm.read(100, &mut back)?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_alloc_dm(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)
#[doc(alias = "ibv_free_dm")]
#[doc(alias = "ibv_dm")]
pub struct DeviceMemory {
    inner: Arc<DmInner>,
}

/// Keeps device memory allocated.
pub(crate) struct DmShare {
    _inner: Arc<DmInner>,
}

struct DmInner {
    // INVARIANT: allocated until `self` is dropped.
    raw: NonNull<ffi::ibv_dm>,
    origin: DmOrigin,
    ctx: Context,
}

enum DmOrigin {
    /// Allocated here, with this number of bytes.
    Own(usize),
    /// Owned by another process.
    Imported,
}

// SAFETY: C copies to and from the memory, without references. Assumption: calls of libibverbs may
// be made from any thread, and several at once.
unsafe impl Send for DmInner {}
// SAFETY: see `Send`.
unsafe impl Sync for DmInner {}

impl Context {
    /// `ibv_alloc_dm(ctx, …)`—Allocates `len` bytes on the device, aligned to two to the power of
    /// `log_align` bytes. Enters the kernel.
    ///
    /// The device has [`DeviceAttr::max_dm_size`](crate::attr::DeviceAttr::max_dm_size) bytes.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device has no memory to allocate.
    /// - `ENOMEM`: less memory is free.
    ///
    /// # References
    /// [ibv_alloc_dm(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, len: usize, log_align: u32) -> Result<DeviceMemory> {
        self.check_process("ibv_alloc_dm")?;
        let mut attr = ffi::ibv_alloc_dm_attr::zeroed();
        attr.length = len;
        attr.log_align_req = log_align;
        // SAFETY: the context is open for as long as `self` lives. Assumption: C keeps no pointer
        // to the attributes.
        let raw = unsafe { ffi::ibv_alloc_dm(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr("ibv_alloc_dm", raw)
            .map_err(|err| err.detail(format!("{len} bytes, alignment 2^{log_align}")))?;
        Ok(DeviceMemory::new(raw, DmOrigin::Own(len), self))
    }

    /// `ibv_import_dm(ctx, handle)`—Uses device memory allocated by another process that shares the
    /// device: see [`import_device`](crate::import::import_device).
    ///
    /// The other process remains the owner, and frees the memory.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support importing memory.
    /// - `EINVAL`, `ENOENT`: there is no such memory.
    ///
    /// # References
    /// [ibv_import_dm(3)](https://man7.org/linux/man-pages/man3/ibv_import_dm.3.html)
    #[doc(alias = "ibv_unimport_dm")]
    #[doc(alias = "ibv_import_dm")]
    pub fn import_dm(&self, handle: KernelHandle) -> Result<DeviceMemory> {
        self.check_process("ibv_import_dm")?;
        // SAFETY: the context is open for as long as `self` lives; the kernel checks the handle.
        let raw = unsafe { ffi::ibv_import_dm(self.as_raw(), handle.0) };
        let raw = cvt_ptr("ibv_import_dm", raw).map_err(|err| err.detail(format!("{handle:?}")))?;
        Ok(DeviceMemory::new(raw, DmOrigin::Imported, self))
    }
}

impl DeviceMemory {
    fn new(raw: NonNull<ffi::ibv_dm>, origin: DmOrigin, ctx: &Context) -> Self {
        let ctx = ctx.clone();
        Self {
            inner: Arc::new(DmInner { raw, origin, ctx }),
        }
    }

    /// The number of bytes, unless the memory was imported.
    pub fn len(&self) -> Option<usize> {
        match self.inner.origin {
            DmOrigin::Own(len) => Some(len),
            DmOrigin::Imported => None,
        }
    }

    /// Whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The kernel's name for this memory, for the [import](Context::import_dm) by a process that
    /// shares the device.
    pub fn kernel_handle(&self) -> KernelHandle {
        // SAFETY: the memory is allocated (invariant of `DmInner`), and its handle never changes.
        KernelHandle(unsafe { (*self.as_raw()).handle })
    }

    /// `ibv_memcpy_to_dm(dm, offset, …)`—Copies bytes to the device. Does not enter the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`, `EFAULT`: the range ends beyond the memory.
    /// - `EINVAL`: the device wants another alignment, often 4 bytes.
    ///
    /// # References
    /// [ibv_memcpy_to_dm(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_to_dm";
        let start = self.check(CALL, offset, bytes.len())?;
        let (from, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the memory is allocated (invariant of `DmInner`); C reads `len` bytes from `bytes`,
        // only before the return, and the provider checks the range as well.
        let errno = unsafe { ffi::ibv_memcpy_to_dm(self.as_raw(), start, from, len) };
        cvt_errno(CALL, errno).map_err(|err| err.detail(format!("{len} bytes at {offset}")))
    }

    /// `ibv_memcpy_from_dm(…, dm, offset, …)`—Copies bytes from the device. Does not enter the
    /// kernel.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    ///
    /// # References
    /// [ibv_memcpy_from_dm(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_from_dm";
        let start = self.check(CALL, offset, bytes.len())?;
        let (to, len) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: the memory is allocated (invariant of `DmInner`); C writes `len` bytes to `bytes`,
        // only before the return, and the provider checks the range as well.
        let errno = unsafe { ffi::ibv_memcpy_from_dm(to, self.as_raw(), start, len) };
        cvt_errno(CALL, errno).map_err(|err| err.detail(format!("{len} bytes at {offset}")))
    }

    /// `ibv_dm_export_dmabuf_fd(dm)`—Makes a dma-buf of the memory, for other devices and
    /// processes. Enters the kernel. Closing the descriptor releases the export's resources.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support exporting, or the library is older than
    ///   rdma-core 62.
    ///
    /// # References
    /// [ibv_dm_export_dmabuf_fd(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_dm_export_dmabuf_fd.3.md)
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export_dmabuf(&self) -> Result<OwnedFd> {
        const CALL: &str = "ibv_dm_export_dmabuf_fd";
        let export = found(CALL, ffi::late::ibv_dm_export_dmabuf_fd())?;
        // SAFETY: the memory is allocated (invariant of `DmInner`).
        let fd = cvt_neg(CALL, unsafe { export(self.as_raw()) })?;
        // SAFETY: the call made the descriptor for its caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn check(&self, call: &'static str, offset: usize, len: usize) -> Result<u64> {
        // The provider checks the length of imported memory, unknown here; but a provider may not
        // expect the sum to overflow.
        let end = offset.checked_add(len);
        let fits = end.is_some_and(|end| self.len().is_none_or(|all| end <= all));
        if fits {
            return Ok(offset as u64);
        }
        let reason = match self.len() {
            Some(all) => format!("the memory has {all} bytes"),
            None => "the end of the range overflows".to_owned(),
        };
        Err(Error::refused(call, io::ErrorKind::InvalidInput, reason)
            .detail(format!("{len} bytes at {offset}")))
    }

    /// A share of the allocation, for registrations of the memory.
    pub(crate) fn share(&self) -> DmShare {
        let _inner = Arc::clone(&self.inner);
        DmShare { _inner }
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_dm {
        self.inner.raw.as_ptr()
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Drop for DmInner {
    fn drop(&mut self) {
        if let DmOrigin::Imported = self.origin {
            let _: i32 = self.ctx.destroy(|| {
                // SAFETY: the memory was imported, and is unimported once, here; the context is
                // open, since `self.ctx` is dropped later.
                unsafe { ffi::ibv_unimport_dm(self.raw.as_ptr()) };
                0
            });
            return;
        }
        let _: i32 = self.ctx.destroy(|| {
            // SAFETY: the memory is allocated and freed once, here; the context is open, since
            // `self.ctx` is dropped later. Registrations of the memory hold an `Arc` of `self`; if one
            // could not be deregistered, this fails, and the memory stays until the context is closed.
            unsafe { ffi::ibv_free_dm(self.raw.as_ptr()) }
        });
    }
}
