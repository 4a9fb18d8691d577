//! Connection parameters: what one side asks for, and what the other has said.

use std::io;

use rdmacm_sys as ffi;
use verbs::{Error, QpNum, Result};

use crate::{id::CmId, phases::HasDevice};

/// What a side of a connection asks for when it connects or accepts.
///
/// The default is what librdmacm uses when it is told nothing: as many RDMA reads and atomics as
/// the device can do, seven retries, and retries without end for a receiver that is not ready.
///
/// # References
/// [rdma_connect(3)](https://man7.org/linux/man-pages/man3/rdma_connect.3.html),
/// [rdma_accept(3)](https://man7.org/linux/man-pages/man3/rdma_accept.3.html)
#[doc(alias = "rdma_conn_param")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
    flow_control: bool,
    srq: bool,
    retry_count: u8,
    rnr_retry_count: u8,
}

/// As many as the device can do (`RDMA_MAX_RESP_RES`, `RDMA_MAX_INIT_DEPTH`).
const DEVICE_MAX: u8 = 0xff;

/// A message that carries private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Request,
    Reply,
    Reject,
}

/// How much private data a message can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(usize);

impl Limit {
    /// The limit of a message on InfiniBand and RoCE.
    ///
    /// InfiniBand says how long the field is; of that in a request, the connection manager of IP
    /// addresses uses 36 bytes for itself.
    fn infiniband(message: Message, datagram: bool, ib_address: bool) -> Self {
        const CMA_HEADER: usize = 36;
        let field = match (message, datagram) {
            (Message::Request, false) => 92,
            (Message::Reply, false) => 196,
            (Message::Reject, false) => 148,
            (Message::Request, true) => 216,
            (Message::Reply | Message::Reject, true) => 136,
        };
        match message {
            Message::Request if !ib_address => Self(field - CMA_HEADER),
            _ => Self(field),
        }
    }

    /// The limit on iWARP: the most that librdmacm can pass.
    const IWARP: Self = Self(255);

    /// The length of private data as C takes it, if the message has room for it.
    pub(crate) fn check(self, call: &'static str, data: &[u8]) -> Result<u8> {
        u8::try_from(data.len())
            .ok()
            .filter(|&len| usize::from(len) <= self.0)
            .ok_or_else(|| {
                let reason = format!(
                    "{} bytes of private data, and at most {} here",
                    data.len(),
                    self.0
                );
                Error::refused(call, io::ErrorKind::InvalidInput, reason)
            })
    }
}

impl<P: HasDevice> CmId<P> {
    /// How much private data a message of this identifier can carry.
    pub(crate) fn limit(&self, message: Message) -> Limit {
        if self.context().is_ok_and(|ctx| ctx.is_iwarp()) {
            return Limit::IWARP;
        }
        let ib_address = self
            .any_local_addr()
            .is_some_and(|addr| addr.ib().is_some());
        Limit::infiniband(message, self.is_datagram(), ib_address)
    }
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: DEVICE_MAX,
            initiator_depth: DEVICE_MAX,
            flow_control: false,
            srq: false,
            retry_count: 7,
            rnr_retry_count: 7,
        }
    }
}

impl ConnParam {
    /// The default; see [`ConnParam`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything zero, as in a C program that clears the struct: no RDMA reads or atomics, and no
    /// retries.
    pub fn zeroed() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            srq: false,
            retry_count: 0,
            rnr_retry_count: 0,
        }
    }

    /// Bytes for the other side's application: at most 56 with a request and 196 with a reply on
    /// InfiniBand and RoCE, and 255 on iWARP. On InfiniBand and RoCE they arrive padded with zeros
    /// to that length.
    #[must_use]
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// How many RDMA reads and atomics of the peer this side serves at once; 255 means as
    /// many as the device can. It bounds what the peer has outstanding, not this side.
    #[must_use]
    pub fn responder_resources(mut self, count: u8) -> Self {
        self.responder_resources = count;
        self
    }

    /// How many RDMA reads and atomics this side has outstanding at once; 255 means as many as the
    /// device can. The peer may serve fewer: the smaller of this and its
    /// [`responder_resources`](Self::responder_resources) counts.
    #[must_use]
    pub fn initiator_depth(mut self, count: u8) -> Self {
        self.initiator_depth = count;
        self
    }

    /// Whether this side's hardware has end-to-end flow control, for the peer's sends.
    #[must_use]
    pub fn flow_control(mut self, available: bool) -> Self {
        self.flow_control = available;
        self
    }

    /// Whether this side's queue pair takes its receives from a shared receive queue, so that the
    /// other side does not count on having one each. Make the queue pair with
    /// [`srq`](verbs::QueuePairBuilder::srq).
    #[doc(alias = "rdma_create_srq")]
    #[doc(alias = "rdma_create_srq_ex")]
    #[doc(alias = "rdma_destroy_srq")]
    #[must_use]
    pub fn srq(mut self, shared: bool) -> Self {
        self.srq = shared;
        self
    }

    /// Maximum number of times that an unacknowledged packet is retransmitted before the connection
    /// fails: 0 to 7.
    ///
    /// The side that connects chooses for both sides. What the side that accepts gives is ignored, as
    /// `rdma_accept(3)` says. Soft-RoCE takes 7 for no limit.
    #[must_use]
    pub fn retry_count(mut self, count: u8) -> Self {
        self.retry_count = count;
        self
    }

    /// Maximum number of times that *the peer* retransmits a message for which this side has no
    /// receive posted (receiver not ready): 0 to 6, and 7 without end.
    ///
    /// As `rdma_connect(3)` says, it bounds the sends of the remote side. How often this side's own
    /// sends are retransmitted is what the peer has chosen.
    #[must_use]
    pub fn rnr_retry_count(mut self, count: u8) -> Self {
        self.rnr_retry_count = count;
        self
    }

    pub(crate) fn resources(&self) -> (Option<u8>, Option<u8>) {
        let given = |count| (count != DEVICE_MAX).then_some(count);
        (given(self.responder_resources), given(self.initiator_depth))
    }

    /// The parameters as C takes them. They point into `self`.
    pub(crate) fn to_raw(
        &self,
        call: &'static str,
        limit: Limit,
        qp_num: QpNum,
    ) -> Result<ffi::rdma_conn_param> {
        for (name, count) in [
            ("retry_count", self.retry_count),
            ("rnr_retry_count", self.rnr_retry_count),
        ] {
            if count > 7 {
                let reason = format!("{name} is {count}, and at most 7");
                return Err(Error::refused(call, io::ErrorKind::InvalidInput, reason));
            }
        }
        let mut raw = ffi::rdma_conn_param::zeroed();
        raw.private_data_len = limit.check(call, &self.private_data)?;
        raw.private_data = self.private_data.as_ptr().cast();
        raw.responder_resources = self.responder_resources;
        raw.initiator_depth = self.initiator_depth;
        raw.flow_control = self.flow_control.into();
        raw.srq = self.srq.into();
        raw.retry_count = self.retry_count;
        raw.rnr_retry_count = self.rnr_retry_count;
        raw.qp_num = qp_num.get();
        Ok(raw)
    }
}

/// What the other side has said when it connected or accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerParam {
    /// Bytes of the other side's application. On InfiniBand and RoCE they are padded with zeros to
    /// the most that the message can carry.
    pub private_data: Vec<u8>,
    /// How many RDMA reads and atomics this side may have outstanding.
    pub initiator_depth: u8,
    /// How many RDMA reads and atomics of the other side this side has to serve.
    pub responder_resources: u8,
    /// Whether the other side's hardware has flow control.
    pub flow_control: bool,
    /// Maximum number of times that an unacknowledged packet is retransmitted, by either side. Of a
    /// peer that accepts, it means nothing.
    pub retry_count: u8,
    /// Maximum number of times that this side's sends are retransmitted while the peer has no receive
    /// posted.
    pub rnr_retry_count: u8,
    /// Whether the other side's queue pair takes its receives from a shared receive queue.
    pub srq: bool,
    /// The number of the other side's queue pair.
    pub qp_num: QpNum,
}

impl PeerParam {
    /// Copies the parameters out of an event.
    ///
    /// # Safety
    /// - `raw.private_data` is null, or points to `raw.private_data_len` readable bytes.
    pub(crate) unsafe fn from_raw(raw: &ffi::rdma_conn_param) -> Self {
        // SAFETY: as the caller promised.
        let private_data = unsafe { copy_private_data(raw.private_data, raw.private_data_len) };
        Self {
            private_data,
            initiator_depth: raw.initiator_depth,
            responder_resources: raw.responder_resources,
            flow_control: raw.flow_control != 0,
            retry_count: raw.retry_count,
            rnr_retry_count: raw.rnr_retry_count,
            srq: raw.srq != 0,
            qp_num: QpNum::from_low_bits(raw.qp_num),
        }
    }
}

/// Copies private data out of an event.
///
/// # Safety
/// - `data` is null, or points to `len` readable bytes.
pub(crate) unsafe fn copy_private_data(data: *const libc::c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: as the caller promised; the bytes are copied before anything else happens.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_raw(param: &ConnParam, limit: Limit) -> Result<ffi::rdma_conn_param> {
        param.to_raw("rdma_connect", limit, QpNum::default())
    }

    #[test]
    fn private_data_is_limited_by_message_transport_and_address() {
        use Message::{Reject, Reply, Request};
        for (message, datagram, ib_address, limit) in [
            (Request, false, false, 56),
            (Request, false, true, 92),
            (Reply, false, false, 196),
            (Reject, false, false, 148),
            (Request, true, false, 180),
            (Request, true, true, 216),
            (Reply, true, false, 136),
            (Reject, true, true, 136),
        ] {
            let found = Limit::infiniband(message, datagram, ib_address);
            assert_eq!(found, Limit(limit), "{message:?} {datagram} {ib_address}");
            let fits = ConnParam::new().private_data(vec![0; limit]);
            assert!(to_raw(&fits, found).is_ok());
            let too_long = ConnParam::new().private_data(vec![0; limit + 1]);
            let too_long = to_raw(&too_long, found).map(drop).unwrap_err();
            assert_eq!(
                too_long.to_string(),
                format!(
                    "`rdma_connect` failed: {} bytes of private data, and at most {limit} here",
                    limit + 1
                )
            );
        }
        assert_eq!(Limit::IWARP.check("rdma_connect", &[0; 255]).unwrap(), 255);
        let too_long = Limit::IWARP.check("rdma_connect", &[0; 256]).unwrap_err();
        assert!(too_long.to_string().contains("at most 255"), "{too_long}");
    }

    #[test]
    fn retry_counts_are_three_bits() {
        let error = |param: ConnParam| to_raw(&param, Limit(56)).map(drop).unwrap_err();
        assert!(to_raw(&ConnParam::new().retry_count(7), Limit(56)).is_ok());
        assert_eq!(
            error(ConnParam::new().retry_count(8)).to_string(),
            "`rdma_connect` failed: retry_count is 8, and at most 7"
        );
        assert_eq!(
            error(ConnParam::new().rnr_retry_count(9)).to_string(),
            "`rdma_connect` failed: rnr_retry_count is 9, and at most 7"
        );
    }

    #[test]
    fn a_shared_receive_queue_is_told() {
        let raw = to_raw(&ConnParam::new().srq(true), Limit(56)).unwrap();
        assert_eq!(raw.srq, 1);
        assert_eq!(to_raw(&ConnParam::new(), Limit(56)).unwrap().srq, 0);
    }

    #[test]
    fn peer_parameters_without_private_data_point_nowhere() {
        let mut raw = ffi::rdma_conn_param::zeroed();
        raw.private_data_len = 200;
        raw.qp_num = 17;
        // SAFETY: the pointer is null.
        let peer = unsafe { PeerParam::from_raw(&raw) };
        assert_eq!((peer.private_data, peer.qp_num.get()), (vec![], 17));
    }
}
