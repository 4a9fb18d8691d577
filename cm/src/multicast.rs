//! Multicast groups.

use std::fmt;

use rdmacm_sys::{
    self as ffi, rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags,
};
use verbs::{
    QueuePair, Result, Ud,
    ah::AddressVector,
    error::cvt_neg,
    qp::{QpNum, State},
};

use crate::{
    addr::{Addr, RawAddr},
    datagram::DatagramPeer,
    id::CmId,
    phases::IdPhase,
};

/// Direction of a membership in a multicast group.
#[doc(alias = "rdma_cm_mc_join_flags")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Membership {
    /// Sending and receiving.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_FULLMEMBER")]
    #[default]
    Full,
    /// Sending only.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER")]
    SendOnly,
}

/// A multicast group joined by an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MulticastGroup {
    /// Address of the group, as given when joining.
    pub addr: Addr,
    /// Route to all members.
    pub vector: AddressVector,
    /// Queue pair number reserved for the group.
    pub qp_num: QpNum,
    /// Q_Key of the group's datagrams.
    pub qkey: u32,
}

impl MulticastGroup {
    pub(crate) fn new(addr: Addr, event: &DatagramPeer) -> Self {
        Self {
            addr,
            vector: event.vector,
            qp_num: event.qp_num,
            qkey: event.qkey,
        }
    }

    /// `ibv_attach_mcast`—Attaches `qp` to the group, for receiving.
    ///
    /// # Errors
    /// The errors of [`attach_multicast`](QueuePair::attach_multicast).
    pub fn attach<S: State, SW, RW>(&self, qp: &mut QueuePair<Ud, S, SW, RW>) -> Result<()> {
        let gid = self.vector.grh.map(|grh| grh.dgid).unwrap_or_default();
        qp.attach_multicast(gid, self.vector.dlid)
    }

    /// `ibv_detach_mcast`—Detaches `qp` from the group.
    ///
    /// # Errors
    /// The errors of [`detach_multicast`](QueuePair::detach_multicast).
    pub fn detach<S: State, SW, RW>(&self, qp: &mut QueuePair<Ud, S, SW, RW>) -> Result<()> {
        let gid = self.vector.grh.map(|grh| grh.dgid).unwrap_or_default();
        qp.detach_multicast(gid, self.vector.dlid)
    }
}

impl fmt::Display for MulticastGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.addr {
            Addr::Ip(addr) => addr.ip().fmt(f),
            Addr::Ib(addr) => addr.gid.fmt(f),
        }
    }
}

impl<P: IdPhase> CmId<P> {
    /// `rdma_join_multicast_ex`—Joins a multicast group, on the port of this identifier. The result is
    /// [`Event::MulticastJoined`](crate::Event::MulticastJoined) or
    /// [`Event::MulticastFailed`](crate::Event::MulticastFailed).
    ///
    /// The identifier must be for datagrams, and bound to the address of a device, or have resolved the
    /// address of the group or of any peer. An identifier can join any number of groups; drop leaves all of
    /// them.
    ///
    /// An IP address is mapped to a group of the device; an [InfiniBand address](crate::IbAddr) is the group
    /// itself.
    ///
    /// # Errors
    /// - `EINVAL`: an identifier for connections, without a device, or already connected to a peer.
    /// - `EADDRNOTAVAIL`, `EINVAL`: `group` is not a multicast address.
    /// - `ENOTSUPP` (524): a group of IPv6 or of InfiniBand, on RoCE v2.
    ///
    /// # References
    /// [rdma_join_multicast_ex(3)](https://man7.org/linux/man-pages/man3/rdma_join_multicast_ex.3.html)
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&mut self, group: impl Into<Addr>, membership: Membership) -> Result<()> {
        const CALL: &str = "rdma_join_multicast_ex";
        let group = group.into();
        let mut addr = RawAddr::new(group);
        let mask = rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS
            | rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let flags = match membership {
            Membership::Full => rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_FULLMEMBER,
            Membership::SendOnly => rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
        };
        let mut attr = rdma_cm_join_mc_attr_ex::zeroed();
        attr.comp_mask = mask.0;
        attr.join_flags = flags.0;
        attr.addr = addr.as_mut_ptr();
        let (key, channel) = (self.key(), self.raw().channel());
        let name = channel.registry().add_group(key, group);
        // SAFETY: the identifier exists for as long as `self` lives; the attributes and the address outlive
        // the call. Assumption: librdmacm copies its arguments before a call returns. The context is a
        // number returned with events, as a pointer never dereferenced.
        let ret =
            unsafe { ffi::rdma_join_multicast_ex(self.as_raw(), &raw mut attr, name.to_context()) };
        cvt_neg(CALL, ret).map(drop).map_err(|err| {
            channel.registry().remove_group(key, group);
            err.detail(group.to_string())
        })
    }

    /// `rdma_leave_multicast`—Leaves a multicast group, or cancels joining; no further event of the group is
    /// delivered. [Detach](MulticastGroup::detach) queue pairs first.
    ///
    /// # Errors
    /// - `EADDRNOTAVAIL`: the identifier is not a member.
    ///
    /// # References
    /// [rdma_leave_multicast(3)](https://man7.org/linux/man-pages/man3/rdma_leave_multicast.3.html)
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&mut self, group: impl Into<Addr>) -> Result<()> {
        let group = group.into();
        let mut addr = RawAddr::new(group);
        self.raw()
            .channel()
            .registry()
            .remove_group(self.key(), group);
        // SAFETY: the identifier exists for as long as `self` lives, and the address outlives the call. Every
        // event is acknowledged when read, so the call does not block.
        let ret = unsafe { ffi::rdma_leave_multicast(self.as_raw(), addr.as_mut_ptr()) };
        cvt_neg("rdma_leave_multicast", ret)
            .map(drop)
            .map_err(|err| err.detail(group.to_string()))
    }
}
