//! Multicast groups.

use std::fmt;

use rdmacm_sys::{
    self as ffi, rdma_cm_join_mc_attr_ex, rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags,
};
use verbs::{AddressVector, QpNum, QueuePair, Result, State, Ud, error::cvt_neg};

use crate::{
    addr::{Addr, RawAddr},
    datagram::DatagramPeer,
    id::CmId,
    phases::IdPhase,
};

/// What a member of a multicast group does.
#[doc(alias = "rdma_cm_mc_join_flags")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Membership {
    /// It sends, and it receives.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_FULLMEMBER")]
    #[default]
    Full,
    /// It only sends.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER")]
    SendOnly,
}

/// A multicast group that an identifier has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MulticastGroup {
    /// The address it was joined by.
    pub addr: Addr,
    /// The way to all members.
    pub vector: AddressVector,
    /// The number that stands for the queue pairs of all members.
    pub qp_num: QpNum,
    /// The key that its datagrams carry.
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

    /// `ibv_attach_mcast`—Lets `qp` receive what is sent to the group.
    ///
    /// # Errors
    /// Those of [`attach_multicast`](QueuePair::attach_multicast).
    pub fn attach<S: State, SW, RW>(&self, qp: &mut QueuePair<Ud, S, SW, RW>) -> Result<()> {
        let gid = self.vector.grh.map(|grh| grh.dgid).unwrap_or_default();
        qp.attach_multicast(gid, self.vector.dlid)
    }

    /// `ibv_detach_mcast`—Lets `qp` receive it no longer.
    ///
    /// # Errors
    /// Those of [`detach_multicast`](QueuePair::detach_multicast).
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
    /// `rdma_join_multicast_ex`—Joins a multicast group, on the port of this identifier. The end is
    /// told by [`Event::MulticastJoined`](crate::Event::MulticastJoined) or
    /// [`Event::MulticastFailed`](crate::Event::MulticastFailed).
    ///
    /// The identifier is one for datagrams that is bound to the address of a device, or whose address
    /// is resolved: to the group, or to anybody. It can join any number of groups, and leaves them
    /// when it is dropped.
    ///
    /// An IP address is mapped to a group of the device's; one of
    /// [InfiniBand's own](crate::IbAddr) says the group itself.
    ///
    /// # Errors
    /// - `EINVAL`: an identifier for connections, one that has no device yet, or one that has gone on
    ///   to a peer.
    /// - `EADDRNOTAVAIL`, `EINVAL`: `group` is no multicast address.
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
        // SAFETY: the identifier exists for as long as `self` lives; the attributes and the address
        // outlive the call, which copies them. The name is a number that comes back with events, as
        // a pointer that nobody follows.
        let ret =
            unsafe { ffi::rdma_join_multicast_ex(self.as_raw(), &raw mut attr, name.to_context()) };
        cvt_neg(CALL, ret).map(drop).map_err(|err| {
            channel.registry().remove_group(key, group);
            err.detail(group.to_string())
        })
    }

    /// `rdma_leave_multicast`—Leaves a multicast group, or stops joining it: no event of it comes
    /// after this. [Detach](MulticastGroup::detach) queue pairs first.
    ///
    /// # Errors
    /// - `EADDRNOTAVAIL`: the identifier is not in it.
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
        // SAFETY: the identifier exists for as long as `self` lives, and the address outlives the
        // call. Every event is acknowledged as it is read, so this does not block.
        let ret = unsafe { ffi::rdma_leave_multicast(self.as_raw(), addr.as_mut_ptr()) };
        cvt_neg("rdma_leave_multicast", ret)
            .map(drop)
            .map_err(|err| err.detail(group.to_string()))
    }
}
