//! Raw packets.

use std::io::IoSlice;

use ibverbs_sys as ffi;

use super::{
    Describe, Emit, ExtendedRequest, Inline, InlineList, Parts, SendRequest, common_options,
};
use crate::{
    qp::RawPacket,
    work::{Gather, SgeList},
};

/// `IBV_WR_SEND` on a raw packet queue pair—An Ethernet frame, from the destination address to the
/// end of the payload. The device adds the frame check sequence.
///
/// # References
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html)
#[doc(alias = "IBV_WR_SEND")]
#[derive(Clone, Debug)]
#[must_use = "post it"]
pub struct SendFrame<W> {
    work: W,
    flags: ffi::ibv_send_flags,
}

impl<W: Gather> SendFrame<W> {
    /// Sends the bytes of `work` unchanged. The first element has at least the 14 bytes of
    /// Ethernet's header, in memory of this process: device libraries read them.
    #[inline]
    pub fn new(work: W) -> Self {
        let flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED;
        Self { work, flags }
    }

    /// `IBV_SEND_IP_CSUM`—Lets the device fill in the checksums of IPv4, and of TCP or UDP inside;
    /// see [`RawPacketCaps::IP_CSUM`](crate::attr::RawPacketCaps::IP_CSUM).
    #[doc(alias = "IBV_SEND_IP_CSUM")]
    #[inline]
    pub fn ip_checksum(mut self) -> Self {
        self.flags |= ffi::ibv_send_flags::IBV_SEND_IP_CSUM;
        self
    }

    /// Sends `data` instead of the bytes of the work; see [`Send::inline`](super::Send::inline).
    #[inline]
    pub fn inline(self, data: &[u8]) -> Inline<'_, Self> {
        Inline::new(self, data)
    }

    /// Sends several pieces of data, one after the other, instead of the bytes of the work; see
    /// [`Send::inline`](super::Send::inline). Each counts as an element.
    #[inline]
    pub fn inline_list<'d>(self, data: &'d [IoSlice<'d>]) -> InlineList<'d, Self> {
        InlineList::new(self, data)
    }

    common_options!();
}

impl<W> Parts for SendFrame<W> {
    const LOOKED_AT: u32 = 14;

    #[inline]
    fn flags(&self) -> ffi::ibv_send_flags {
        self.flags
    }
}

impl<W: Gather> Describe for SendFrame<W> {
    #[inline]
    fn describe<E: Emit>(&self, to: &mut E) {
        to.send();
    }
}

impl<W: Gather> ExtendedRequest<RawPacket> for SendFrame<W> {
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

impl<W: Gather> SendRequest<RawPacket> for SendFrame<W> {}
