//! Memory windows: access for peers that can be given and taken without a registration.

use std::{any::Any, fmt, io, mem, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    error::{Error, Result, cvt_ptr},
    mr::RemoteRegion,
    pd::ProtectionDomain,
};

/// How a memory window is bound and invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Each binding replaces the one before. Binding to nothing is not to be had: deallocate the
    /// window.
    Type1,
    /// A binding belongs to the queue pair it was posted to, and is ended by an invalidation: this
    /// side's ([`LocalInvalidate`](crate::op::LocalInvalidate)) or the peer's
    /// ([`Send::invalidate`](crate::op::Send::invalidate)).
    Type2,
}

/// `ibv_mw`—A memory window: an RKey of its own for a part of a region, bound by a
/// [request](crate::SendQueue::bind_window) instead of a call into the kernel.
///
/// It keeps the region that it was bound to last, and the one before that, whose binding may be in force until the
/// last one's request has succeeded. Of type 2 it keeps every queue pair that has bound it, with the last region of
/// each, until it is dropped: at most 16, and a further one is refused. Dropping it revokes its RKey.
///
/// Soft-RoCE of kernel 6.1 does not hold peers to the bounds of a window.
///
/// # References
/// [ibv_alloc_mw(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html)
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    // INVARIANT: allocated, and deallocated only in `drop`.
    raw: NonNull<ffi::ibv_mw>,
    window_type: WindowType,
    /// Dropped after the window, as is `earlier`.
    bound: Option<Bound>,
    /// Bindings before the last one, of which the device may still hold on to one: a later one that fails ends nothing.
    /// Those by the same queue pair are over when two more have been posted to it.
    earlier: Vec<Bound>,
    pd: ProtectionDomain,
}

/// Maximum number of queue pairs that a window of type 2 is bound by in its life. It keeps each: the kernel does not
/// destroy a queue pair before the windows that it has bound, and no completion tells the window that a binding of an
/// earlier queue pair is over. Programs bind a window by one queue pair, or by a few in turn.
const MAX_BINDERS: usize = 16;

/// What a window is bound to.
#[derive(Clone)]
struct Bound {
    region: RemoteRegion,
    /// The queue pair that a window of type 2 was bound by: the kernel does not let go of one
    /// before the window.
    qp: Option<Arc<dyn Any + Send + Sync>>,
}

impl Bound {
    /// Whether both were bound by one queue pair, or neither belongs to one.
    fn is_by_same(&self, other: &Self) -> bool {
        match (&self.qp, &other.qp) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

/// How a window was before a binding that may not come to be.
pub(crate) struct Before {
    bound: Option<Bound>,
    rkey: u32,
}

// SAFETY: libibverbs allows its calls from any thread; the window is changed only through `&mut`.
unsafe impl Send for MemoryWindow {}
// SAFETY: through a shared window nothing is changed.
unsafe impl Sync for MemoryWindow {}

impl ProtectionDomain {
    /// `ibv_alloc_mw(pd, type)`—Allocates a memory window. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device has no windows of this type.
    /// - `ENOMEM`: out of memory, or of windows.
    ///
    /// # References
    /// [ibv_alloc_mw(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html)
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow> {
        let raw_type = match window_type {
            WindowType::Type1 => ffi::ibv_mw_type::IBV_MW_TYPE_1,
            WindowType::Type2 => ffi::ibv_mw_type::IBV_MW_TYPE_2,
        };
        // SAFETY: the domain is allocated for as long as `self` lives.
        let raw = unsafe { ffi::ibv_alloc_mw(self.as_raw(), raw_type) };
        let raw =
            cvt_ptr("ibv_alloc_mw", raw).map_err(|err| err.detail(format!("{window_type:?}")))?;
        Ok(MemoryWindow {
            raw,
            window_type,
            bound: None,
            earlier: Vec::new(),
            pd: self.clone(),
        })
    }
}

impl MemoryWindow {
    /// The type it was allocated with.
    pub fn window_type(&self) -> WindowType {
        self.window_type
    }

    /// The RKey of its last binding.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is allocated (invariant), and changed only through `&mut self`.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The domain it was allocated in.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for calls that this crate does not wrap. It exists for as long as `self`
    /// lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_mw {
        self.raw.as_ptr()
    }

    /// Whether a queue pair can bind the window.
    pub(crate) fn check_binder(
        &self,
        call: &'static str,
        qp: &Arc<dyn Any + Send + Sync>,
    ) -> Result<()> {
        let binders = || self.earlier.iter().chain(&self.bound);
        let is = |bound: &&Bound| {
            bound
                .qp
                .as_ref()
                .is_some_and(|other| Arc::ptr_eq(other, qp))
        };
        let last_is_new = |last: &Bound| !self.earlier.iter().any(|bound| bound.is_by_same(last));
        let others = self.earlier.len() + usize::from(self.bound.as_ref().is_some_and(last_is_new));
        if others < MAX_BINDERS || binders().any(|bound| is(&bound)) {
            return Ok(());
        }
        let reason = format!(
            "{MAX_BINDERS} other queue pairs have bound the window, which keeps them; drop it and \
             allocate another"
        );
        Err(Error::refused(call, io::ErrorKind::QuotaExceeded, reason))
    }

    /// Notes that a binding has been posted, and returns what was before.
    pub(crate) fn set_bound(
        &mut self,
        region: &RemoteRegion,
        rkey: u32,
        qp: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Before {
        if let Some(last) = &self.bound {
            self.earlier.retain(|bound| !bound.is_by_same(last));
            self.earlier.push(last.clone());
        }
        let region = region.clone();
        let bound = Some(Bound { region, qp });
        self.replace(Before { bound, rkey })
    }

    /// Notes that a binding was not posted after all.
    pub(crate) fn restore(&mut self, before: Before) {
        drop(self.replace(before));
    }

    fn replace(&mut self, by: Before) -> Before {
        let before = Before {
            bound: mem::replace(&mut self.bound, by.bound),
            rkey: self.rkey(),
        };
        // SAFETY: the window is allocated (invariant), and `&mut self` excludes every other access.
        unsafe { (*self.raw.as_ptr()).rkey = by.rkey };
        before
    }
}

impl fmt::Debug for MemoryWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("type", &self.window_type)
            .field("rkey", &self.rkey())
            .field("bound", &self.bound.as_ref().map(|bound| &bound.region))
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: the window is allocated and deallocated once, here; its domain is allocated,
        // since that is dropped after this. What is still bound ends with it. If this fails, so
        // does deregistering the region, which is then given up.
        let _: i32 = unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) };
    }
}
