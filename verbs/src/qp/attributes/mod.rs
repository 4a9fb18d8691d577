//! The attributes of a state transition.

mod alternate;
mod setters;

use std::{fmt, marker::PhantomData};

use ibverbs_sys as ffi;

use super::{
    state::{Init, Rtr, Rts, Sqd, State},
    transport::{
        RawPacket, Requester, Responder, Routed, Transport, Uc, Ud, VendorTransport, XrcRecv,
        XrcSend,
    },
};
use crate::{
    access::RemoteAccess,
    ah::AddressVector,
    bounded::{Psn, QpNum},
    mtu::Mtu,
};

pub use alternate::{AlternatePath, MigState};

/// `ibv_qp_attr` and its mask—The attributes of a queue pair of transport `T` for a transition to
/// the state `S`.
///
/// `new` takes the mandatory attributes, and everything else has a default. The connection manager
/// makes attributes itself: see the crate `cm`. Methods exist only for attributes of the transport
/// in the state; there are none for the capacities of the queues, constant in every kernel.
///
/// # Examples
/// All transitions of a reliable connection over RoCE. The program has exchanged the GIDs, the
/// numbers of the queue pairs, and the first sequence number before, for example by TCP:
/// ```
/// # use verbs::{Init, Rtr, Rts, ah::AddressVector, qp::{Attributes, Psn}};
/// # let (peer, connected, cq) = doctest::connected();
/// # let qp = connected.pd().qp_builder::<verbs::Rc>(&cq, &cq).create()?;
/// # let (gid, peer, psn) = (peer.gid(), connected.qp_num(), Psn::from_low_bits(7));
/// let vector = AddressVector::global(1, 0, gid);
/// let qp = qp.to_init(&Attributes::<verbs::Rc, Init>::new(1))?;
/// let qp = qp.to_rtr(&Attributes::<verbs::Rc, Rtr>::new(&vector, peer, psn))?;
/// let qp = qp.to_rts(&Attributes::<verbs::Rc, Rts>::new(psn))?;
/// # Ok::<(), verbs::Error>(())
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

/// Sets an attribute: its fields, and their bit in the mask.
macro_rules! set {
    ($attributes:ident, $bit:ident, $($field:ident = $value:expr),+) => {{
        $($attributes.attr.$field = $value;)+
        $attributes.mask |= ffi::ibv_qp_attr_mask::$bit.0;
    }};
}
use set;

impl<T: Transport, S: State> Attributes<T, S> {
    /// Takes C's attributes. `mask`, of `IBV_QP_*` bits, selects the valid ones.
    ///
    /// No attribute can make a program unsafe: the kernel validates them, and a wrong one makes the
    /// transition fail, or the queue pair useless. A transition needs `IBV_QP_STATE` among the
    /// bits, except on iWARP, where the kernel makes the transition itself.
    pub fn from_raw(mut attr: ffi::ibv_qp_attr, mask: u32) -> Self {
        attr.qp_state = S::RAW;
        Self {
            attr,
            mask,
            target: PhantomData,
        }
    }

    /// The C form of the attributes, and the mask of the valid ones.
    #[doc(alias = "IBV_QP_STATE")]
    pub fn as_raw(&self) -> (&ffi::ibv_qp_attr, u32) {
        (&self.attr, self.mask)
    }

    /// The same attributes for a transport of a vendor that passes through the same states.
    pub fn of_vendor<V: VendorTransport<Attributes = T>>(self) -> Attributes<V, S> {
        Attributes {
            attr: self.attr,
            mask: self.mask,
            target: PhantomData,
        }
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
    /// A queue pair on port `port_num`, counting from 1, for datagrams with the Q_Key `qkey`.
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
    /// The path to the peer, its queue pair, and the sequence number of its first packet.
    #[doc(alias = "IBV_QP_DEST_QPN")]
    #[doc(alias = "IBV_QP_RQ_PSN")]
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        let mut this = Self::to_peer(vector, peer, psn);
        set!(this, IBV_QP_MIN_RNR_TIMER, min_rnr_timer = 12);
        this.max_dest_rd_atomic(1)
    }
}

impl Attributes<Uc, Rtr> {
    /// The path to the peer, its queue pair, and the sequence number of its first packet.
    #[doc(alias = "IBV_QP_DEST_QPN")]
    #[doc(alias = "IBV_QP_RQ_PSN")]
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        Self::to_peer(vector, peer, psn)
    }
}

impl Attributes<XrcSend, Rtr> {
    /// The path to the peer, its [receiving](super::XrcRecv) queue pair, and the sequence number of
    /// its first packet.
    #[doc(alias = "IBV_QP_DEST_QPN")]
    #[doc(alias = "IBV_QP_RQ_PSN")]
    pub fn new(vector: &AddressVector, peer: QpNum, psn: Psn) -> Self {
        Self::to_peer(vector, peer, psn)
    }
}

/// Transitions without mandatory attributes.
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
    /// No attributes: datagrams arrive from any peer.
    Ud, Rtr;
    /// No attributes: packets arrive from any sender.
    RawPacket, Rtr;
    /// Without attributes, packets have any destination, at an unlimited rate.
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
    #[doc(alias = "IBV_QP_SQ_PSN")]
    pub fn new(psn: Psn) -> Self {
        let mut this = Self::from_psn(psn);
        set!(this, IBV_QP_TIMEOUT, timeout = 14);
        set!(this, IBV_QP_RETRY_CNT, retry_cnt = 7);
        set!(this, IBV_QP_RNR_RETRY, rnr_retry = 7);
        this.max_rd_atomic(1)
    }
}

impl Attributes<XrcRecv, Rts> {
    /// The sequence number of the first packet, a response.
    #[doc(alias = "IBV_QP_SQ_PSN")]
    pub fn new(psn: Psn) -> Self {
        let mut this = Self::from_psn(psn);
        set!(this, IBV_QP_TIMEOUT, timeout = 14);
        this
    }
}

impl Attributes<Uc, Rts> {
    /// The sequence number of the first packet.
    #[doc(alias = "IBV_QP_SQ_PSN")]
    pub fn new(psn: Psn) -> Self {
        Self::from_psn(psn)
    }
}

impl Attributes<Ud, Rts> {
    /// The sequence number of the first packet.
    #[doc(alias = "IBV_QP_SQ_PSN")]
    pub fn new(psn: Psn) -> Self {
        Self::from_psn(psn)
    }
}

impl<T: Transport> Attributes<T, Sqd> {
    /// No attributes: the transition only stops the send queue.
    #[expect(clippy::new_without_default, reason = "the others have no default")]
    pub fn new() -> Self {
        Self::empty()
    }

    /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`—Requests the event
    /// [`SQ_DRAINED`](crate::event::EventType::SQ_DRAINED) once the requests in progress are
    /// finished.
    #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
    #[must_use]
    pub fn notify_when_drained(mut self) -> Self {
        set!(self, IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify = 1);
        self
    }
}

/// States with attributes that can be changed in place.
macro_rules! unchanged {
    ($($state:ident)+) => {$(
        impl<T: Transport> Attributes<T, $state> {
            /// Changes only the attributes set afterwards: for
            /// [`QueuePair::modify`](super::QueuePair::modify), and for the return from [`Sqd`].
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
