//! Handles for DMA hints.

use std::{fmt, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Error, Result, cvt_ptr, found},
    named::named,
};

named! {
    /// `ibv_tph_mem_type`—The kind of memory that a device writes.
    #[doc(alias = "ibv_tph_mem_type")]
    TphMemory(u8) {
        /// Volatile.
        VOLATILE = 0;
        /// Persistent.
        PERSISTENT = 1;
    }
}

/// `ibv_dmah_init_attr`—Hints of a device with each memory access, about the next user of the
/// data (PCI Express TPH).
///
/// Hints not set are left to the device.
#[doc(alias = "ibv_dmah_init_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct DmaHints {
    /// The processor that uses the data next.
    pub cpu: Option<u32>,
    /// The processing hint, with PCI Express's numbers: 0 to 3.
    pub processing: Option<u8>,
    /// The kind of memory.
    pub memory: Option<TphMemory>,
}

/// `ibv_dmah`—How a device accesses memory [registered](crate::mr::Registration::dma_handle) with
/// this handle.
///
/// Cloning is cheap: the object is reference-counted, like an `Arc`.
///
/// # References
/// [ibv_alloc_dmah(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_alloc_dmah.3.md)
#[doc(alias = "ibv_dmah")]
#[derive(Clone)]
pub struct DmaHandle {
    inner: Arc<DmahInner>,
}

struct DmahInner {
    // INVARIANT: allocated until `self` is dropped.
    raw: NonNull<ffi::ibv_dmah>,
    ctx: Context,
}

// SAFETY: a handle never changes. Assumption: calls of libibverbs may be made from any thread, and
// several at once.
unsafe impl Send for DmahInner {}
// SAFETY: see `Send`.
unsafe impl Sync for DmahInner {}

impl Context {
    /// `ibv_alloc_dmah(ctx, …)`—Allocates a handle for hints. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support hints, or the library is older than rdma-core 59.
    /// - `EINVAL`: the device does not support these hints.
    ///
    /// # References
    /// [ibv_alloc_dmah(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_alloc_dmah.3.md)
    #[doc(alias = "ibv_alloc_dmah")]
    pub fn alloc_dma_handle(&self, hints: DmaHints) -> Result<DmaHandle> {
        use ffi::ibv_dmah_init_attr_mask as has;
        const CALL: &str = "ibv_alloc_dmah";
        let fail = |err: Error| err.detail(format!("{hints:?}"));
        self.check_process(CALL).map_err(fail)?;
        let alloc = found(CALL, ffi::late::ibv_alloc_dmah()).map_err(fail)?;
        let bit = |set: bool, flag: has| if set { flag.0 } else { 0 };
        let mut attr = ffi::ibv_dmah_init_attr {
            comp_mask: bit(hints.cpu.is_some(), has::IBV_DMAH_INIT_ATTR_MASK_CPU_ID)
                | bit(hints.processing.is_some(), has::IBV_DMAH_INIT_ATTR_MASK_PH)
                | bit(
                    hints.memory.is_some(),
                    has::IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE,
                ),
            cpu_id: hints.cpu.unwrap_or(0),
            ph: hints.processing.unwrap_or(0),
            tph_mem_type: hints.memory.map_or(0, |kind| kind.0),
        };
        // SAFETY: the context is open for as long as `self` lives. Assumption: C keeps no pointer
        // to the attributes.
        let raw = unsafe { alloc(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw).map_err(fail)?;
        let ctx = self.clone();
        Ok(DmaHandle {
            inner: Arc::new(DmahInner { raw, ctx }),
        })
    }
}

impl DmaHandle {
    /// The device.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_dmah {
        self.inner.raw.as_ptr()
    }
}

impl fmt::Debug for DmaHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaHandle")
            .field("context", &self.inner.ctx)
            .finish_non_exhaustive()
    }
}

impl Drop for DmahInner {
    fn drop(&mut self) {
        if let Some(dealloc) = ffi::late::ibv_dealloc_dmah() {
            let _: i32 = self.ctx.destroy(|| {
                // SAFETY: allocated, and freed once, here; the context is open, since its field is
                // dropped later. Each registration with this handle holds an `Arc` of `self`. After a
                // failure, the handle stays until the context is closed.
                unsafe { dealloc(self.raw.as_ptr()) }
            });
        }
    }
}
