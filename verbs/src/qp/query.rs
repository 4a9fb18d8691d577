//! Attributes of a queue pair as reported by the device.

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_wr_opcode;

use super::{
    attributes::{AlternatePath, MigState},
    pair::QueuePair,
    state::{QpState, State},
    transport::Transport,
};
use crate::{
    access::RemoteAccess,
    ah::AddressVector,
    bounded::{AckTimeout, Psn, QpNum},
    error::{Result, cvt_errno},
    mtu::Mtu,
    named::named,
};

/// `ibv_qp_attr`, `ibv_qp_init_attr`—All attributes of a queue pair, at the time of the query.
///
/// Attributes not set yet are zero, and those not used by the transport are meaningless. The limit
/// of its [rate](crate::qp::RateLimit) is not reported.
///
/// # References
/// [ibv_query_qp(3)](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html)
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// The current state.
    pub state: QpState,
    /// The current state, as known to the device.
    pub cur_state: QpState,
    /// Maximum payload of a packet.
    pub path_mtu: Mtu,
    /// The progress of migration to the alternate path.
    pub path_mig_state: MigState,
    /// The Q_Key required in received datagrams.
    pub qkey: u32,
    /// The number of the next packet to be received; or of the first one, as set.
    pub rq_psn: Psn,
    /// The number of the next packet to be sent; or of the first one, as set.
    pub sq_psn: Psn,
    /// The peer's queue pair.
    pub dest_qp_num: QpNum,
    /// The access of the peer.
    pub access: RemoteAccess,
    /// The capacities of the queues.
    pub cap: QpCap,
    /// The path to the peer.
    pub path: AddressVector,
    /// The alternate path to the peer.
    pub alternate_path: AlternatePath,
    /// The entry of the port's P_Key table.
    pub pkey_index: u16,
    /// The port, counting from 1.
    pub port_num: u8,
    /// Whether the send queue is being drained: a request in progress is not finished.
    pub sq_draining: bool,
    /// Maximum number of outstanding RDMA reads and atomics of this side.
    pub max_rd_atomic: u8,
    /// Maximum number of the peer's RDMA reads and atomics served at once.
    pub max_dest_rd_atomic: u8,
    /// Delay requested from the peer (RNR NAK), as an [`RnrTimer`](crate::qp::RnrTimer) code.
    pub min_rnr_timer: u8,
    /// Timeout for an acknowledgement, as an [`AckTimeout`] code.
    pub timeout: u8,
    /// Maximum number of retransmissions of an unacknowledged packet.
    pub retry_count: u8,
    /// Maximum number of retries when the peer is not ready; 7 is unlimited.
    pub rnr_retry: u8,
    /// Whether every request has a completion, regardless of its flags.
    pub signals_all: bool,
}

/// `ibv_qp_cap`—The capacities of a queue pair's queues, as granted by the device.
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Requests in flight.
    pub max_send_wr: u32,
    /// Receives in flight.
    pub max_recv_wr: u32,
    /// Elements of a request.
    pub max_send_sge: u32,
    /// Elements of a receive.
    pub max_recv_sge: u32,
    /// Maximum number of inline bytes in a request.
    pub max_inline_data: u32,
}

impl From<ffi::ibv_qp_cap> for QpCap {
    fn from(cap: ffi::ibv_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }
}

impl QpAttr {
    pub(super) fn new(attr: &ffi::ibv_qp_attr, init: &ffi::ibv_qp_init_attr) -> Self {
        let mut alternate = AddressVector::from_raw(&attr.alt_ah_attr);
        alternate.port_num = attr.alt_port_num;
        Self {
            state: QpState(attr.qp_state.0),
            cur_state: QpState(attr.cur_qp_state.0),
            path_mtu: Mtu(attr.path_mtu.0),
            path_mig_state: MigState(attr.path_mig_state.0),
            qkey: attr.qkey,
            rq_psn: Psn::from_low_bits(attr.rq_psn),
            sq_psn: Psn::from_low_bits(attr.sq_psn),
            dest_qp_num: QpNum::from_low_bits(attr.dest_qp_num),
            access: RemoteAccess::from_bits_retain(attr.qp_access_flags),
            cap: init.cap.into(),
            path: AddressVector::from_raw(&attr.ah_attr),
            alternate_path: AlternatePath {
                vector: alternate,
                pkey_index: attr.alt_pkey_index,
                // A value beyond the maximum counts as the maximum.
                timeout: AckTimeout::new(attr.alt_timeout).unwrap_or(AckTimeout::MAX),
            },
            pkey_index: attr.pkey_index,
            port_num: attr.port_num,
            sq_draining: attr.sq_draining != 0,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            timeout: attr.timeout,
            retry_count: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            signals_all: init.sq_sig_all != 0,
        }
    }
}

named! {
    /// `ibv_wr_opcode`—The kind of a request.
    #[doc(alias = "ibv_wr_opcode")]
    WrOpcode(u32) {
        /// RDMA write.
        #[doc(alias = "IBV_WR_RDMA_WRITE")]
        RDMA_WRITE = ibv_wr_opcode::IBV_WR_RDMA_WRITE.0;
        /// RDMA write with immediate data.
        #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
        RDMA_WRITE_WITH_IMM = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM.0;
        /// A message.
        #[doc(alias = "IBV_WR_SEND")]
        SEND = ibv_wr_opcode::IBV_WR_SEND.0;
        /// A message with immediate data.
        #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
        SEND_WITH_IMM = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM.0;
        /// A message with invalidation of an RKey.
        #[doc(alias = "IBV_WR_SEND_WITH_INV")]
        SEND_WITH_INV = ibv_wr_opcode::IBV_WR_SEND_WITH_INV.0;
        /// RDMA read.
        #[doc(alias = "IBV_WR_RDMA_READ")]
        RDMA_READ = ibv_wr_opcode::IBV_WR_RDMA_READ.0;
    }
}

/// `ibv_query_qp`—Queries the attributes of a queue pair.
///
/// # Safety
/// - `qp` exists.
pub(super) unsafe fn query(qp: *mut ffi::ibv_qp) -> Result<QpAttr> {
    // No kernel reports the rate limit, and libibverbs refuses masks with the limit, or with any
    // bit above.
    const ALL: i32 = ffi::ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0 as i32 - 1;
    let mut attr = ffi::ibv_qp_attr::zeroed();
    let mut init = ffi::ibv_qp_init_attr::zeroed();
    // SAFETY: the queue pair exists; C writes to the two places, and keeps no pointer to them.
    let errno = unsafe { ffi::ibv_query_qp(qp, &raw mut attr, ALL, &raw mut init) };
    cvt_errno("ibv_query_qp", errno)?;
    Ok(QpAttr::new(&attr, &init))
}

impl<T: Transport, S: State, SW, RW> QueuePair<T, S, SW, RW> {
    /// `ibv_query_qp`—Queries the attributes of the queue pair. Enters the kernel.
    ///
    /// # Errors
    /// The device is gone.
    ///
    /// # Examples
    /// ```
    /// # let (_peer, qp, _cq) = doctest::connected();
    /// let attr = qp.query()?;
    /// if attr.state == verbs::qp::QpState::ERR {
    ///     println!("the connection to {} has failed", attr.dest_qp_num);
    /// }
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_query_qp(3)](https://man7.org/linux/man-pages/man3/ibv_query_qp.3.html)
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        // SAFETY: the queue pair exists for as long as `self` lives.
        unsafe { query(self.as_raw()) }
    }

    /// `ibv_query_qp_data_in_order`—Whether the bytes of one request with this opcode are written in
    /// order: a thread that reads the new last byte can then read all of them.
    ///
    /// For writes and sends, the peer's requests to this queue pair; for RDMA reads, its own. No
    /// order is implied between different requests.
    ///
    /// # References
    /// [ibv_query_qp_data_in_order(3)](https://man7.org/linux/man-pages/man3/ibv_query_qp_data_in_order.3.html)
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_in_order(&self, opcode: WrOpcode) -> bool {
        let opcode = ibv_wr_opcode(opcode.0);
        // SAFETY: the queue pair exists for as long as `self` lives.
        let in_order = unsafe { ffi::ibv_query_qp_data_in_order(self.as_raw(), opcode, 0) };
        in_order == 1
    }
}
