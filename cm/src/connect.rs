//! The active side: asking for a connection, and establishing it.

use rdmacm_sys as ffi;
use verbs::{Init, QpNum, QueuePair, Refused, Result, Rts, error::cvt_neg};

use crate::{
    connection::Connection,
    id::{CmId, wrong_qp},
    param::{ConnParam, Message, PeerParam},
    phase::Phase,
    phases::{Connected, Responded, RouteResolved},
};

impl CmId<RouteResolved> {
    /// `rdma_connect`—Asks the peer for a connection to `qp`. The identifier comes back with
    /// [`Event::ConnectResponse`](crate::Event::ConnectResponse) or [`Event::ConnectFailed`](crate::Event::ConnectFailed).
    ///
    /// Keep the queue pair until then; receives can be posted to it already.
    ///
    /// # Errors
    /// The identifier is given back:
    /// - `InvalidInput`: too much private data, or a count out of range.
    /// - `EINVAL`: more RDMA reads than the device can do.
    ///
    /// # References
    /// [rdma_connect(3)](https://man7.org/linux/man-pages/man3/rdma_connect.3.html)
    #[doc(alias = "rdma_connect")]
    pub fn connect<T: verbs::Routed + verbs::Queued, SW, RW>(
        mut self,
        qp: &QueuePair<T, Init, SW, RW>,
        param: &ConnParam,
    ) -> Result<(), Refused<Self>> {
        const CALL: &str = "rdma_connect";
        let raw = self
            .check_transport::<T>(CALL)
            .and_then(|()| param.to_raw(CALL, self.limit(Message::Request), qp.qp_num()));
        let mut raw = match raw {
            Ok(raw) => raw,
            Err(error) => return Err(Refused { value: self, error }),
        };
        self.set_qp_num(qp.qp_num());
        self.start(Phase::Connecting, CALL, |id| {
            // SAFETY: the identifier exists: `start` holds the lock it is parked under. The
            // parameters, and the private data in `param` that they point to, outlive the call,
            // which copies them.
            unsafe { ffi::rdma_connect(id, &raw mut raw) }
        })
    }
}

/// The peer has accepted. Dropping this ends the connection before it is established.
#[derive(Debug)]
#[must_use = "establish the connection, or drop it"]
pub struct ConnectResponse {
    id: CmId<Responded>,
    param: PeerParam,
    /// On iWARP the connection is up with the response, and the kernel has brought up the queue
    /// pair.
    established: bool,
}

impl ConnectResponse {
    pub(crate) fn new(id: CmId<Responded>, param: PeerParam, established: bool) -> Self {
        Self {
            id,
            param,
            established,
        }
    }

    /// The identifier that asked for the connection.
    pub fn id(&self) -> &CmId<Responded> {
        &self.id
    }

    /// What the peer has said.
    pub fn param(&self) -> &PeerParam {
        &self.param
    }

    /// `rdma_establish`—Brings up `qp`, which must be the one the connection was asked for with,
    /// and tells the peer that it is ready.
    ///
    /// # Errors
    /// - `InvalidInput`: another queue pair.
    /// - Whatever [`ibv_modify_qp`](verbs::QueuePair::to_rtr) can fail with.
    ///
    /// The connection has failed then, and the identifier and the queue pair are dropped, with the
    /// receives that were posted.
    ///
    /// # References
    /// [rdma_establish(3)](https://man7.org/linux/man-pages/man3/rdma_establish.3.html)
    #[doc(alias = "rdma_establish")]
    pub fn establish<T: verbs::Routed + verbs::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Init, SW, RW>,
    ) -> Result<Connection<SW, RW, T>> {
        self.check_qp(qp.qp_num())?;
        let qp = self.id.bring_up(qp, None, None)?;
        self.establish_ready(qp)
    }

    /// `rdma_establish`—Tells the peer that `qp` is ready, which the program has brought up by
    /// itself, with [what the connection manager knows](CmId::attributes).
    ///
    /// # Errors
    /// - `InvalidInput`: another queue pair than the one the connection was asked for with.
    ///
    /// The connection has failed then, as above.
    ///
    /// # References
    /// [rdma_establish(3)](https://man7.org/linux/man-pages/man3/rdma_establish.3.html)
    #[doc(alias = "rdma_establish")]
    pub fn establish_ready<T: verbs::Routed + verbs::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Rts, SW, RW>,
    ) -> Result<Connection<SW, RW, T>> {
        self.check_qp(qp.qp_num())?;
        if !self.established {
            // SAFETY: the identifier exists for as long as `self.id` lives, and has no queue pair
            // of librdmacm's own.
            let ret = unsafe { ffi::rdma_establish(self.id.as_raw()) };
            cvt_neg("rdma_establish", ret)?;
        }
        Ok(Connection::from_parts(self.id.advance::<Connected>(), qp))
    }

    fn check_qp(&self, found: QpNum) -> Result<()> {
        match self.id.expected_qp_num() {
            Some(expected) if expected == found => Ok(()),
            expected => Err(wrong_qp("rdma_establish", found, expected)),
        }
    }

    /// The identifier, to set options of.
    pub fn id_mut(&mut self) -> &mut CmId<Responded> {
        &mut self.id
    }
}
