//! The limits of segmentation.

use crate::{error::Error, op::Segments};

use super::refusal;

/// A queue pair's limits for segmentation; none, if made without.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TsoLimits {
    pub(super) max_header: u16,
    /// Maximum number of bytes of a request.
    pub(super) max_data: u32,
}

impl TsoLimits {
    /// Why a request cannot be segmented, if so.
    pub(super) fn refusal(
        self,
        call: &'static str,
        segments: Segments,
        bytes: u64,
    ) -> Option<Error> {
        let fits = segments.header <= usize::from(self.max_header)
            && bytes <= u64::from(self.max_data)
            && segments.mss > 0;
        (!fits).then(|| refusal::segments(call, segments, bytes, self))
    }
}
