//! Segmentation of TCP by the device.

use ibverbs_sys as ffi;

use super::{
    DatagramWork, Describe, Emit, ExtendedRequest, Parts, Segments, SendRequest, common_options,
};
use crate::{
    ah::AddressHandle,
    bounded::QpNum,
    qp::{Datagram, RawPacket},
    work::{Gather, SgeList},
};

/// `IBV_WR_TSO`—A part of a TCP stream, cut into segments by the device and sent as one datagram
/// each, behind a copy of the same header.
///
/// The queue pair must have been made with
/// [`max_tso_header`](crate::qp::QueuePairBuilder::max_tso_header). The work is as for
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
    /// `header`, up to and including the TCP header.
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

impl<W: DatagramWork> Parts for SendTso<'_, W> {
    #[inline]
    fn address(&self) -> Option<&AddressHandle> {
        Some(self.work.ah())
    }

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

/// `IBV_WR_TSO` on a raw packet queue pair—A part of a TCP stream, cut into segments by the
/// device and sent as one Ethernet frame each, behind a copy of the same headers. The device
/// updates lengths, identifiers and sequence numbers in each copy.
///
/// The queue pair must have been made with
/// [`max_tso_header`](crate::qp::QueuePairBuilder::max_tso_header). The headers are copied when the
/// request is posted.
///
/// # Examples
/// ```no_run
/// # fn f(
/// #     qp: &mut verbs::QueuePair<verbs::qp::RawPacket, verbs::Rts>,
/// #     stretch: verbs::Buf,
/// # ) -> verbs::Result<()> {
/// use verbs::op;
/// let headers = [0; 54]; // Ethernet, IPv4 and TCP
/// qp.post(op::SendFrameTso::new(stretch, &headers, 1460).ip_checksum())?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "IBV_WR_TSO")]
#[doc(alias = "ibv_wr_send_tso")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct SendFrameTso<'h, W> {
    work: W,
    header: &'h [u8],
    mss: u16,
    flags: ffi::ibv_send_flags,
}

impl<'h, W: Gather> SendFrameTso<'h, W> {
    /// Sends the bytes of `work`, `mss` at a time, each time behind the headers in `header`: from
    /// the Ethernet destination address, up to and including the TCP header.
    #[inline]
    pub fn new(work: W, header: &'h [u8], mss: u16) -> Self {
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        Self {
            work,
            header,
            mss,
            flags,
        }
    }

    /// `IBV_SEND_IP_CSUM`—Lets the device fill in the checksums of IPv4 and TCP; see
    /// [`RawPacketCaps::IP_CSUM`](crate::attr::RawPacketCaps::IP_CSUM).
    #[doc(alias = "IBV_SEND_IP_CSUM")]
    #[inline]
    pub fn ip_checksum(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_IP_CSUM;
        self
    }

    common_options!();
}

impl<W> Parts for SendFrameTso<'_, W> {
    const LOOKED_AT: u32 = 6;

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

impl<W: Gather> Describe for SendFrameTso<'_, W> {
    #[inline]
    fn describe<E: Emit>(&self, to: &mut E) {
        to.send_tso(self.header, self.mss);
    }
}

impl<W: Gather> ExtendedRequest<RawPacket> for SendFrameTso<'_, W> {
    type Work = W;

    #[inline]
    fn gather(&self, list: &mut SgeList) {
        self.work.gather(list);
    }

    #[inline]
    fn into_work(self) -> W {
        self.work
    }
}

impl<W: Gather> SendRequest<RawPacket> for SendFrameTso<'_, W> {}
