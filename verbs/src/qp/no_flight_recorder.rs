//! The recorder of a queue without the feature `flight-recorder`: records nothing, and occupies no memory.

use ibverbs_sys as ffi;

use crate::{cq::WorkCompletion, work::SgeList, wr_id::WrId};

/// Has the calls of the feature's recorder, without effect.
#[derive(Debug)]
pub(super) struct Recorder;

impl Recorder {
    #[inline(always)]
    pub(super) fn new(_limit: usize) -> Self {
        Self
    }

    /// 0: a length that is not recorded costs a register across the provider's call.
    #[inline(always)]
    pub(super) fn bytes(_sges: &SgeList) -> u64 {
        0
    }

    #[inline(always)]
    pub(super) fn posted<R>(&mut self, _id: WrId, _bytes: u64, _flags: ffi::ibv_send_flags) {}

    #[inline(always)]
    pub(super) fn received(&mut self, _id: WrId, _bytes: u64) {}

    #[inline(always)]
    pub(super) fn refused(&mut self, _first: WrId, _requests: usize, _errno: i32) {}

    #[inline(always)]
    pub(super) fn dropped(&mut self, _first: WrId, _requests: usize) {}

    #[inline(always)]
    pub(super) fn completed(&mut self, _wc: &WorkCompletion<'_>) {}
}
