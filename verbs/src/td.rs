//! Thread domains.

use std::{fmt, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Result, cvt_ptr},
};

/// `ibv_td`—A thread domain: a promise that only one thread at a time uses the objects made in the
/// domain, so that the provider can omit locks.
///
/// Takes effect through a [parent domain](crate::pd::ParentDomainBuilder::thread_domain), which
/// keeps the thread domain alive.
///
/// # References
/// [ibv_alloc_td(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_td.3.html)
#[doc(alias = "ibv_dealloc_td")]
#[doc(alias = "ibv_td")]
pub struct ThreadDomain {
    inner: Arc<TdInner>,
}

/// The part shared with parent domains.
pub(crate) struct TdInner {
    // INVARIANT: allocated until `self` is dropped.
    raw: NonNull<ffi::ibv_td>,
    ctx: Context,
}

// SAFETY: calls change no state of a thread domain in user space; the restriction is on the use of
// objects made in the domain, not on the owner of the domain.
unsafe impl Send for TdInner {}
// SAFETY: see `Send`.
unsafe impl Sync for TdInner {}

impl Context {
    /// `ibv_alloc_td(ctx, …)`—Allocates a thread domain.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the provider has no thread domains, and always locks.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_alloc_td(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_td.3.html)
    #[doc(alias = "ibv_alloc_td")]
    pub fn alloc_td(&self) -> Result<ThreadDomain> {
        self.check_process("ibv_alloc_td")?;
        let mut attr = ffi::ibv_td_init_attr::zeroed();
        // SAFETY: the context is open for as long as `self` lives. Assumption: C keeps no pointer
        // to the attributes.
        let raw = unsafe { ffi::ibv_alloc_td(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr("ibv_alloc_td", raw)?;
        let ctx = self.clone();
        Ok(ThreadDomain {
            inner: Arc::new(TdInner { raw, ctx }),
        })
    }
}

impl ThreadDomain {
    /// The device this domain belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_td {
        self.inner.raw.as_ptr()
    }

    pub(crate) fn share(&self) -> Arc<TdInner> {
        Arc::clone(&self.inner)
    }
}

impl fmt::Debug for ThreadDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadDomain")
            .field("context", &self.inner.ctx)
            .finish()
    }
}

impl Drop for TdInner {
    fn drop(&mut self) {
        let _: i32 = self.ctx.destroy(|| {
            // SAFETY: the domain is allocated and freed once, here; the context is open, since
            // `self.ctx` is dropped later. Parent domains hold an `Arc` of `self`, so none is left,
            // except leaked ones; then this fails (`EBUSY`), and the domain stays until the context is
            // closed.
            unsafe { ffi::ibv_dealloc_td(self.raw.as_ptr()) }
        });
    }
}
