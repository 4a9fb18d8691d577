//! The attributes of a state transition.

mod alternate;
mod setters;

use std::{fmt, marker::PhantomData};

use ibverbs_sys as ffi;

use super::{
    state::{Init, Rtr, Rts, Sqd, State},
    transport::{RawPacket, Requester, Responder, Routed, Transport, Uc, Ud, XrcRecv, XrcSend},
};
use crate::{
    access::RemoteAccess,
    ah::AddressVector,
    bounded::{Psn, QpNum},
    mtu::Mtu,
};

pub use alternate::{AlternatePath, MigState};

/// `ibv_qp_attr` and its mask—What a queue pair of transport `T` is given on its way to the state
/// `S`.
///
/// `new` takes what the transition cannot do without, and everything else has a default. The
/// connection manager makes attributes by itself: see the crate `cm`. There are methods for what the
/// transport has in the state, and no others; none for the capacities of the queues, which no kernel
/// lets change.
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

/// Adds an attribute: its fields, and their bit in the mask.
macro_rules! set {
    ($attributes:ident, $bit:ident, $($field:ident = $value:expr),+) => {{
        $($attributes.attr.$field = $value;)+
        $attributes.mask |= ffi::ibv_qp_attr_mask::$bit.0;
    }};
}
use set;

impl<T: Transport, S: State> Attributes<T, S> {
    /// Takes attributes as C has them. Which of them count is said by `mask`, of `IBV_QP_*` bits.
    ///
    /// No attribute can make a program unsafe: the kernel validates them, and what is wrong makes
    /// the transition fail, or the queue pair useless. A transition wants `IBV_QP_STATE` to be among the bits, but for
    /// iWARP, where the kernel makes the transition itself.
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
        this
    }
}

impl<T: Routed> Attributes<T, Init> {
    /// A queue pair on port `port_num`, counting from 1, whose peer may access nothing.
    pub fn new(port_num: u8) -> Self {
        let access = RemoteAccess::empty();
        Self::on_port(port_num).pkey_index(0).access(access)
    }
}

impl Attributes<Ud, Init> {
    /// A queue pair on port `port_num`, counting from 1, which takes the datagrams that carry
    /// `qkey`.
    pub fn new(port_num: u8, qkey: u32) -> Self {
        Self::on_port(port_num).pkey_index(0).qkey(qkey)
    }
}

impl Attributes<RawPacket, Init> {
    /// A queue pair on port `port_num`, counting from 1.
    pub fn new(port_num: u8) -> Self {
        Self::on_port(port_num)
    }
}

impl<T: Routed> Attributes<T, Rtr> {
    fn to_peer(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        let mut this = Self::empty();
        set!(this, IBV_QP_AV, ah_attr = vector.to_raw());
        set!(this, IBV_QP_DEST_QPN, dest_qp_num = peer.get());
        set!(this, IBV_QP_RQ_PSN, rq_psn = psn.get());
        this.mtu(Mtu::B1024)
    }
}

impl<T: Responder> Attributes<T, Rtr> {
    /// The way to the peer, its queue pair, and the sequence number that its first packet has.
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        let mut this = Self::to_peer(vector, peer, psn);
        set!(this, IBV_QP_MIN_RNR_TIMER, min_rnr_timer = 12);
        this.max_dest_rd_atomic(1)
    }
}

impl Attributes<Uc, Rtr> {
    /// The way to the peer, its queue pair, and the sequence number that its first packet has.
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        Self::to_peer(vector, peer, psn)
    }
}

impl Attributes<XrcSend, Rtr> {
    /// The way to the peer, its queue pair that [receives](super::XrcRecv), and the sequence number
    /// that its first packet has.
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        Self::to_peer(vector, peer, psn)
    }
}

/// What needs no attribute to get to a state.
macro_rules! nothing_needed {
    ($($(#[$doc:meta])* $transport:ident, $state:ident;)*) => {$(
        impl Attributes<$transport, $state> {
            $(#[$doc])*
            #[expect(clippy::new_without_default, reason = "the others have no default")]
            pub fn new() -> Self {
                Self::empty()
            }
        }
    )*};
}

nothing_needed! {
    /// Nothing: datagrams come from anywhere.
    Ud, Rtr;
    /// Nothing: packets come from anywhere.
    RawPacket, Rtr;
    /// Nothing: packets go anywhere, as fast as they can.
    RawPacket, Rts;
}

impl<T: Transport> Attributes<T, Rts> {
    fn from_psn(psn: Psn) -> Self {
        let mut this = Self::empty();
        set!(this, IBV_QP_SQ_PSN, sq_psn = psn.get());
        this
    }
}

impl<T: Requester> Attributes<T, Rts> {
    /// The sequence number of the first packet.
    pub fn new(psn: Psn) -> Self {
        let mut this = Self::from_psn(psn);
        set!(this, IBV_QP_TIMEOUT, timeout = 14);
        set!(this, IBV_QP_RETRY_CNT, retry_cnt = 7);
        set!(this, IBV_QP_RNR_RETRY, rnr_retry = 7);
        this.max_rd_atomic(1)
    }
}

impl Attributes<XrcRecv, Rts> {
    /// The sequence number of the first packet, which is an answer.
    pub fn new(psn: Psn) -> Self {
        let mut this = Self::from_psn(psn);
        set!(this, IBV_QP_TIMEOUT, timeout = 14);
        this
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

impl<T: Transport> Attributes<T, Sqd> {
    /// Nothing but to stop sending.
    #[expect(clippy::new_without_default, reason = "the others have no default")]
    pub fn new() -> Self {
        Self::empty()
    }

    /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`—Asks for the event
    /// [`SQ_DRAINED`](crate::EventType::SQ_DRAINED) when what has begun is finished.
    #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
    #[must_use]
    pub fn notify_when_drained(mut self) -> Self {
        set!(self, IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify = 1);
        self
    }
}

/// States whose attributes can be changed without leaving them.
macro_rules! unchanged {
    ($($state:ident)+) => {$(
        impl<T: Transport> Attributes<T, $state> {
            /// Leaves everything as it is, but for what is set now: for
            /// [`QueuePair::modify`](super::QueuePair::modify), and for the way back from [`Sqd`].
            pub fn unchanged() -> Self {
                Self::empty()
            }
        }
    )+};
}

unchanged!(Init Rts Sqd);

impl<T: Transport, S: State> fmt::Debug for Attributes<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attributes")
            .field("transport", &T::NAME)
            .field("state", &S::NAME)
            .field("mask", &format_args!("{:#x}", self.mask))
            .finish_non_exhaustive()
    }
}
