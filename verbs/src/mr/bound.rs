//! Memory whose owners are gone, and to which a memory window is still bound.

use std::{
    mem::{self, ManuallyDrop},
    ptr::NonNull,
    sync::{Mutex, MutexGuard, PoisonError},
};

use ibverbs_sys as ffi;

use super::{dmah::DmaHandle, memory::Memory};
use crate::context::Context;

/// Registrations of a protection domain that the device has not ended, since a window was bound to
/// the memory.
///
/// A window keeps the memory of its last bindings. But several bindings may be queued, or fail:
/// then an earlier binding is in force. The registration ends at the drop of the window, or of the
/// domain.
#[derive(Default)]
pub(crate) struct BoundRegions(Mutex<Vec<BoundRegion>>);

/// A registration without an owner.
pub(super) struct BoundRegion {
    // INVARIANT: registered, and named by nothing but bindings of windows.
    raw: NonNull<ffi::ibv_mr>,
    /// Dropped after the registration has ended, or never, as is `dmah`.
    memory: ManuallyDrop<Box<dyn Memory>>,
    dmah: ManuallyDrop<Option<DmaHandle>>,
}

// SAFETY: a registration belongs to no thread, and memory may be dropped by any. Assumption: calls
// of libibverbs may be made from any thread, and several at once.
unsafe impl Send for BoundRegion {}

impl BoundRegions {
    /// Keeps a registration that could not be ended.
    pub(super) fn keep(&self, region: BoundRegion, ctx: &Context) {
        // Bounds the number of registrations to that of the windows.
        self.end(ctx);
        self.lock().push(region);
    }

    /// Ends the registrations without windows. Called after a window has lost its binding, and
    /// before the domain is freed.
    pub(crate) fn end(&self, ctx: &Context) {
        let regions = mem::take(&mut *self.lock());
        // Not locked: dropping memory runs code of the program.
        for region in regions {
            if let Err(region) = region.end(ctx) {
                self.lock().push(region);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<BoundRegion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BoundRegion {
    /// # Safety
    /// - The registration exists, without another user. The range of `memory` is registered.
    pub(super) unsafe fn new(
        raw: NonNull<ffi::ibv_mr>,
        memory: ManuallyDrop<Box<dyn Memory>>,
        dmah: Option<DmaHandle>,
    ) -> Self {
        let dmah = ManuallyDrop::new(dmah);
        Self { raw, memory, dmah }
    }

    /// Ends the registration, and drops the memory, if the device has certainly lost its access.
    fn end(self, ctx: &Context) -> Result<(), Self> {
        let errno = ctx.destroy(|| {
            // SAFETY: registered (invariant), and owned by `self`; the domain is allocated, since its
            // owner or a window of the domain calls this. An earlier attempt may have failed.
            // Assumption: a failed deregistration leaves the registration as it was.
            unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) }
        });
        if errno != 0 && !ctx.is_removed(errno) {
            return Err(self);
        }
        drop(ManuallyDrop::into_inner(self.memory));
        drop(ManuallyDrop::into_inner(self.dmah));
        Ok(())
    }
}
