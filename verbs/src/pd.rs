//! Protection domains: the common domains of memory and queue pairs.
//!
//! | item | is |
//! |---|---|
//! | [`ProtectionDomain`] | the domain |
//! | [`ParentDomainBuilder`] | makes a domain with a thread domain, or with an allocator |
//! | [`ThreadDomain`] | objects used by one thread at a time |
//! | [`QueueAllocator`], [`Allocation`] | memory of the caller for queues |
//!
//! # References
//! [ibv_alloc_pd(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html),
//! [ibv_alloc_td(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_td.3.html),
//! [ibv_alloc_parent_domain(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_parent_domain.3.html)

use std::{fmt, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    context::Context,
    error::{Result, cvt_ptr},
    event::KernelHandle,
    mr::BoundRegions,
    parent_domain::DomainParts,
};

pub use crate::{
    parent_domain::{Allocation, ParentDomainBuilder, QueueAllocator},
    td::ThreadDomain,
};

/// `ibv_pd`—A protection domain: memory and queue pairs can work together only inside one.
///
/// Cloning is cheap: the handle is reference-counted, like an `Arc`. The domain is freed after the
/// drop of the last handle and of the last object made in the domain.
#[doc(alias = "ibv_dealloc_pd")]
#[doc(alias = "ibv_pd")]
#[derive(Clone)]
pub struct ProtectionDomain {
    inner: Arc<PdInner>,
}

struct PdInner {
    // INVARIANT: allocated until `self` is dropped.
    raw: NonNull<ffi::ibv_pd>,
    origin: Origin,
    bound: BoundRegions,
    ctx: Context,
}

/// The origin of a domain, and so the way to free the domain.
pub(crate) enum Origin {
    /// Allocated.
    Own,
    /// A parent domain, made of these parts.
    Parent(DomainParts),
    /// Owned by another process.
    Imported,
}

// SAFETY: calls change no state of a protection domain in user space. Assumption: calls of
// libibverbs may be made from any thread, and several at once.
unsafe impl Send for PdInner {}
// SAFETY: see `Send`.
unsafe impl Sync for PdInner {}

impl Context {
    /// `ibv_alloc_pd(ctx)`—Allocates a protection domain. Enters the kernel.
    ///
    /// # Errors
    /// - `ENOMEM`: the device or the kernel has no room for another one.
    ///
    /// # Examples
    /// ```
    /// # let _fabric = doctest::host();
    /// let ctx = verbs::devices()?.first()?.open()?;
    /// let pd = ctx.alloc_pd()?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_alloc_pd(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html)
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<ProtectionDomain> {
        self.check_process("ibv_alloc_pd")?;
        // SAFETY: the context is open for as long as `self` lives.
        let raw = unsafe { ffi::ibv_alloc_pd(self.as_raw()) };
        let raw = cvt_ptr("ibv_alloc_pd", raw)?;
        // SAFETY: the domain has just been allocated, in this context.
        Ok(unsafe { ProtectionDomain::from_raw(raw, Origin::Own, self.clone()) })
    }
}

impl ProtectionDomain {
    /// # Safety
    /// - `raw` is a new domain of this context and of that origin, with no other owner.
    pub(crate) unsafe fn from_raw(raw: NonNull<ffi::ibv_pd>, origin: Origin, ctx: Context) -> Self {
        let bound = BoundRegions::default();
        let inner = PdInner {
            raw,
            origin,
            bound,
            ctx,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The kernel's name for this domain, for the [import](Context::import_pd) by a process that
    /// shares the device.
    pub fn kernel_handle(&self) -> KernelHandle {
        // SAFETY: the domain is allocated (invariant of `PdInner`), and its handle never changes.
        KernelHandle(unsafe { (*self.as_raw()).handle })
    }

    /// The device this domain belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_pd {
        self.inner.raw.as_ptr()
    }

    /// Memory of this domain to which a window is still bound.
    pub(crate) fn bound_regions(&self) -> &BoundRegions {
        &self.inner.bound
    }

    /// Whether both are one domain for the device: a parent domain equals the domain underneath.
    pub(crate) fn is_same_for_device(&self, other: &Self) -> bool {
        self.for_device() == other.for_device()
    }

    fn for_device(&self) -> &Self {
        match &self.inner.origin {
            Origin::Parent(parts) => parts.pd().for_device(),
            Origin::Own | Origin::Imported => self,
        }
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

impl Drop for PdInner {
    fn drop(&mut self) {
        self.bound.end(&self.ctx);
        if let Origin::Imported = self.origin {
            let _: i32 = self.ctx.destroy(|| {
                // SAFETY: the domain was imported, and is unimported once, here; the context is
                // open, since `self.ctx` is dropped later.
                unsafe { ffi::ibv_unimport_pd(self.raw.as_ptr()) };
                0
            });
            return;
        }
        let errno = self.ctx.destroy(|| {
            // SAFETY: the domain is allocated and freed once, here; the context is open, since
            // `self.ctx` is dropped later. Every object made in the domain holds an `Arc` of `self`, so
            // any remaining object was leaked before. If such an object makes the call fail (`EBUSY`),
            // the domain stays allocated until the context is closed.
            unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) }
        });
        if let (Origin::Parent(parts), true) = (&mut self.origin, errno != 0) {
            // Possibly still in use.
            parts.give_up();
        }
    }
}
