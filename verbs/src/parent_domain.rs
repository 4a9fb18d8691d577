//! Parent domains: protection domains with a thread domain, and with memory of the caller.

use std::{
    alloc::Layout,
    ffi::c_void,
    fmt, mem,
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_parent_domain_init_attr_mask as has;

use crate::{
    error::{Result, cvt_ptr},
    pd::{Origin, ProtectionDomain},
    td::{TdInner, ThreadDomain},
};

/// The answer of a [`QueueAllocator`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Memory of at least the requested size and alignment.
    Memory(NonNull<u8>),
    /// No memory: the provider allocates by its default method.
    Default,
    /// No memory: the call that needs the memory fails.
    Failed,
}

/// Allocates the memory of queues created in a parent domain: for example on a NUMA node, or in huge
/// pages.
///
/// A method that panics counts as failed: the panic does not reach the provider.
///
/// # Safety
/// Memory returned by `alloc` as [`Allocation::Memory`]
/// - is valid for reads and writes for the whole layout, until `free` is called with its address;
/// - overlaps no memory in other use meanwhile.
#[doc(alias = "IBV_ALLOCATOR_USE_DEFAULT")]
pub unsafe trait QueueAllocator: Send + Sync + 'static {
    /// Allocates memory for an object of the provider's type `resource_type`.
    fn alloc(&self, layout: Layout, resource_type: u64) -> Allocation;

    /// Takes memory back.
    ///
    /// # Safety
    /// - `memory` came from [`alloc`](Self::alloc), for the same type, and is not used any more.
    unsafe fn free(&self, memory: NonNull<u8>, resource_type: u64);
}

/// The parts of a parent domain, kept by the domain.
pub(crate) struct DomainParts {
    pd: ManuallyDrop<ProtectionDomain>,
    _td: ManuallyDrop<Option<Arc<TdInner>>>,
    // INVARIANT: the callbacks of the domain have a pointer to the inner box, so the box lives as
    // long as the domain.
    _allocator: ManuallyDrop<Option<Box<Box<dyn QueueAllocator>>>>,
    given_up: bool,
}

impl DomainParts {
    /// The protection domain underneath the parent domain.
    pub(crate) fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Leaks the parts, since the domain could not be freed.
    pub(crate) fn give_up(&mut self) {
        self.given_up = true;
    }
}

impl Drop for DomainParts {
    fn drop(&mut self) {
        if self.given_up {
            return;
        }
        // The domain is gone: see the order of `Drop` in `pd.rs`.
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self._allocator) };
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self._td) };
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.pd) };
    }
}

/// Builder of a parent domain, a [`ProtectionDomain`].
#[must_use = "call `create` to make the domain"]
pub struct ParentDomainBuilder<'a> {
    pd: &'a ProtectionDomain,
    td: Option<&'a ThreadDomain>,
    allocator: Option<Box<Box<dyn QueueAllocator>>>,
    allow_unprotected: bool,
}

impl ProtectionDomain {
    /// Returns the builder of a parent domain of this one: the same domain for memory and queue pairs, but with
    /// objects used by one thread only, or with memory from the caller's allocator.
    ///
    /// # Examples
    /// ```no_run
    /// # fn f(pd: &verbs::ProtectionDomain, allocator: impl verbs::pd::QueueAllocator) -> verbs::Result<()> {
    /// let parent = pd.parent_domain_builder().allocator(allocator).create()?;
    /// let cq = parent.context().cq_ex_builder(64).parent_domain(&parent).create()?;
    /// let qp = parent.qp_builder::<verbs::Rc>(&cq, &cq).create()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn parent_domain_builder(&self) -> ParentDomainBuilder<'_> {
        ParentDomainBuilder {
            pd: self,
            td: None,
            allocator: None,
            allow_unprotected: false,
        }
    }
}

impl<'a> ParentDomainBuilder<'a> {
    /// Lets the provider omit locks.
    ///
    /// # Safety
    /// - Two threads never use at the same time: the objects made in the domain, or in another one
    ///   with the same thread domain, nor the two halves of one queue pair.
    pub unsafe fn thread_domain(mut self, td: &'a ThreadDomain) -> Self {
        self.td = Some(td);
        self
    }

    /// Allocates the memory of queues.
    #[doc(alias = "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS")]
    #[doc(alias = "IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT")]
    pub fn allocator(mut self, allocator: impl QueueAllocator) -> Self {
        self.allocator = Some(Box::new(Box::new(allocator)));
        self
    }

    /// `IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC`—Lets the provider allocate
    /// [memory](crate::mr::ProviderMemory) readable by a virtual machine's host, where the device
    /// can reach no other memory: see [`ProtectionDomain::alloc_provider_memory`]. Libraries before
    /// rdma-core 64 refuse the flag with `EINVAL`.
    #[doc(alias = "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC")]
    pub fn allow_unprotected(mut self) -> Self {
        self.allow_unprotected = true;
        self
    }

    /// `ibv_alloc_parent_domain(ctx, …)`—Creates the domain.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device has none.
    /// - `InvalidInput`: the thread domain belongs to another device.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_alloc_parent_domain(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_parent_domain.3.html)
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn create(self) -> Result<ProtectionDomain> {
        const CALL: &str = "ibv_alloc_parent_domain";
        let ctx = self.pd.context();
        ctx.check_process(CALL)?;
        let mut attr = ffi::ibv_parent_domain_init_attr::zeroed();
        attr.pd = self.pd.as_raw();
        if let Some(td) = self.td {
            ctx.check_same(CALL, "the thread domain", td.context())?;
            attr.td = td.as_raw();
        }
        if let Some(allocator) = &self.allocator {
            attr.comp_mask |= has::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
            attr.comp_mask |= has::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
            attr.alloc = Some(alloc);
            attr.free = Some(free);
            attr.pd_context = ptr::from_ref::<Box<dyn QueueAllocator>>(allocator)
                .cast_mut()
                .cast();
        }
        if self.allow_unprotected {
            attr.comp_mask |= has::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC.0;
        }
        // SAFETY: the context is open, and the domains exist, for as long as `self` borrows them,
        // and then for as long as `DomainParts` holds them, and so does the allocator. C copies the
        // attributes.
        let raw = unsafe { ffi::ibv_alloc_parent_domain(ctx.as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw)?;
        let parts = DomainParts {
            pd: ManuallyDrop::new(self.pd.clone()),
            _td: ManuallyDrop::new(self.td.map(ThreadDomain::share)),
            _allocator: ManuallyDrop::new(self.allocator),
            given_up: false,
        };
        // SAFETY: the domain has just been made, in this context, of these parts.
        Ok(unsafe { ProtectionDomain::from_raw(raw, Origin::Parent(parts), ctx.clone()) })
    }
}

impl fmt::Debug for ParentDomainBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParentDomainBuilder")
            .field("pd", &self.pd)
            .field("td", &self.td)
            .field("allocator", &self.allocator.is_some())
            .finish()
    }
}

/// The provider's way to [`QueueAllocator::alloc`].
unsafe extern "C" fn alloc(
    _pd: *mut ffi::ibv_pd,
    pd_context: *mut c_void,
    size: usize,
    alignment: usize,
    resource_type: u64,
) -> *mut c_void {
    let Ok(layout) = Layout::from_size_align(size, alignment.max(1)) else {
        return ptr::null_mut();
    };
    // SAFETY: the pointer given at the domain's creation, to an allocator with the domain's
    // lifetime.
    let allocator = unsafe { &*pd_context.cast::<Box<dyn QueueAllocator>>() };
    let allocated = catch_unwind(AssertUnwindSafe(|| allocator.alloc(layout, resource_type)));
    match allocated {
        Ok(Allocation::Memory(memory)) => memory.as_ptr().cast(),
        Ok(Allocation::Default) => ffi::IBV_ALLOCATOR_USE_DEFAULT,
        Ok(Allocation::Failed) => ptr::null_mut(),
        Err(panic) => {
            ignore(panic);
            ptr::null_mut()
        }
    }
}

/// The provider's way to [`QueueAllocator::free`].
unsafe extern "C" fn free(
    _pd: *mut ffi::ibv_pd,
    pd_context: *mut c_void,
    memory: *mut c_void,
    resource_type: u64,
) {
    let Some(memory) = NonNull::new(memory.cast::<u8>()) else {
        return;
    };
    // SAFETY: the pointer given at the domain's creation, to an allocator with the domain's
    // lifetime.
    let allocator = unsafe { &*pd_context.cast::<Box<dyn QueueAllocator>>() };
    let freed = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the memory is from `alloc`. Assumption: a provider returns memory of its
        // allocator after the last use.
        unsafe { allocator.free(memory, resource_type) };
    }));
    if let Err(panic) = freed {
        ignore(panic);
    }
}

/// Drops a panic's payload; the drop may panic itself.
fn ignore(panic: Box<dyn std::any::Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        #[expect(clippy::mem_forget, reason = "there is no end to it otherwise")]
        mem::forget(second);
    }
}
