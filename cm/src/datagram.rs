//! Datagrams: one queue pair for any number of peers, with each peer's address resolved by the connection
//! manager.

use std::ptr;

use rdmacm_sys as ffi;
use verbs::{
    AddressHandle, ProtectionDomain, QueuePair, Result, Ud,
    ah::{AddressVector, Addressed},
    error::{Refused, cvt_neg},
    op,
    qp::{QpNum, State},
    work::Gather,
};

use crate::{
    id::CmId,
    multicast::MulticastGroup,
    param::{ConnParam, Message, copy_private_data},
    phase::Phase,
    phases::{Answered, Requested, RouteResolved},
    registry::Key,
    trace::note,
};

/// Address of a peer's datagram queue pair, from the peer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramPeer {
    /// Private data of the peer's application. On InfiniBand and RoCE, padded with zeros to the maximum
    /// length of the message.
    pub private_data: Vec<u8>,
    /// Route to the peer.
    pub vector: AddressVector,
    /// Number of the peer's queue pair.
    pub qp_num: QpNum,
    /// Q_Key required in datagrams to the peer.
    #[doc(alias = "RDMA_UDP_QKEY")]
    pub qkey: u32,
}

impl DatagramPeer {
    /// Copies the data of an event.
    ///
    /// # Safety
    /// - `raw.private_data` is null, or points to `raw.private_data_len` readable bytes.
    pub(crate) unsafe fn from_raw(raw: &ffi::rdma_ud_param) -> Self {
        // SAFETY: as the caller promised.
        let private_data = unsafe { copy_private_data(raw.private_data, raw.private_data_len) };
        Self {
            private_data,
            vector: AddressVector::from_raw(&raw.ah_attr),
            qp_num: QpNum::from_low_bits(raw.qp_num),
            qkey: raw.qkey,
        }
    }

    /// `ibv_create_ah`—Creates the destination for datagrams to this peer.
    ///
    /// # Errors
    /// The errors of [`create_ah`](ProtectionDomain::create_ah).
    pub fn destination(&self, pd: &ProtectionDomain) -> Result<Destination> {
        Ok(Destination {
            ah: pd.create_ah(&self.vector)?,
            qp_num: self.qp_num,
            qkey: self.qkey,
        })
    }
}

/// Destination of datagrams: address handle, queue pair number and Q_Key.
///
/// ```no_run
/// # fn f(
/// #     peer: &cm::DatagramPeer,
/// #     qp: &mut verbs::QueuePair<verbs::Ud, verbs::Rts, verbs::ah::Addressed<verbs::Buf>>,
/// # ) -> verbs::Result<()> {
/// let pd = qp.pd().clone();
/// let peer = peer.destination(&pd)?;
/// qp.post(peer.send(pd.register_buf(*b"hello")?))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Destination {
    /// Address handle of the route.
    pub ah: AddressHandle,
    /// Queue pair number; for multicast, the number reserved for groups.
    pub qp_num: QpNum,
    /// Q_Key of the datagrams.
    pub qkey: u32,
}

impl Destination {
    /// Creates a datagram request for this destination, with optional immediate data; see [`op::SendTo`].
    pub fn send<W: Gather>(&self, work: W) -> op::SendTo<Addressed<W>> {
        op::SendTo::new(Addressed::new(work, &self.ah), self.qp_num, self.qkey)
    }
}

impl MulticastGroup {
    /// `ibv_create_ah`—Creates the destination for datagrams to this group.
    ///
    /// # Errors
    /// The errors of [`create_ah`](ProtectionDomain::create_ah).
    pub fn destination(&self, pd: &ProtectionDomain) -> Result<Destination> {
        Ok(Destination {
            ah: pd.create_ah(&self.vector)?,
            qp_num: self.qp_num,
            qkey: self.qkey,
        })
    }
}

impl CmId<RouteResolved> {
    /// `rdma_connect` on an identifier for datagrams—Requests the peer's datagram address, with up to 180
    /// bytes of private data. The identifier returns with
    /// [`Event::ServiceResolved`](crate::Event::ServiceResolved) or
    /// [`Event::ConnectFailed`](crate::Event::ConnectFailed).
    ///
    /// # Errors
    /// On an error the identifier is returned in the error:
    /// - `InvalidInput`: too much private data, or an identifier for connections.
    ///
    /// # References
    /// [rdma_connect(3)](https://man7.org/linux/man-pages/man3/rdma_connect.3.html)
    #[doc(alias = "rdma_connect")]
    pub fn resolve_service(self, private_data: &[u8]) -> Result<(), Refused<Self>> {
        const CALL: &str = "rdma_connect";
        let param = ConnParam::new().private_data(private_data);
        let raw = self
            .check_transport::<Ud>(CALL)
            .and_then(|()| param.to_raw(CALL, self.limit(Message::Request), QpNum::default()));
        let mut raw = match raw {
            Ok(raw) => raw,
            Err(error) => return Err(Refused { value: self, error }),
        };
        note!(debug, self, "requesting the datagram address");
        self.start(Phase::ResolvingService, CALL, |id| {
            // SAFETY: the identifier exists: `start` holds the registry lock. The parameters, and the private
            // data referenced by `param`, outlive the call. Assumption: librdmacm copies its arguments before
            // a call returns.
            unsafe { ffi::rdma_connect(id, &raw mut raw) }
        })
    }
}

/// A peer's request for a datagram address. Drop rejects the request.
#[derive(Debug)]
#[must_use = "accept the peer, or reject it"]
pub struct ServiceRequest {
    listener: Key,
    id: CmId<Requested>,
    private_data: Vec<u8>,
}

impl ServiceRequest {
    pub(crate) fn new(listener: Key, id: CmId<Requested>, private_data: Vec<u8>) -> Self {
        Self {
            listener,
            id,
            private_data,
        }
    }

    /// Key of the listener addressed by the peer.
    pub fn listener(&self) -> Key {
        self.listener
    }

    #[cfg(feature = "tracing")]
    pub(crate) fn id_mut(&mut self) -> &mut CmId<Requested> {
        &mut self.id
    }

    /// The identifier created for this peer.
    pub fn id(&self) -> &CmId<Requested> {
        &self.id
    }

    /// Private data of the peer's application. On InfiniBand and RoCE, padded with zeros to the maximum
    /// length of the message.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// `rdma_accept` on an identifier for datagrams—Answers with the address of `qp`, and up to 136 bytes of
    /// private data. No event follows.
    ///
    /// Any number of peers can get the address of the same queue pair. The reverse route to a peer is in the
    /// [completion](ProtectionDomain::create_ah_from_wc) of the first datagram.
    ///
    /// # Errors
    /// - `InvalidInput`: too much private data.
    ///
    /// On an error the peer is rejected.
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept<S: State, SW, RW>(
        self,
        qp: &QueuePair<Ud, S, SW, RW>,
        private_data: &[u8],
    ) -> Result<CmId<Answered>> {
        const CALL: &str = "rdma_accept";
        let param = ConnParam::new().private_data(private_data);
        let mut raw = param.to_raw(CALL, self.id.limit(Message::Reply), qp.qp_num())?;
        // SAFETY: the identifier exists for as long as `self.id` lives. The parameters, and the private data
        // referenced by `param`, outlive the call. Assumption: librdmacm copies its arguments before a call
        // returns.
        let ret = unsafe { ffi::rdma_accept(self.id.as_raw(), ptr::from_mut(&mut raw)) };
        cvt_neg(CALL, ret)?;
        note!(debug, self.id, qp = %qp.qp_num(), "answered with a datagram address");
        Ok(self.id.advance())
    }

    /// `rdma_reject` on an identifier for datagrams—Rejects the peer, with up to 136 bytes of private data.
    ///
    /// # Errors
    /// - `InvalidInput`: too much private data. The peer is rejected nevertheless, without private data.
    ///
    /// # References
    /// [rdma_reject(3)](https://man7.org/linux/man-pages/man3/rdma_reject.3.html)
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }
}
