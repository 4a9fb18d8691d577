//! The passive side: accepting a connection, or rejecting it.

use rdmacm_sys as ffi;
use verbs::{
    Error, Init, QueuePair, Result, Rts,
    error::cvt_neg,
    qp::{QpNum, XrcReceiver, XrcRecv},
};

use crate::{
    channel::EventChannel,
    depths::Depths,
    event::ConnectFailure,
    id::CmId,
    param::{ConnParam, Message, PeerParam},
    phase::Phase,
    phases::Requested,
    registry::Key,
    trace::note,
};

const CALL: &str = "rdma_accept";

/// A connection request of a peer. Drop rejects the request.
#[derive(Debug)]
#[must_use = "accept the connection, or reject it"]
pub struct ConnectRequest {
    listener: Key,
    id: CmId<Requested>,
    param: PeerParam,
}

impl ConnectRequest {
    pub(crate) fn new(listener: Key, id: CmId<Requested>, param: PeerParam) -> Self {
        Self {
            listener,
            id,
            param,
        }
    }

    /// Key of the listener addressed by the peer.
    pub fn listener(&self) -> Key {
        self.listener
    }

    /// Identifier of the new connection.
    pub fn id(&self) -> &CmId<Requested> {
        &self.id
    }

    /// Mutable identifier, for setting options.
    pub fn id_mut(&mut self) -> &mut CmId<Requested> {
        &mut self.id
    }

    /// Parameters of the peer's request.
    pub fn param(&self) -> &PeerParam {
        &self.param
    }

    /// `rdma_migrate_id`—Moves the identifier to another channel; see [`CmId::migrate`].
    ///
    /// # Errors
    /// As for [`CmId::migrate`].
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        self.id.migrate(channel)
    }

    /// `rdma_accept`—Moves `qp` to the states RTR and RTS, and accepts. The identifier returns with
    /// [`Event::Established`](crate::Event::Established) or
    /// [`Event::ConnectFailed`](crate::Event::ConnectFailed).
    ///
    /// The number of concurrent RDMA reads and atomics is the smaller of both sides' limits. Messages sent before the connection is established may be lost.
    ///
    /// # Errors
    /// - `InvalidInput`: too much private data, or a count out of range.
    /// - `EINVAL`: more RDMA reads than the device supports.
    /// - `ConnectionReset`, `ConnectionAborted`: the peer has withdrawn the request, or requested impossible
    ///   parameters; [`ConnectFailure::of`] the error has the cause.
    /// - Any error of [`ibv_modify_qp`](verbs::QueuePair::to_rtr).
    ///
    /// On an error the peer is rejected, and the identifier and the queue pair are dropped, with all posted
    /// receives.
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept<T: verbs::qp::Routed + verbs::qp::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Init, SW, RW>,
        param: &ConnParam,
    ) -> Result<QueuePair<T, Rts, SW, RW>> {
        self.id.check_transport::<T>(CALL)?;
        let qp = self.id.bring_up(qp, param.depths());
        let qp = qp.map_err(|err| bring_up_failure(err, || self.supports(param)))?;
        self.accept_ready(qp, param)
    }

    /// `rdma_accept`—Accepts with a queue pair already in the state RTS, prepared by the program with the
    /// [attributes of the connection manager](CmId::attributes); otherwise like [`accept`](Self::accept).
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept_ready<T: verbs::qp::Routed + verbs::qp::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Rts, SW, RW>,
        param: &ConnParam,
    ) -> Result<QueuePair<T, Rts, SW, RW>> {
        self.id.check_transport::<T>(CALL)?;
        self.accept_number(qp.qp_num(), param)?;
        Ok(qp)
    }

    /// `rdma_accept`—Accepts with the queue pair of this number, already in the state RTS; otherwise like
    /// [`accept_ready`](Self::accept_ready). Another thread may take completions of the queue pair during
    /// the call.
    ///
    /// # Errors
    /// As for [`accept`](Self::accept). The queue pair remains.
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept_number(self, qp_num: QpNum, param: &ConnParam) -> Result<()> {
        let depths = self.depths_in_force(param)?;
        let Self { mut id, .. } = self;
        let mut raw = param.to_raw(CALL, id.limit(Message::Reply), qp_num)?;
        raw.responder_resources = depths.responder_resources;
        raw.initiator_depth = depths.initiator_depth;
        id.set_qp_num(qp_num);
        note!(debug, id, "accepting the connection");
        let accepted = id.start(Phase::Accepting, CALL, |id| {
            // SAFETY: the identifier exists: `start` holds the registry lock. The parameters, and the private
            // data referenced by `param`, outlive the call. Assumption: librdmacm copies its arguments before
            // a call returns.
            unsafe { ffi::rdma_accept(id, &raw mut raw) }
        });
        // Dropping an identifier without accepting rejects the peer.
        accepted.map_err(|refused| refused.value.requested_failure(refused.error))
    }

    /// `rdma_accept`—Prepares the receiving end of an extended reliable connection, and accepts; otherwise
    /// like [`accept`](Self::accept). Send the number of a [shared receive
    /// queue](verbs::srq::SrqHandle::srq_num) in the private data: the peer must name one in each
    /// request.
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept_xrc(self, qp: XrcReceiver<Init>, param: &ConnParam) -> Result<XrcReceiver<Rts>> {
        self.id.check_transport::<XrcRecv>(CALL)?;
        let qp = self.id.bring_up_receiver(qp, param.depths());
        let qp = qp.map_err(|err| bring_up_failure(err, || self.supports(param)))?;
        self.accept_number(qp.qp_num(), param)?;
        Ok(qp)
    }

    /// `rdma_reject`—Rejects the peer, with up to 148 bytes for its application (255 on iWARP).
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

    /// `rdma_reject_ece`—Rejects the peer because of the [ECE options](CmId::remote_ece) offered.
    ///
    /// # Errors
    /// As for [`reject`](Self::reject).
    ///
    /// # References
    /// [rdma_set_local_ece(3)](https://man7.org/linux/man-pages/man3/rdma_set_local_ece.3.html)
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(self, private_data: &[u8]) -> Result<()> {
        const CALL: &str = "rdma_reject_ece";
        let id = self.id;
        note!(debug, id, "rejecting the peer");
        let len = id.limit(Message::Reject).check(CALL, private_data)?;
        // SAFETY: the identifier exists for as long as `id` lives. Assumption: librdmacm copies its
        // arguments before a call returns.
        let ret = unsafe { ffi::rdma_reject_ece(id.as_raw(), private_data.as_ptr().cast(), len) };
        cvt_neg(CALL, ret).map(drop)
    }
}

impl ConnectRequest {
    /// The numbers of reads and atomics for the answer: the peer may not exceed its own request. iWARP negotiates both
    /// by itself.
    fn depths_in_force(&self, param: &ConnParam) -> Result<Depths> {
        let ctx = self.id.context()?;
        if ctx.is_iwarp() {
            return Ok(param.depths());
        }
        let peer = Depths {
            responder_resources: self.param.responder_resources,
            initiator_depth: self.param.initiator_depth,
        };
        Ok(param.depths().in_force(peer, Depths::of_device(&ctx)?))
    }

    /// Whether the device has as many reads and atomics at once as `param` chooses.
    fn supports(&self, param: &ConnParam) -> bool {
        let device = self.id.context().and_then(|ctx| Depths::of_device(&ctx));
        device.is_ok_and(|device| param.depths().fit(device))
    }
}

/// Maps the failure to prepare a queue pair for a request. If the device supports the counts chosen by this side, only the
/// peer's parameters can be wrong: an address without route, or an MTU above the port's.
fn bring_up_failure(error: Error, is_supported: impl Fn() -> bool) -> Error {
    match error.raw_os_error() {
        Some(errno @ (libc::EINVAL | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH))
            if error.call() == "ibv_modify_qp" && is_supported() =>
        {
            let failure = ConnectFailure::Failed { status: -errno };
            failure.into_error(CALL).detail(error.to_string())
        }
        _ => error,
    }
}

impl CmId<Requested> {
    /// `rdma_reject`—Rejects the peer.
    pub(crate) fn reject(self, private_data: &[u8]) -> Result<()> {
        const CALL: &str = "rdma_reject";
        note!(debug, self, "rejecting the peer");
        let len = self.limit(Message::Reject).check(CALL, private_data)?;
        // SAFETY: the identifier exists for as long as `self` lives. Assumption: librdmacm copies its
        // arguments before a call returns.
        let ret = unsafe { ffi::rdma_reject(self.as_raw(), private_data.as_ptr().cast(), len) };
        cvt_neg(CALL, ret).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bring_up_fails_by_the_peer_unless_the_device_lacks_the_counts() {
        let failure = |errno, is_supported| {
            bring_up_failure(Error::from_errno("ibv_modify_qp", errno), || is_supported)
        };
        for errno in [libc::EINVAL, libc::ETIMEDOUT, libc::EHOSTUNREACH] {
            let error = failure(errno, true);
            let expected = ConnectFailure::Failed { status: -errno };
            assert_eq!(ConnectFailure::of(&error), Some(&expected));
        }
        for (errno, is_supported) in [(libc::ENOMEM, true), (libc::EINVAL, false)] {
            let error = failure(errno, is_supported);
            assert_eq!(error.raw_os_error(), Some(errno));
            assert_eq!(ConnectFailure::of(&error), None);
        }
    }
}
