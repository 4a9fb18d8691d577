//! The attributes of a state transition.

use std::{fmt, marker::PhantomData};

use ibverbs_sys as ffi;

use super::{
    state::{Init, Rtr, Rts, State},
    transport::{Connected, Rc, Transport, Uc, Ud},
};
use crate::{
    access::RemoteAccess,
    ah::AddressVector,
    bounded::{AckTimeout, Psn, QpNum, RetryCount, RnrRetry, RnrTimer},
    mtu::Mtu,
};

/// `ibv_qp_attr` and its mask—What a queue pair of transport `T` is given on its way to the state
/// `S`.
///
/// `new` takes what the transition cannot do without, and everything else has a default. The
/// connection manager makes attributes by itself: see the crate `cm`.
///
/// # Examples
/// The whole way up, for a reliable connection over RoCE:
/// ```no_run
/// # use verbs::{Attributes, AddressVector, Gid, Init, Psn, QpNum, QueuePair, Rc, Reset, Rtr, Rts};
/// # fn f(qp: QueuePair<Rc, Reset>, gid: Gid, peer: QpNum, psn: Psn) -> verbs::Result<()> {
/// let way = AddressVector::global(1, 0, gid);
/// let qp = qp.to_init(&Attributes::<Rc, Init>::new(1))?;
/// let qp = qp.to_rtr(&Attributes::<Rc, Rtr>::new(&way, peer, psn))?;
/// let qp = qp.to_rts(&Attributes::<Rc, Rts>::new(psn))?;
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
#[doc(alias = "ibv_qp_attr")]
pub struct Attributes<T, S> {
    attr: ffi::ibv_qp_attr,
    mask: u32,
    target: PhantomData<(T, S)>,
}

/// Adds an attribute: the field, and its bit in the mask.
macro_rules! set {
    ($attributes:ident, $bit:ident, $($field:ident).+ = $value:expr) => {{
        $attributes.attr.$($field).+ = $value;
        $attributes.mask |= ffi::ibv_qp_attr_mask::$bit.0;
    }};
}

impl<T: Transport, S: State> Attributes<T, S> {
    /// Takes attributes as C has them. Which of them count is said by `mask`, of `IBV_QP_*` bits.
    ///
    /// No attribute can make a program unsafe: the kernel validates them, and what is wrong makes
    /// the transition fail, or the queue pair useless.
    pub fn from_raw(mut attr: ffi::ibv_qp_attr, mask: u32) -> Self {
        attr.qp_state = S::RAW;
        Self {
            attr,
            mask,
            target: PhantomData,
        }
    }

    /// The attributes as C has them, and which of them count.
    pub fn as_raw(&self) -> (&ffi::ibv_qp_attr, u32) {
        (&self.attr, self.mask)
    }

    fn empty() -> Self {
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE;
        Self::from_raw(ffi::ibv_qp_attr::zeroed(), mask.0)
    }
}

impl<T: Transport> Attributes<T, Init> {
    fn on_port(port_num: u8) -> Self {
        let mut this = Self::empty();
        set!(this, IBV_QP_PORT, port_num = port_num);
        this.pkey_index(0)
    }

    /// The entry of the port's P_Key table that the queue pair uses; 0 if not set.
    #[must_use]
    pub fn pkey_index(mut self, index: u16) -> Self {
        set!(self, IBV_QP_PKEY_INDEX, pkey_index = index);
        self
    }
}

impl<T: Connected> Attributes<T, Init> {
    /// A queue pair on port `port_num`, counting from 1, whose peer may access nothing.
    pub fn new(port_num: u8) -> Self {
        Self::on_port(port_num).access(RemoteAccess::empty())
    }

    /// What the peer may do to memory whose region allows it, too.
    #[must_use]
    pub fn access(mut self, access: RemoteAccess) -> Self {
        set!(self, IBV_QP_ACCESS_FLAGS, qp_access_flags = access.bits());
        self
    }
}

impl Attributes<Ud, Init> {
    /// A queue pair on port `port_num`, counting from 1, which takes the datagrams that carry
    /// `qkey`.
    pub fn new(port_num: u8, qkey: u32) -> Self {
        let mut this = Self::on_port(port_num);
        set!(this, IBV_QP_QKEY, qkey = qkey);
        this
    }
}

impl<T: Connected> Attributes<T, Rtr> {
    fn to_peer(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        let mut this = Self::empty();
        set!(this, IBV_QP_AV, ah_attr = vector.to_raw());
        set!(this, IBV_QP_DEST_QPN, dest_qp_num = peer.get());
        set!(this, IBV_QP_RQ_PSN, rq_psn = psn.get());
        this.mtu(Mtu::B1024)
    }

    /// The most payload in a packet; 1024 bytes if not set.
    #[must_use]
    pub fn mtu(mut self, mtu: Mtu) -> Self {
        set!(self, IBV_QP_PATH_MTU, path_mtu = mtu.into());
        self
    }
}

impl Attributes<Rc, Rtr> {
    /// The way to the peer, its queue pair, and the sequence number that its first packet has.
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        let mut this = Self::to_peer(vector, peer, psn);
        set!(this, IBV_QP_MIN_RNR_TIMER, min_rnr_timer = 12);
        this.max_dest_rd_atomic(1)
    }

    /// How many RDMA reads and atomics of the peer are served at once; 1 if not set.
    #[must_use]
    pub fn max_dest_rd_atomic(mut self, count: u8) -> Self {
        set!(self, IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic = count);
        self
    }

    /// How long the peer is asked to wait when no receive is posted; code 12, 640 µs, if not set.
    #[must_use]
    pub fn min_rnr_timer(mut self, timer: RnrTimer) -> Self {
        set!(self, IBV_QP_MIN_RNR_TIMER, min_rnr_timer = timer.get());
        self
    }
}

impl Attributes<Uc, Rtr> {
    /// The way to the peer, its queue pair, and the sequence number that its first packet has.
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        Self::to_peer(vector, peer, psn)
    }
}

impl Attributes<Ud, Rtr> {
    /// Nothing: datagrams come from anywhere.
    #[expect(clippy::new_without_default, reason = "the others have no default")]
    pub fn new() -> Self {
        Self::empty()
    }
}

impl<T: Transport> Attributes<T, Rts> {
    fn from_psn(psn: Psn) -> Self {
        let mut this = Self::empty();
        set!(this, IBV_QP_SQ_PSN, sq_psn = psn.get());
        this
    }
}

impl Attributes<Rc, Rts> {
    /// The sequence number of the first packet.
    pub fn new(psn: Psn) -> Self {
        let mut this = Self::from_psn(psn);
        set!(this, IBV_QP_TIMEOUT, timeout = 14);
        set!(this, IBV_QP_RETRY_CNT, retry_cnt = 7);
        set!(this, IBV_QP_RNR_RETRY, rnr_retry = 7);
        this.max_rd_atomic(1)
    }

    /// How long to wait for an acknowledgement; code 14, about 67 ms, if not set.
    #[must_use]
    pub fn timeout(mut self, timeout: AckTimeout) -> Self {
        set!(self, IBV_QP_TIMEOUT, timeout = timeout.get());
        self
    }

    /// How often an unacknowledged packet is sent again; 7 times if not set.
    #[must_use]
    pub fn retry_count(mut self, count: RetryCount) -> Self {
        set!(self, IBV_QP_RETRY_CNT, retry_cnt = count.get());
        self
    }

    /// How often to ask again when the peer is not ready; without end if not set.
    #[must_use]
    pub fn rnr_retry(mut self, count: RnrRetry) -> Self {
        set!(self, IBV_QP_RNR_RETRY, rnr_retry = count.get());
        self
    }

    /// How many RDMA reads and atomics of this side are outstanding at once; 1 if not set.
    #[must_use]
    pub fn max_rd_atomic(mut self, count: u8) -> Self {
        set!(self, IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic = count);
        self
    }
}

impl Attributes<Uc, Rts> {
    /// The sequence number of the first packet.
    pub fn new(psn: Psn) -> Self {
        Self::from_psn(psn)
    }
}

impl Attributes<Ud, Rts> {
    /// The sequence number of the first packet.
    pub fn new(psn: Psn) -> Self {
        Self::from_psn(psn)
    }
}

impl<T: Transport, S: State> fmt::Debug for Attributes<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attributes")
            .field("transport", &T::NAME)
            .field("state", &S::NAME)
            .field("mask", &format_args!("{:#x}", self.mask))
            .finish_non_exhaustive()
    }
}
