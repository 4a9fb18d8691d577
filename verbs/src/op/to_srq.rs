//! Requests of extended reliable connections.

use ibverbs_sys as ffi;

use super::{Describe, Emit, ExtendedRequest, Parts, SendRequest};
use crate::{
    bounded::SrqNum,
    qp::{self, XrcSend},
    work::SgeList,
};

/// `ibv_send_wr.qp_type.xrc`—A request of a reliable connection, for an extended one: with the
/// number of the peer's shared receive queue.
///
/// RDMA and atomics also need the number, but consume no receive.
///
/// ```no_run
/// # use verbs::{Buf, QueuePair, Rts, qp::XrcSend, srq::SrqNum};
/// # fn f(qp: &mut QueuePair<XrcSend, Rts>, buf: Buf, srq: SrqNum) -> verbs::Result<()> {
/// use verbs::op;
/// qp.post(op::ToSrq::new(op::Send::new(buf).solicited(), srq))?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "ibv_wr_set_xrc_srqn")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct ToSrq<R> {
    request: R,
    srq: SrqNum,
}

impl<R: SendRequest<qp::Rc>> ToSrq<R> {
    /// The request, for the peer's shared receive queue `srq`.
    #[inline]
    pub fn new(request: R, srq: SrqNum) -> Self {
        Self { request, srq }
    }

    /// The request, unposted.
    pub fn into_request(self) -> R {
        self.request
    }

    /// The request without its SRQ.
    pub fn request(&self) -> &R {
        &self.request
    }

    /// The SRQ of the peer.
    pub fn srq(&self) -> SrqNum {
        self.srq
    }
}

impl<R: Parts> Parts for ToSrq<R> {
    const INLINE: bool = R::INLINE;
    const DATA: bool = R::DATA;
    const READS: bool = R::READS;

    #[inline]
    fn exactly(&self) -> Option<u32> {
        self.request.exactly()
    }

    #[inline]
    fn remote_len(&self) -> u64 {
        self.request.remote_len()
    }

    #[inline]
    fn flags(&self) -> ffi::ibv_send_flags {
        self.request.flags()
    }
}

impl<R: Describe> Describe for ToSrq<R> {
    #[inline]
    fn describe<E: Emit>(&self, to: &mut E) {
        self.request.describe(to);
        to.xrc_srq(self.srq);
    }
}

impl<R: SendRequest<qp::Rc>> ExtendedRequest<XrcSend> for ToSrq<R> {
    type Work = R::Work;

    #[inline]
    fn gather(&self, list: &mut SgeList) {
        self.request.gather(list);
    }

    #[inline]
    fn into_work(self) -> R::Work {
        self.request.into_work()
    }
}

impl<R: SendRequest<qp::Rc>> SendRequest<XrcSend> for ToSrq<R> {}
