//! Registrations without memory.

use std::{fmt, sync::Arc};

use ibverbs_sys as ffi;

use super::region::{Mr, element};
use crate::{
    error::Result,
    pd::ProtectionDomain,
    work::{Gather, Scatter, SgeList},
};

/// `ibv_alloc_null_mr`—A registration of no memory: writes are discarded, and reads return zeros,
/// without crossing the bus.
///
/// Cloning is cheap: the registration is reference-counted, like an `Arc`.
///
/// # Examples
/// ```no_run
/// # use verbs::{Buf, ProtectionDomain, QueuePair, Rts, mr::NullBuf};
/// # fn f(
/// #     pd: &ProtectionDomain,
/// #     qp: &mut QueuePair<verbs::Rc, Rts, Buf, (Buf, NullBuf)>,
/// # ) -> verbs::Result<()> {
/// let null = pd.alloc_null_mr()?;
/// // Keeps the first 64 bytes of each message, and discards the rest.
/// qp.post_recv((pd.alloc_buf(64)?, null.buf(1 << 20)))?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_alloc_null_mr(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_null_mr.3.html)
#[doc(alias = "ibv_alloc_null_mr")]
#[derive(Clone)]
pub struct NullRegion {
    inner: Arc<NullInner>,
}

struct NullInner(Mr);

/// Any number of bytes of a [`NullRegion`], to be written to or read from.
#[derive(Clone)]
pub struct NullBuf {
    region: NullRegion,
    len: u32,
}

impl ProtectionDomain {
    /// `ibv_alloc_null_mr(pd)`—Allocates a registration of no memory. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device has none.
    /// - `ENOMEM`: out of registrations.
    ///
    /// # References
    /// [ibv_alloc_null_mr(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_null_mr.3.html)
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<NullRegion> {
        self.context().check_process("ibv_alloc_null_mr")?;
        // SAFETY: the domain is allocated for as long as `self` lives.
        let raw = unsafe { ffi::ibv_alloc_null_mr(self.as_raw()) };
        // SAFETY: `raw` is the call's result.
        let mr = unsafe { Mr::new("ibv_alloc_null_mr", raw, self) }?;
        let inner = Arc::new(NullInner(mr));
        Ok(NullRegion { inner })
    }
}

impl NullRegion {
    /// A buffer of `len` bytes of the region.
    pub fn buf(&self, len: u32) -> NullBuf {
        NullBuf {
            region: self.clone(),
            len,
        }
    }

    /// The protection domain of the registration.
    pub fn pd(&self) -> &ProtectionDomain {
        self.inner.0.pd()
    }
}

impl fmt::Debug for NullRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NullRegion")
            .field("lkey", &self.inner.0.lkey())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for NullBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NullBuf").field("len", &self.len).finish()
    }
}

impl Drop for NullInner {
    fn drop(&mut self) {
        // SAFETY: once, here. A failure harms nothing: there is no memory.
        let _: bool = unsafe { self.0.dereg() };
    }
}

// SAFETY: the element is inside the registration, which covers every address and is kept by `self`.
// There is no memory.
unsafe impl Gather for NullBuf {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        let mr = &self.region.inner.0;
        // SAFETY: see above.
        let sge = unsafe { element(0, self.len, mr.lkey()) };
        list.push_no_memory(sge, mr.pd().context().id());
    }
}

// SAFETY: see `Gather`.
unsafe impl Scatter for NullBuf {}
