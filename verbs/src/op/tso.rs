//! Segmentation of TCP by the device.

use ibverbs_sys as ffi;

use super::{
    DatagramWork, Describe, Emit, ExtendedRequest, Parts, Segments, SendRequest, common_options,
};
use crate::{
    bounded::QpNum,
    qp::Datagram,
    work::{Gather, SgeList},
};

/// `IBV_WR_TSO`—A stretch of a TCP stream, which the device cuts into segments and sends as one
/// datagram each, behind a copy of the same header.
///
/// The queue pair must have been made with
/// [`max_tso_header`](crate::QueuePairBuilder::max_tso_header). The work is that of
/// [`SendTo`](super::SendTo); the header is copied when the request is posted.
///
/// # References
/// [ibv_wr_send_tso(3)](https://man7.org/linux/man-pages/man3/ibv_wr_post.3.html)
#[doc(alias = "IBV_WR_TSO")]
#[doc(alias = "ibv_wr_send_tso")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct SendTso<'h, W> {
    work: W,
    remote_qp: QpNum,
    qkey: u32,
    header: &'h [u8],
    mss: u16,
    flags: ffi::ibv_send_flags,
}

impl<'h, W: DatagramWork> SendTso<'h, W> {
    /// Sends the bytes of `work`, `mss` at a time, each time behind the network headers in
    /// `header`, up to and including that of TCP.
    #[inline]
    pub fn new(work: W, remote_qp: QpNum, qkey: u32, header: &'h [u8], mss: u16) -> Self {
        Self {
            work,
            remote_qp,
            qkey,
            header,
            mss,
            flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED,
        }
    }

    /// `IBV_SEND_IP_CSUM`—Lets the device fill in the checksums of IP and TCP.
    #[doc(alias = "IBV_SEND_IP_CSUM")]
    #[inline]
    pub fn ip_csum(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_IP_CSUM;
        self
    }

    common_options!();
}

impl<W> Parts for SendTso<'_, W> {
    #[inline]
    fn flags(&self) -> ffi::ibv_send_flags {
        self.flags
    }

    #[inline]
    fn segments(&self) -> Option<Segments> {
        Some(Segments {
            header: self.header.len(),
            mss: self.mss,
        })
    }
}

impl<W: DatagramWork> Describe for SendTso<'_, W> {
    #[inline]
    fn describe<E: Emit>(&self, to: &mut E) {
        to.send_tso(self.header, self.mss);
        to.ud_addr(self.work.ah(), self.remote_qp, self.qkey);
    }
}

impl<T: Datagram, W: DatagramWork> ExtendedRequest<T> for SendTso<'_, W> {
    type Work = W;

    #[inline]
    fn gather(&self, list: &mut SgeList) {
        Gather::gather(&self.work, list);
    }

    #[inline]
    fn into_work(self) -> W {
        self.work
    }
}

impl<T: Datagram, W: DatagramWork> SendRequest<T> for SendTso<'_, W> {}
