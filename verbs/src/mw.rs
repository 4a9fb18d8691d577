//! Memory windows: access for peers, granted and revoked without a registration.
//!
//! A [`MemoryWindow`] is bound to a part of a [`RemoteRegion`] by
//! [`bind_window`](crate::QueuePair::bind_window), and loses its access according to its
//! [`WindowType`].
//!
//! # References
//! [ibv_alloc_mw(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html),
//! [ibv_bind_mw(3)](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html)

use std::{any::Any, fmt, io, mem, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    error::{Error, Result, cvt_ptr},
    mr::RemoteRegion,
    pd::ProtectionDomain,
};

/// The type of a memory window: the ways to bind and invalidate one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Each binding replaces the one before. A window cannot be unbound: deallocate the window.
    #[doc(alias = "IBV_MW_TYPE_1")]
    Type1,
    /// A binding belongs to the queue pair of its request. Invalidation ends a binding: local
    /// ([`LocalInvalidate`](crate::op::LocalInvalidate)) or by the peer
    /// ([`Send::invalidate`](crate::op::Send::invalidate)).
    #[doc(alias = "IBV_MW_TYPE_2")]
    Type2,
}

/// `ibv_mw`—A memory window: an RKey of its own for a part of a region, bound by a
/// [request](crate::qp::SendQueue::bind_window) instead of a call into the kernel.
///
/// A window keeps the region of its last binding, and of the one before, which may be in force
/// until the last one's request has succeeded. Memory of a still earlier binding, in force since the
/// later ones are queued or have failed, stays registered until the window is dropped. A window of
/// type 2 keeps every queue pair that has bound the window, with the last region of each, until the
/// window is dropped: at most 16; a binding by a further one is refused. Dropping the window revokes
/// its RKey.
///
/// Soft-RoCE of kernel 6.1 does not enforce the bounds of a window.
///
/// # References
/// [ibv_alloc_mw(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html)
#[doc(alias = "ibv_dealloc_mw")]
#[doc(alias = "ibv_mw")]
pub struct MemoryWindow {
    // INVARIANT: allocated, and deallocated only in `drop`.
    raw: NonNull<ffi::ibv_mw>,
    window_type: WindowType,
    /// Dropped after the window, as is `earlier`.
    bound: Option<Bound>,
    /// Bindings before the last one. One of them may still be in force on the device: a later
    /// binding that fails ends nothing. A binding replaced by two more, which are queued or have
    /// failed, may be in force as well: see `BoundRegions`.
    earlier: Vec<Bound>,
    pd: ProtectionDomain,
}

/// Maximum number of queue pairs that bind a window of type 2 in its life. The window keeps each:
/// the kernel does not destroy a queue pair before the windows bound by it, and no completion
/// reports the end of an earlier queue pair's binding. Programs bind a window by one queue pair, or
/// by a few in turn.
const MAX_BINDERS: usize = 16;

/// The target of a binding.
#[derive(Clone)]
struct Bound {
    region: RemoteRegion,
    /// The queue pair of the binding, for a window of type 2: the kernel does not destroy the queue
    /// pair before the window.
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

/// The state of a window before a binding that may still fail to be posted.
///
/// Drop it last: it may be the last owner of a region, and the drop of the region's memory may panic.
pub(crate) struct Before {
    bound: Option<Bound>,
    /// The earlier binding, of the same queue pair as `bound`, replaced by `bound`.
    earlier: Option<Bound>,
    rkey: u32,
}

// SAFETY: the window is changed only through `&mut`. Assumption: calls of libibverbs may be made
// from any thread, and several at once.
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
        self.context().check_process("ibv_alloc_mw")?;
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
    /// The type chosen at allocation.
    pub fn window_type(&self) -> WindowType {
        self.window_type
    }

    /// The RKey of the last binding.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is allocated (invariant), and changed only through `&mut self`.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// The protection domain of the allocation.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
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
        let earlier_binders =
            self.earlier.len() + usize::from(self.bound.as_ref().is_some_and(last_is_new));
        if earlier_binders < MAX_BINDERS || binders().any(|bound| is(&bound)) {
            return Ok(());
        }
        let reason = format!(
            "{MAX_BINDERS} other queue pairs have bound the window, which keeps them; drop it and \
             allocate another"
        );
        Err(Error::refused(call, io::ErrorKind::QuotaExceeded, reason))
    }

    /// Records a posted binding, and returns the state before.
    pub(crate) fn set_bound(
        &mut self,
        region: &RemoteRegion,
        rkey: u32,
        qp: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Before {
        let earlier = self.bound.clone().and_then(|last| self.set_earlier(last));
        let region = region.clone();
        let bound = Some(Bound { region, qp });
        let before = self.replace(bound, rkey);
        Before { earlier, ..before }
    }

    /// Keeps a binding as the earlier one of its queue pair, and returns the one before.
    fn set_earlier(&mut self, bound: Bound) -> Option<Bound> {
        match self.earlier.iter_mut().find(|it| it.is_by_same(&bound)) {
            Some(slot) => Some(mem::replace(slot, bound)),
            None => {
                self.earlier.push(bound);
                None
            }
        }
    }

    /// Reverts the record of a binding that was not posted after all.
    pub(crate) fn restore(&mut self, before: Before) {
        let Before {
            bound,
            earlier,
            rkey,
        } = before;
        let undone = self.replace(bound, rkey);
        let replaced = earlier.and_then(|earlier| self.set_earlier(earlier));
        drop((undone, replaced));
    }

    fn replace(&mut self, bound: Option<Bound>, rkey: u32) -> Before {
        let before = Before {
            bound: mem::replace(&mut self.bound, bound),
            earlier: None,
            rkey: self.rkey(),
        };
        // SAFETY: the window is allocated (invariant), and `&mut self` excludes every other access.
        unsafe { (*self.raw.as_ptr()).rkey = rkey };
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
        let _: i32 = self.pd.context().destroy(|| {
            // SAFETY: the window is allocated and deallocated once, here; the domain is allocated,
            // since its field is dropped later. A binding still in force ends with the window. If this
            // fails, deregistering the region fails too, and the region stays until the domain's end.
            unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) }
        });
        self.pd.bound_regions().end(self.pd.context());
    }
}
