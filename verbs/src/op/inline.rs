//! Requests that carry their bytes with them.

use std::ptr::NonNull;

use ibverbs_sys as ffi;

use super::{Describe, Send, SendRequest, SendTo, SendWr, Write};
use crate::{
    qp::Transport,
    work::{Sge, SgeList},
};

mod sealed {
    pub trait Sealed {}
}

/// A request whose bytes can be copied when it is posted.
pub trait CanInline: sealed::Sealed {}

macro_rules! can_inline {
    ($($name:ident)*) => {$(
        impl<W> sealed::Sealed for $name<W> {}
        impl<W> CanInline for $name<W> {}
    )*};
}

can_inline!(Send SendTo Write);

/// `IBV_SEND_INLINE`—A request that sends bytes which are copied when it is posted, instead of
/// those of its work.
///
/// They can be as many as the queue pair was made for
/// ([`max_inline_data`](crate::QueuePairBuilder::max_inline_data)).
///
/// ```no_run
/// # fn f(qp: &mut verbs::QueuePair<verbs::Rc, verbs::Rts, ()>) -> verbs::Result<()> {
/// use verbs::op::Send;
/// qp.post(Send::new(()).inline(b"short"))?;
/// # Ok(())
/// # }
/// ```
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
}

impl<R: Describe> Describe for Inline<'_, R> {
    const INLINE: bool = true;

    #[inline]
    fn flags(&self) -> ffi::ibv_send_flags {
        self.request.flags() | ffi::ibv_send_flags::IBV_SEND_INLINE
    }

    #[inline]
    fn describe(&self, wr: &mut SendWr) {
        self.request.describe(wr);
    }
}

impl<T: Transport, R: SendRequest<T> + CanInline> SendRequest<T> for Inline<'_, R> {
    type Work = R::Work;

    #[inline]
    fn gather(&self, list: &mut SgeList) {
        // Longer than that is refused for its length; see `Sending::check`.
        let len = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        // SAFETY: the device never sees this range: the provider copies it before the post returns,
        // while `data` is borrowed. It looks at no LKey for that. Data of 4 GiB or more are never
        // posted.
        list.push(unsafe { Sge::new(NonNull::from(self.data).cast(), len, 0) });
    }

    #[inline]
    fn into_work(self) -> R::Work {
        self.request.into_work()
    }
}
