//! Requests with inline data.

use std::{io::IoSlice, ptr::NonNull};

use ibverbs_sys as ffi;

use super::{Describe, Emit, ExtendedRequest, Parts, SendRequest};
use crate::{
    ah::AddressHandle,
    op,
    qp::Transport,
    work::{Sge, SgeList},
};

mod sealed {
    pub trait SealedInline {}
}

/// A request with support for inline data.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot have inline data",
    label = "no request with inline data",
    note = "sends and writes can"
)]
pub trait CanInline: sealed::SealedInline {}

macro_rules! can_inline {
    ($($name:ident)*) => {$(
        impl<W> sealed::SealedInline for op::$name<W> {}
        impl<W> CanInline for op::$name<W> {}
    )*};
}

can_inline!(Send SendFrame SendTo Write);

/// `IBV_SEND_INLINE`—A request with data copied at the time of posting, in place of the work's
/// bytes.
///
/// The limit is [`max_inline_data`](crate::qp::QueuePairBuilder::max_inline_data) of the queue
/// pair, in bytes.
///
/// ```
/// # let (_peer, mut qp, _cq) = doctest::connected_for::<(), verbs::Buf>();
/// use verbs::op;
/// qp.post(op::Send::new(()).inline(b"short"))?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_wr_set_inline_data")]
#[doc(alias = "IBV_SEND_INLINE")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct Inline<'d, R> {
    request: R,
    data: &'d [u8],
}

impl<'d, R: CanInline> Inline<'d, R> {
    #[inline]
    pub(super) fn new(request: R, data: &'d [u8]) -> Self {
        Self { request, data }
    }

    /// The request, unposted.
    pub fn into_request(self) -> R {
        self.request
    }

    /// The request without its data.
    pub fn request(&self) -> &R {
        &self.request
    }
}

/// `IBV_SEND_INLINE`—A request with several pieces of data copied at the time of posting; see
/// [`Inline`].
///
/// ```
/// # let (_peer, mut qp, _cq) = doctest::connected_for::<(), verbs::Buf>();
/// # let body = b"body";
/// use std::io::IoSlice;
/// use verbs::op;
/// let parts = [IoSlice::new(b"header"), IoSlice::new(body)];
/// qp.post(op::Send::new(()).inline_list(&parts))?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "ibv_wr_set_inline_data_list")]
#[doc(alias = "IBV_SEND_INLINE")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct InlineList<'d, R> {
    request: R,
    data: &'d [IoSlice<'d>],
}

impl<'d, R: CanInline> InlineList<'d, R> {
    #[inline]
    pub(super) fn new(request: R, data: &'d [IoSlice<'d>]) -> Self {
        Self { request, data }
    }

    /// The request, unposted.
    pub fn into_request(self) -> R {
        self.request
    }

    /// The request without its data.
    pub fn request(&self) -> &R {
        &self.request
    }
}

/// Adds data for copying at the time of posting.
#[inline]
fn push(list: &mut SgeList, data: &[u8]) {
    // Longer data are refused by their length; see `Sending::refusal`.
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    // SAFETY: the device never accesses this range. Assumption: the provider copies inline data
    // before a post returns, and ignores the LKey. `data` is borrowed until then. Data of 4 GiB or
    // more are never posted.
    list.push(unsafe { Sge::new(NonNull::from(data).cast(), len, 0) });
}

macro_rules! inline {
    ($name:ident, |$this:ident, $list:ident| $gather:expr) => {
        impl<R: Parts> Parts for $name<'_, R> {
            const INLINE: bool = true;
            const LOOKED_AT: u32 = R::LOOKED_AT;

            #[inline]
            fn remote_len(&self) -> u64 {
                self.request.remote_len()
            }

            #[inline]
            fn flags(&self) -> ffi::ibv_send_flags {
                self.request.flags() | ffi::ibv_send_flags::IBV_SEND_INLINE
            }

            #[inline]
            fn address(&self) -> Option<&AddressHandle> {
                self.request.address()
            }
        }

        impl<R: Describe> Describe for $name<'_, R> {
            #[inline]
            fn describe<E: Emit>(&self, to: &mut E) {
                self.request.describe(to);
            }
        }

        impl<T, R> ExtendedRequest<T> for $name<'_, R>
        where
            T: Transport,
            R: SendRequest<T> + CanInline,
        {
            type Work = R::Work;

            #[inline]
            fn gather(&self, $list: &mut SgeList) {
                let $this = self;
                $gather
            }

            #[inline]
            fn into_work(self) -> R::Work {
                self.request.into_work()
            }
        }

        impl<T, R> SendRequest<T> for $name<'_, R>
        where
            T: Transport,
            R: SendRequest<T> + CanInline,
        {
        }
    };
}

inline!(Inline, |this, list| push(list, this.data));
inline!(InlineList, |this, list| this
    .data
    .iter()
    .for_each(|data| push(list, data)));
