//! Protection domains.

use std::{fmt, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Result, cvt_ptr},
};

/// `ibv_pd`—A protection domain: memory and queue pairs can work together only inside one.
///
/// It is a handle to a shared object, like an `Arc`: cloning it is cheap, and the domain is freed
/// when the last handle and the last object made in it are gone.
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct ProtectionDomain {
    inner: Arc<Inner>,
}

struct Inner {
    // INVARIANT: allocated until `self` is dropped.
    raw: NonNull<ffi::ibv_pd>,
    ctx: Context,
}

// SAFETY: a protection domain has no state that calls change in user space; libibverbs documents
// its calls as thread-safe.
unsafe impl Send for Inner {}
// SAFETY: see `Send`.
unsafe impl Sync for Inner {}

impl Context {
    /// `ibv_alloc_pd(ctx)`—Allocates a protection domain. Enters the kernel.
    ///
    /// # Errors
    /// - `ENOMEM`: the device or the kernel has no room for another one.
    ///
    /// # Examples
    /// ```no_run
    /// let devices = verbs::devices()?;
    /// let ctx = devices.find("rxe0").expect("no such device").open()?;
    /// let pd = ctx.alloc_pd()?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_alloc_pd(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html)
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        // SAFETY: the context is open for as long as `self` lives.
        let raw = unsafe { ffi::ibv_alloc_pd(self.as_raw()) };
        let raw = cvt_ptr("ibv_alloc_pd", raw)?;
        Ok(ProtectionDomain {
            inner: Arc::new(Inner {
                raw,
                ctx: self.clone(),
            }),
        })
    }
}

impl ProtectionDomain {
    /// The device this domain belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. It is allocated for as long as `self`
    /// lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_pd {
        self.inner.raw.as_ptr()
    }
}

impl PartialEq for ProtectionDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for ProtectionDomain {}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain")
            .field("context", &self.inner.ctx)
            .finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the domain is allocated and freed once, here; its context is open, since
        // `self.ctx` is dropped after this. Every object made in it holds an `Arc` of `self`, so
        // what could still use it was given up before. If such an object makes the call fail
        // (`EBUSY`), the domain stays allocated until the context is closed.
        let _: i32 = unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}
