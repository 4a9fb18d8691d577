//! Receives posted as one list.

use std::ptr;

use ibverbs_sys as ffi;

use crate::{
    bad_wr::{BadWr, Effect, QueueKind},
    quirk::FailedPosts,
    work::{NO_MEMORY, SgeList},
    wr_id::WrId,
};

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
        match sges.elements() {
            // See `SgeList::as_mut_ptr`.
            [] => self.sges.push(NO_MEMORY),
            elements => self.sges.extend_from_slice(elements),
        }
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
            // Each has `num_sge` elements, or one that does not count, one after the other.
            end -= usize::try_from(wr.num_sge).unwrap_or(0).max(1);
            wr.sg_list = sges.wrapping_add(end);
            wr.next = next;
            next = wr;
        }
        (!next.is_null()).then_some(next)
    }

    /// The effect of a failed post of the list.
    pub(crate) fn effect(
        &self,
        proven: FailedPosts,
        queue: QueueKind,
        bad: &BadWr<ffi::ibv_recv_wr>,
    ) -> Effect {
        bad.effect_on(proven, queue, self.wrs.len(), |index| {
            &raw const self.wrs[index]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wr_id::{QpId, QueueId};

    /// Some providers read the first element without looking at the number.
    #[test]
    fn listed_receive_without_elements_points_to_no_memory() {
        let queue = QueueId::receive(QpId::next());
        let mut list = RecvList::default();
        for sequence in 0..3 {
            list.add(queue.wr_id(sequence), &SgeList::of(&()));
        }
        let mut next = list.chain().unwrap();
        for _ in 0..3 {
            // SAFETY: a receive of the list.
            let wr = unsafe { *next };
            // SAFETY: there is always one element.
            let element = unsafe { *wr.sg_list };
            assert_eq!((element.addr, element.length, element.lkey), (0, 0, 0));
            assert_eq!(wr.num_sge, 0);
            next = wr.next;
        }
        assert!(next.is_null());
    }
}
