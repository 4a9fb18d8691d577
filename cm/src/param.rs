//! Connection parameters: local ones, and those of the peer.

use std::io;

use rdmacm_sys as ffi;
use verbs::{Error, Result, qp::QpNum};

use crate::{
    depths::{DEVICE_MAX, Depths},
    id::CmId,
    phases::HasDevice,
};

/// Parameters of a connection request or an acceptance.
///
/// The default is librdmacm's: the device's maximum of RDMA reads and atomics, seven retries, and unlimited
/// RNR retries.
///
/// ```
/// // 16 reads at a time in each direction; the peer's application gets 9 bytes.
/// let param = cm::ConnParam::new()
///     .responder_resources(16)
///     .initiator_depth(16)
///     .private_data(*b"version 1");
/// ```
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

/// A message with private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Request,
    Reply,
    Reject,
}

/// Maximum length of private data in a message, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(usize);

impl Limit {
    /// Limit of a message on InfiniBand and RoCE.
    ///
    /// InfiniBand defines the length of the field; with IP addresses, the connection manager itself uses 36
    /// bytes of a request's.
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

    /// Limit of an answer to a datagram peer. iWARP has no datagrams.
    pub(crate) fn of_datagram_reply() -> Self {
        Self::infiniband(Message::Reply, true, false)
    }

    /// Limit on iWARP: the maximum length in librdmacm's parameters.
    const IWARP: Self = Self(255);

    /// Checks the length of private data against the limit, and converts the length for C.
    pub(crate) fn check(self, call: &'static str, data: &[u8]) -> Result<u8> {
        u8::try_from(data.len())
            .ok()
            .filter(|&len| usize::from(len) <= self.0)
            .ok_or_else(|| {
                let reason = format!(
                    "{} bytes of private data, and at most {} here; send the rest in messages",
                    data.len(),
                    self.0
                );
                Error::refused(call, io::ErrorKind::InvalidInput, reason)
            })
    }
}

impl<P: HasDevice> CmId<P> {
    /// Limit of private data in a message of this identifier.
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
    /// Creates the default parameters; see [`ConnParam`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates parameters of zeros, as in a C program with a cleared struct: no RDMA reads or atomics, and no
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

    /// Sets private data for the peer's application: at most 56 bytes in a request and 196 in a reply on
    /// InfiniBand and RoCE, and 255 on iWARP. On InfiniBand and RoCE the peer receives the data padded with
    /// zeros to this length.
    #[must_use]
    pub fn private_data(mut self, data: impl Into<Vec<u8>>) -> Self {
        self.private_data = data.into();
        self
    }

    /// Sets the maximum number of concurrent RDMA reads and atomics served for the peer; 255 means the
    /// device's maximum. Limits the peer's outstanding operations, not the local ones. With 0 the peer cannot read.
    #[doc(alias = "RDMA_MAX_RESP_RES")]
    #[must_use]
    pub fn responder_resources(mut self, count: u8) -> Self {
        self.responder_resources = count;
        self
    }

    /// Sets the maximum number of outstanding local RDMA reads and atomics; 255 means the device's maximum.
    /// The limit in force, reported by [`query`](verbs::QueuePair::query), is the smaller of this and the peer's
    /// [`responder_resources`](Self::responder_resources). If the limit is 0, posting a read is refused.
    #[doc(alias = "RDMA_MAX_INIT_DEPTH")]
    #[must_use]
    pub fn initiator_depth(mut self, count: u8) -> Self {
        self.initiator_depth = count;
        self
    }

    /// Sets whether the local hardware has end-to-end flow control, for the peer's sends.
    #[must_use]
    pub fn flow_control(mut self, available: bool) -> Self {
        self.flow_control = available;
        self
    }

    /// Sets whether the local queue pair uses a shared receive queue, so that the peer does not rely on
    /// receives of this queue pair alone. Create the queue pair with [`srq`](verbs::qp::QueuePairBuilder::srq).
    #[doc(alias = "rdma_create_srq")]
    #[doc(alias = "rdma_create_srq_ex")]
    #[doc(alias = "rdma_destroy_srq")]
    #[must_use]
    pub fn srq(mut self, shared: bool) -> Self {
        self.srq = shared;
        self
    }

    /// Sets the maximum number of retransmissions of an unacknowledged packet before the connection fails: 0
    /// to 7.
    ///
    /// The connecting side chooses for both sides. The accepting side's value is ignored, according to
    /// `rdma_accept(3)`. Soft-RoCE treats 7 as unlimited.
    #[must_use]
    pub fn retry_count(mut self, count: u8) -> Self {
        self.retry_count = count;
        self
    }

    /// Sets the maximum number of retransmissions *by the peer* of a message without a local receive posted
    /// (receiver not ready): 0 to 6; 7 is unlimited.
    ///
    /// According to `rdma_connect(3)`, this limits the sends of the remote side. The limit of local sends is
    /// chosen by the peer.
    #[must_use]
    pub fn rnr_retry_count(mut self, count: u8) -> Self {
        self.rnr_retry_count = count;
        self
    }

    pub(crate) fn depths(&self) -> Depths {
        Depths {
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
        }
    }

    /// Converts the parameters for C. The result points into `self`.
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

/// Parameters of the peer's request or answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerParam {
    /// Private data of the peer's application. On InfiniBand and RoCE, padded with zeros to the maximum
    /// length of the message.
    pub private_data: Vec<u8>,
    /// Maximum number of outstanding local RDMA reads and atomics.
    pub initiator_depth: u8,
    /// Maximum number of concurrent RDMA reads and atomics of the peer.
    pub responder_resources: u8,
    /// Whether the peer's hardware has end-to-end flow control.
    pub flow_control: bool,
    /// Maximum number of retransmissions of an unacknowledged packet, by either side. Meaningless from an
    /// accepting peer.
    pub retry_count: u8,
    /// Maximum number of retransmissions of a local send while the peer has no receive posted.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Number of the peer's queue pair.
    pub qp_num: QpNum,
}

impl PeerParam {
    /// Copies the parameters of an event.
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

/// Copies the private data of an event.
///
/// # Safety
/// - `data` is null, or points to `len` readable bytes.
pub(crate) unsafe fn copy_private_data(data: *const libc::c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: as the caller promised; the bytes are copied at once.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to_raw(param: &ConnParam, limit: Limit) -> Result<ffi::rdma_conn_param> {
        param.to_raw("rdma_connect", limit, QpNum::default())
    }

    #[test]
    fn private_data_limit_depends_on_message_transport_and_address() {
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
                    "`rdma_connect` failed: {} bytes of private data, and at most {limit} here; send the rest in messages",
                    limit + 1
                )
            );
        }
        assert_eq!(Limit::IWARP.check("rdma_connect", &[0; 255]).unwrap(), 255);
        let too_long = Limit::IWARP.check("rdma_connect", &[0; 256]).unwrap_err();
        assert!(too_long.to_string().contains("at most 255"), "{too_long}");
    }

    #[test]
    fn retry_counts_are_limited_to_three_bits() {
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
    fn srq_flag_is_passed_to_c() {
        let raw = to_raw(&ConnParam::new().srq(true), Limit(56)).unwrap();
        assert_eq!(raw.srq, 1);
        assert_eq!(to_raw(&ConnParam::new(), Limit(56)).unwrap().srq, 0);
    }

    #[test]
    fn peer_param_without_private_data_is_empty() {
        let mut raw = ffi::rdma_conn_param::zeroed();
        raw.private_data_len = 200;
        raw.qp_num = 17;
        // SAFETY: the pointer is null.
        let peer = unsafe { PeerParam::from_raw(&raw) };
        assert_eq!((peer.private_data, peer.qp_num.get()), (vec![], 17));
    }
}
