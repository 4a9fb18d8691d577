//! Receives posted as one list.

use std::ptr;

use ibverbs_sys as ffi;

use crate::{bad_wr::BadWr, work::SgeList, wr_id::WrId};

/// Receives on their way to the device. The list grows on demand, and keeps the allocation.
#[derive(Default)]
pub(crate) struct RecvList {
    wrs: Vec<ffi::ibv_recv_wr>,
    sges: Vec<ffi::ibv_sge>,
}

// SAFETY: the pointers in the requests are null, or to the list's own elements, until rewritten by
// `chain`; only its caller follows them.
unsafe impl Send for RecvList {}
// SAFETY: nothing can be done with a shared one.
unsafe impl Sync for RecvList {}

impl RecvList {
    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.wrs.len()
    }

    #[inline]
    pub(crate) fn add(&mut self, id: WrId, sges: &SgeList) {
        self.wrs.push(ffi::ibv_recv_wr {
            wr_id: id.0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: sges.count(),
        });
        self.sges.extend_from_slice(sges.elements());
    }

    /// The identifier of a receive.
    pub(crate) fn id(&self, index: usize) -> Option<WrId> {
        self.wrs.get(index).map(|wr| WrId(wr.wr_id))
    }

    /// Links the receives to a list, and returns the first. Nothing may be added while the list is
    /// in use.
    pub(crate) fn chain(&mut self) -> Option<*mut ffi::ibv_recv_wr> {
        let mut end = self.sges.len();
        let sges = self.sges.as_mut_ptr();
        let mut next = ptr::null_mut();
        for wr in self.wrs.iter_mut().rev() {
            // Each has `num_sge` elements, one after the other.
            end -= usize::try_from(wr.num_sge).unwrap_or(0);
            // In bounds, or one past the end where a receive has no elements.
            wr.sg_list = sges.wrapping_add(end);
            wr.next = next;
            next = wr;
        }
        (!next.is_null()).then_some(next)
    }

    /// The number of receives counted as posted, after a post failed with `errno`.
    pub(crate) fn posted(&self, errno: i32, bad: &BadWr<ffi::ibv_recv_wr>) -> usize {
        bad.first_of(errno, self.wrs.len(), |index| &raw const self.wrs[index])
    }
}
