//! The effect of a failed post: which requests the device does not have.
//!
//! The default is doubt: the device may have every request of a failed post, and the queue keeps
//! their work. A request is returned where the [provider's source](FailedPosts) shows that a request
//! named by `bad_wr`, and those behind it, are not posted.
//!
//! Some providers notify the device by a call into the kernel: they write the requests to shared
//! memory, and then ring the doorbell. If only the doorbell fails, the providers of Soft-RoCE and
//! Soft-iWARP return its error and name no request (null): the kernel carries the requests out
//! with the next doorbell. `ASSUMPTIONS.md` has the sources.

use std::ptr;

use crate::{
    context::Context,
    error::{Error, PostError},
    quirk::{FailedPosts, Named},
    work::{Gather, SgeList},
};

/// `bad_wr`—The out parameter for a provider to name the first unposted request.
#[derive(Debug)]
pub(crate) struct BadWr<W>(*mut W);

/// The requests of a failed post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The requests before this index are posted, the others are not.
    Posted(usize),
    /// The device may have any of them.
    Unknown,
}

/// The queue of a failed post.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueueKind {
    Send,
    Receive,
    /// Receives shared by queue pairs.
    SharedReceive,
    /// Packets of an indirection table.
    Work,
}

impl QueueKind {
    /// The remedy after an unknown effect.
    fn hint(self) -> &'static str {
        match self {
            Self::Send | Self::Receive => {
                "the device may have the request, whose memory stays with the queue until a completion; \
                 reset or destroy the queue pair to get the memory back"
            }
            Self::SharedReceive => {
                "the device may have the receive, whose memory stays with the queue until a completion; \
                 destroy the queue, and the queue pairs on it, to free the memory"
            }
            Self::Work => {
                "the device may have the receive, whose memory stays with the queue until a completion; \
                 reset the queue to get the memory back"
            }
        }
    }
}

/// The error of a post that failed with `errno`, with this effect. Some providers negate the number.
#[cold]
#[inline(never)]
pub(crate) fn failure(call: &'static str, errno: i32, effect: Effect, queue: QueueKind) -> Error {
    let error = Error::from_errno(call, errno.saturating_abs());
    match effect {
        Effect::Posted(_) => error,
        Effect::Unknown => error.hint(queue.hint()),
    }
}

/// Adds the reason to the error of a failed receive, if the receive has no element: the library of Soft-iWARP refuses such
/// receives.
#[cold]
#[inline(never)]
pub(crate) fn explain_receive(error: Error, work: &impl Gather) -> Error {
    let is_empty = SgeList::of(work).len() == 0;
    match error.raw_os_error() {
        Some(libc::EINVAL) if is_empty => error.hint(
            "the receive has no memory, and Soft-iWARP needs an element in each; post a buffer of one byte instead",
        ),
        _ => error,
    }
}

/// The result of a post whose work belongs to the queue now.
#[inline(always)]
pub(crate) fn result_of_posted<R>(
    call: &'static str,
    errno: i32,
    effect: Effect,
    queue: QueueKind,
) -> Result<(), PostError<R>> {
    match effect {
        Effect::Posted(_) => Ok(()),
        Effect::Unknown => Err(PostError {
            value: None,
            error: failure(call, errno, effect, queue),
        }),
    }
}

/// The refused request of a batch, for an error.
pub(crate) fn of_batch(kind: &str, refused: usize, count: usize) -> String {
    if refused < count {
        format!("{kind} {refused} of {count}, counting from 0")
    } else {
        format!("{count} {kind}s, none of them named as refused")
    }
}

impl<W> BadWr<W> {
    /// The value before the call. Not null, since a provider may store null.
    const UNTOUCHED: *mut W = ptr::without_provenance_mut(1);

    #[inline]
    pub(crate) fn new() -> Self {
        Self(Self::UNTOUCHED)
    }

    /// The place, for C to write to.
    #[inline]
    pub(crate) fn as_out(&mut self) -> *mut *mut W {
        &raw mut self.0
    }

    /// Whether the provider has named a request. Some do so and return success.
    #[inline]
    pub(crate) fn is_named(&self) -> bool {
        !self.is_null() && !ptr::eq(self.0, Self::UNTOUCHED)
    }

    /// Whether the provider has stored null, and so named no request.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The effect of a failed post of one request, by the provider of `ctx`.
    #[cold]
    #[inline(never)]
    pub(crate) fn effect(&self, ctx: &Context, queue: QueueKind, request: *const W) -> Effect {
        self.effect_on(FailedPosts::of(ctx), queue, 1, |_| request)
    }

    /// The effect of a failed post of `count` requests.
    pub(crate) fn effect_on(
        &self,
        proven: FailedPosts,
        queue: QueueKind,
        count: usize,
        request: impl Fn(usize) -> *const W,
    ) -> Effect {
        if self.is_null() && proven.null_is_posted {
            return Effect::Posted(count);
        }
        let named = match queue {
            QueueKind::Send => proven.named_send,
            _ => proven.named_receive,
        };
        let index = (0..count).find(|&index| ptr::eq(request(index), self.0));
        match (named, index) {
            (Named::Unposted, Some(index)) => Effect::Posted(index),
            (Named::UnpostedUnlessSecond, Some(index)) if index != 1 => Effect::Posted(index),
            _ => Effect::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: [QueueKind; 4] = [
        QueueKind::Send,
        QueueKind::Receive,
        QueueKind::SharedReceive,
        QueueKind::Work,
    ];

    const PROVEN: FailedPosts = FailedPosts {
        named_send: Named::Unposted,
        named_receive: Named::Unposted,
        ..FailedPosts::UNKNOWN
    };

    /// The effect of a failed post of three requests, for a `bad_wr` made from the requests.
    fn effect(
        proven: FailedPosts,
        queue: QueueKind,
        bad: impl Fn(&dyn Fn(usize) -> *const u8) -> *mut u8,
    ) -> Effect {
        let requests = [0_u8; 3];
        let request = |index: usize| &raw const requests[index];
        BadWr(bad(&request)).effect_on(proven, queue, 3, request)
    }

    #[test]
    fn named_request_is_returned_only_by_a_proven_provider() {
        for queue in QUEUES {
            for index in 0..3 {
                let named = |proven| effect(proven, queue, |request| request(index).cast_mut());
                assert_eq!(named(PROVEN), Effect::Posted(index));
                assert_eq!(named(FailedPosts::UNKNOWN), Effect::Unknown);
            }
        }
    }

    /// A `bad_wr` that names no request of the post.
    #[test]
    fn failed_post_without_bad_wr_returns_no_request() {
        let flushed = FailedPosts {
            null_is_posted: true,
            ..PROVEN
        };
        for queue in QUEUES {
            for proven in [PROVEN, FailedPosts::UNKNOWN, flushed] {
                let untouched = effect(proven, queue, |_| BadWr::UNTOUCHED);
                assert_eq!(untouched, Effect::Unknown);
                let beyond = effect(proven, queue, |request| {
                    request(0).cast_mut().wrapping_add(9)
                });
                assert_eq!(beyond, Effect::Unknown);
            }
            let null = |proven| effect(proven, queue, |_| ptr::null_mut());
            assert_eq!(null(PROVEN), Effect::Unknown);
            assert_eq!(null(flushed), Effect::Posted(3));
        }
    }

    #[test]
    fn proof_is_of_one_direction() {
        let of_receives = FailedPosts {
            named_receive: Named::Unposted,
            ..FailedPosts::UNKNOWN
        };
        let first = |queue| effect(of_receives, queue, |request| request(0).cast_mut());
        assert_eq!(first(QueueKind::Send), Effect::Unknown);
        assert_eq!(first(QueueKind::Receive), Effect::Posted(0));
    }

    #[test]
    fn second_request_of_a_copied_descriptor_is_kept() {
        let copied = FailedPosts {
            named_send: Named::UnpostedUnlessSecond,
            ..FailedPosts::UNKNOWN
        };
        let named = |index| effect(copied, QueueKind::Send, |request| request(index).cast_mut());
        assert_eq!(named(0), Effect::Posted(0));
        assert_eq!(named(1), Effect::Unknown);
        assert_eq!(named(2), Effect::Posted(2));
    }
}
