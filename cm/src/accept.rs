//! The passive side: accepting a connection, or rejecting it.

use rdmacm_sys as ffi;
use verbs::{Error, Init, QpNum, QueuePair, Result, Rts, XrcReceiver, XrcRecv, error::cvt_neg};

use crate::{
    channel::EventChannel,
    event::ConnectFailure,
    id::CmId,
    param::{ConnParam, Message, PeerParam},
    phase::Phase,
    phases::Requested,
    registry::Key,
};

const CALL: &str = "rdma_accept";

/// A peer wants to connect. Dropping this rejects it.
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

    /// The listener that the peer has asked.
    pub fn listener(&self) -> Key {
        self.listener
    }

    /// The identifier of the connection to be.
    pub fn id(&self) -> &CmId<Requested> {
        &self.id
    }

    /// The identifier, to set options of.
    pub fn id_mut(&mut self) -> &mut CmId<Requested> {
        &mut self.id
    }

    /// What the peer has said.
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

    /// `rdma_accept`—Brings up `qp`, and accepts. The identifier comes back with
    /// [`Event::Established`](crate::Event::Established) or [`Event::ConnectFailed`](crate::Event::ConnectFailed).
    ///
    /// Of RDMA reads and atomics, each side does as many as both allow, unless `param` says
    /// otherwise. What is sent before the connection is established may be lost.
    ///
    /// # Errors
    /// - `InvalidInput`: too much private data, or a count out of range.
    /// - `EINVAL`: more RDMA reads than the device can do.
    /// - `ConnectionReset`, `ConnectionAborted`: the peer has taken its request back, or has asked for
    ///   something impossible; [`ConnectFailure::of`] the error says so.
    /// - Whatever [`ibv_modify_qp`](verbs::QueuePair::to_rtr) can fail with.
    ///
    /// The peer is rejected then, and the identifier and the queue pair are dropped, with the
    /// receives that were posted.
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept<T: verbs::Routed + verbs::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Init, SW, RW>,
        param: &ConnParam,
    ) -> Result<QueuePair<T, Rts, SW, RW>> {
        self.id.check_transport::<T>(CALL)?;
        let (responder_resources, initiator_depth) = param.resources();
        let qp = self.id.bring_up(qp, responder_resources, initiator_depth);
        self.accept_ready(qp.map_err(|err| bring_up_failure(err, param))?, param)
    }

    /// `rdma_accept`—Accepts with a queue pair that the program has brought up by itself, with
    /// [what the connection manager knows](CmId::attributes); else as [`accept`](Self::accept).
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept_ready<T: verbs::Routed + verbs::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Rts, SW, RW>,
        param: &ConnParam,
    ) -> Result<QueuePair<T, Rts, SW, RW>> {
        self.id.check_transport::<T>(CALL)?;
        self.accept_number(qp.qp_num(), param)?;
        Ok(qp)
    }

    /// `rdma_accept`—Brings up the receiving end of an extended reliable connection, and accepts;
    /// else as [`accept`](Self::accept). Tell the peer the number of a
    /// [shared receive queue](verbs::SharedReceiveQueue::srq_num) in the private data: it has to
    /// name one with each request.
    ///
    /// # Errors
    /// As for [`accept`](Self::accept).
    ///
    /// # References
    /// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
    #[doc(alias = "rdma_accept")]
    pub fn accept_xrc(self, qp: XrcReceiver<Init>, param: &ConnParam) -> Result<XrcReceiver<Rts>> {
        self.id.check_transport::<XrcRecv>(CALL)?;
        let (responder_resources, _) = param.resources();
        let qp = self.id.bring_up_receiver(qp, responder_resources);
        let qp = qp.map_err(|err| bring_up_failure(err, param))?;
        self.accept_number(qp.qp_num(), param)?;
        Ok(qp)
    }

    fn accept_number(self, qp_num: QpNum, param: &ConnParam) -> Result<()> {
        let Self { mut id, .. } = self;
        let mut raw = param.to_raw(CALL, id.limit(Message::Reply), qp_num)?;
        id.set_qp_num(qp_num);
        let accepted = id.start(Phase::Accepting, CALL, |id| {
            // SAFETY: the identifier exists: `start` holds the lock it is parked under. The
            // parameters, and the private data in `param` that they point to, outlive the call,
            // which copies them.
            unsafe { ffi::rdma_accept(id, &raw mut raw) }
        });
        // An identifier that has not accepted is dropped, which rejects the peer.
        accepted.map_err(|refused| refused.value.requested_failure(refused.error))
    }

    /// `rdma_reject`—Rejects the peer, with up to 148 bytes for its application (255 on iWARP).
    ///
    /// # Errors
    /// - `InvalidInput`: too much private data. The peer is rejected, without any.
    ///
    /// # References
    /// [rdma_reject(3)](https://man7.org/linux/man-pages/man3/rdma_reject.3.html)
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.id.reject(private_data)
    }

    /// `rdma_reject_ece`—Rejects the peer because of what its device [offers](CmId::remote_ece).
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
        let len = id.limit(Message::Reject).check(CALL, private_data)?;
        // SAFETY: the identifier exists for as long as `id` lives; the data are `len` bytes, which
        // the call copies.
        let ret = unsafe { ffi::rdma_reject_ece(id.as_raw(), private_data.as_ptr().cast(), len) };
        cvt_neg(CALL, ret).map(drop)
    }
}

/// What it means that a queue pair cannot be brought up for a request. Where `param` leaves the counts to
/// the connection manager, all that is wrong is what the peer has asked for: an address that does not
/// resolve, or an MTU that the port does not have.
fn bring_up_failure(error: Error, param: &ConnParam) -> Error {
    let asked = error.call() == "ibv_modify_qp" && param.resources() == (None, None);
    match error.raw_os_error() {
        Some(errno @ (libc::EINVAL | libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH))
            if asked =>
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
        let len = self.limit(Message::Reject).check(CALL, private_data)?;
        // SAFETY: the identifier exists for as long as `self` lives; the data are `len` bytes,
        // which the call copies.
        let ret = unsafe { ffi::rdma_reject(self.as_raw(), private_data.as_ptr().cast(), len) };
        cvt_neg(CALL, ret).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bring_up_fails_by_the_peer_unless_this_side_chose_the_counts() {
        let failure = |errno, param: &ConnParam| {
            bring_up_failure(Error::from_errno("ibv_modify_qp", errno), param)
        };
        for errno in [libc::EINVAL, libc::ETIMEDOUT, libc::EHOSTUNREACH] {
            let error = failure(errno, &ConnParam::new());
            let expected = ConnectFailure::Failed { status: -errno };
            assert_eq!(ConnectFailure::of(&error), Some(&expected));
        }
        for (errno, param) in [
            (libc::ENOMEM, ConnParam::new()),
            (libc::EINVAL, ConnParam::new().responder_resources(200)),
            (libc::EINVAL, ConnParam::new().initiator_depth(200)),
        ] {
            let error = failure(errno, &param);
            assert_eq!(error.raw_os_error(), Some(errno));
        }
    }
}
