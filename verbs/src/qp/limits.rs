//! The limits for requests of a send queue, and the refusals of requests beyond them.

use std::num::NonZero;

use super::{queues::POST_SEND, refusal, transport::Transport, tso::TsoLimits};
use crate::{
    context::ContextId,
    error::{Error, Refused},
    op::{Parts as Described, SendRequest},
    work::SgeList,
};

/// The limits for requests of a send queue.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) max_sge: NonZero<u32>,
    pub(super) device: ContextId,
    pub(super) max_inline: u32,
    pub(super) tso: TsoLimits,
    /// Maximum number of reads and atomics in flight; `u8::MAX` before the transition to RTS, and on iWARP, where the
    /// kernel makes the transition.
    pub(super) max_rd_atomic: u8,
}

impl Limits {
    /// The refusal of a request on a full queue, with a more lasting reason if there is one.
    #[cold]
    #[inline(never)]
    pub(super) fn refused<T: Transport, R: SendRequest<T>>(&self, request: R) -> Refused<R> {
        let mut sges = SgeList::new();
        request.gather(&mut sges);
        sges.omit_empty();
        let error = self.refusal(POST_SEND, &sges, &request);
        let error = error.unwrap_or_else(|| refusal::full(POST_SEND));
        Refused {
            value: request,
            error,
        }
    }

    /// Why a request with these elements can never be posted, if so.
    #[inline]
    pub(super) fn refusal<R: Described>(
        &self,
        call: &'static str,
        sges: &SgeList,
        request: &R,
    ) -> Option<Error> {
        let max_sge = self.max_sge.get();
        let of_another = || {
            sges.special()
                .is_some_and(|it| it.device != Some(self.device))
        };
        let to_another = || {
            let ah = request.address();
            ah.is_some_and(|ah| ah.pd().context().id() != self.device)
        };
        if R::READS && self.max_rd_atomic == 0 {
            Some(refusal::no_reads(call))
        } else if sges.len() > max_sge as usize {
            Some(refusal::elements(call, sges.len(), max_sge))
        } else if let Some(limit) = request.max_sge()
            && sges.len() > limit as usize
        {
            Some(refusal::elements_of_operation(call, sges.len(), limit))
        } else if R::INLINE && sges.bytes() > u64::from(self.max_inline) {
            Some(refusal::inline(call, sges.bytes(), self.max_inline))
        } else if let Some(bytes) = request.exactly()
            && (sges.len() != 1 || sges.bytes() != u64::from(bytes))
        {
            Some(refusal::not_exactly(call, sges.len(), sges.bytes(), bytes))
        } else if let Some(error) = sges.too_long(call) {
            Some(error)
        } else if R::REMOTE_BYTES.unwrap_or_else(|| sges.bytes()) > request.remote_len() {
            let bytes = R::REMOTE_BYTES.unwrap_or_else(|| sges.bytes());
            Some(refusal::beyond_token(call, bytes, request.remote_len()))
        } else if R::LOOKED_AT > 0 && !can_be_looked_at(sges, R::LOOKED_AT) {
            Some(refusal::not_looked_at(call, R::LOOKED_AT))
        } else if of_another() || to_another() {
            Some(refusal::of_another_device(call))
        } else {
            let segments = request.segments()?;
            self.tso.refusal(call, segments, sges.bytes())
        }
    }
}

/// Whether the first element has at least `bytes` bytes, and all elements are memory of this
/// process.
fn can_be_looked_at(sges: &SgeList, bytes: u32) -> bool {
    let first = sges.elements().first();
    sges.special().is_none() && first.is_some_and(|sge| sge.length >= bytes)
}
