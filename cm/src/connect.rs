//! The active side: requesting and establishing a connection.

use rdmacm_sys as ffi;
use verbs::{
    Init, QueuePair, Result, Rts,
    error::{Refused, cvt_neg},
    qp::QpNum,
};

use crate::{
    connection::Connection,
    id::{CmId, wrong_qp},
    param::{ConnParam, Message, PeerParam},
    phase::Phase,
    phases::{Connected, Responded, RouteResolved},
    trace::note,
};

impl CmId<RouteResolved> {
    /// `rdma_connect`—Requests a connection for `qp` from the peer. The identifier returns with
    /// [`Event::ConnectResponse`](crate::Event::ConnectResponse) or
    /// [`Event::ConnectFailed`](crate::Event::ConnectFailed).
    ///
    /// Keep the queue pair until then; receives can be posted already.
    ///
    /// # Errors
    /// On an error the identifier is returned in the error:
    /// - `InvalidInput`: too much private data, or a count out of range.
    /// - `EINVAL`: more RDMA reads than the device supports.
    ///
    /// # References
    /// [rdma_connect(3)](https://man7.org/linux/man-pages/man3/rdma_connect.3.html)
    #[doc(alias = "rdma_connect")]
    pub fn connect<T: verbs::qp::Routed + verbs::qp::Queued, SW, RW>(
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
        self.set_depths(param.depths());
        note!(debug, self, "requesting the connection");
        self.start(Phase::Connecting, CALL, |id| {
            // SAFETY: the identifier exists: `start` holds the registry lock. The parameters, and the private
            // data referenced by `param`, outlive the call. Assumption: librdmacm copies its arguments before
            // a call returns.
            unsafe { ffi::rdma_connect(id, &raw mut raw) }
        })
    }
}

/// An acceptance by the peer. Drop ends the connection before establishment.
#[derive(Debug)]
#[must_use = "establish the connection, or drop it"]
pub struct ConnectResponse {
    id: CmId<Responded>,
    param: PeerParam,
    /// On iWARP the connection is established with the response, and the kernel has already moved the queue
    /// pair to RTS.
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

    /// The requesting identifier.
    pub fn id(&self) -> &CmId<Responded> {
        &self.id
    }

    /// Parameters of the peer's answer.
    pub fn param(&self) -> &PeerParam {
        &self.param
    }

    /// `rdma_establish`—Moves `qp`, the queue pair of the request, to RTR and RTS, and sends the RTU message
    /// to the peer. The number of concurrent RDMA reads and atomics is the smaller of both sides' limits.
    ///
    /// # Errors
    /// - `InvalidInput`: `qp` is not the queue pair of the request.
    /// - Any error of [`ibv_modify_qp`](verbs::QueuePair::to_rtr).
    ///
    /// On an error the connection has failed, and the identifier and the queue pair are dropped, with all
    /// posted receives.
    ///
    /// # References
    /// [rdma_establish(3)](https://man7.org/linux/man-pages/man3/rdma_establish.3.html)
    #[doc(alias = "rdma_establish")]
    pub fn establish<T: verbs::qp::Routed + verbs::qp::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Init, SW, RW>,
    ) -> Result<Connection<SW, RW, T>> {
        self.check_qp(qp.qp_num())?;
        let qp = self.id.bring_up(qp, self.id.depths())?;
        self.establish_ready(qp)
    }

    /// `rdma_establish`—Sends the RTU message for `qp`, already in the state RTS, prepared by the program
    /// with the [attributes of the connection manager](CmId::attributes).
    ///
    /// # Errors
    /// - `InvalidInput`: `qp` is not the queue pair of the request.
    ///
    /// On an error the connection has failed, as above.
    ///
    /// # References
    /// [rdma_establish(3)](https://man7.org/linux/man-pages/man3/rdma_establish.3.html)
    #[doc(alias = "rdma_establish")]
    pub fn establish_ready<T: verbs::qp::Routed + verbs::qp::Queued, SW, RW>(
        self,
        qp: QueuePair<T, Rts, SW, RW>,
    ) -> Result<Connection<SW, RW, T>> {
        let id = self.establish_number(qp.qp_num())?;
        Ok(Connection::from_parts(id, qp))
    }

    /// `rdma_establish`—Sends the RTU message for the queue pair of this number, already in the state RTS;
    /// otherwise like [`establish_ready`](Self::establish_ready). Another thread may take completions of
    /// the queue pair during the call.
    ///
    /// # Errors
    /// As for [`establish_ready`](Self::establish_ready).
    ///
    /// # References
    /// [rdma_establish(3)](https://man7.org/linux/man-pages/man3/rdma_establish.3.html)
    #[doc(alias = "rdma_establish")]
    pub fn establish_number(self, qp_num: QpNum) -> Result<CmId<Connected>> {
        self.check_qp(qp_num)?;
        if !self.established {
            // SAFETY: the identifier exists for as long as `self.id` lives, and has no queue pair created by
            // librdmacm.
            let ret = unsafe { ffi::rdma_establish(self.id.as_raw()) };
            cvt_neg("rdma_establish", ret)?;
        }
        note!(debug, self.id, "established");
        Ok(self.id.advance::<Connected>())
    }

    fn check_qp(&self, found: QpNum) -> Result<()> {
        match self.id.expected_qp_num() {
            Some(expected) if expected == found => Ok(()),
            expected => Err(wrong_qp("rdma_establish", found, expected)),
        }
    }

    /// Mutable identifier, for setting options.
    pub fn id_mut(&mut self) -> &mut CmId<Responded> {
        &mut self.id
    }
}
