//! The transports, as types.

use std::fmt::Debug;

use ibverbs_sys::ibv_qp_type;

mod sealed {
    pub trait SealedTransport {}
}

/// A transport service: the guarantees and the requests of a queue pair.
pub trait Transport: sealed::SealedTransport + Debug + Send + Sync + 'static {
    /// The number C knows the transport by.
    #[doc(hidden)]
    const RAW: ibv_qp_type;
    /// The name of the transport.
    const NAME: &'static str;
}

/// A transport between two connected queue pairs, for requests without an address.
#[diagnostic::on_unimplemented(
    message = "a queue pair of `{Self}` is not connected to one peer",
    label = "no connected transport",
    note = "`Rc` and `Uc` are connected; the messages of `Ud` have addresses"
)]
pub trait Connected: Routed + Queued {}

/// A transport with acknowledged delivery.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no acknowledged delivery",
    label = "no reliable transport",
    note = "reads, atomic operations and flushes need `Rc`, or `XrcSend` with `op::ToSrq`"
)]
pub trait Reliable: Connected {}

/// A transport with an address for each message.
#[diagnostic::on_unimplemented(
    message = "the messages of `{Self}` have no address of their own",
    label = "no transport of datagrams",
    note = "use a queue pair of `Ud`"
)]
pub trait Datagram: Queued {}

/// A transport whose queue pairs have queues to post to: every one but [`XrcRecv`].
pub trait Queued: Transport {
    /// Whether the second queue is for receives.
    #[doc(hidden)]
    const RECEIVES: bool = true;
}

/// A transport whose packets carry a P_Key: every one but raw packets.
pub trait Partitioned: Transport {}

/// A transport whose queue pairs have one peer each, and a path to the peer.
pub trait Routed: Partitioned {}

/// A transport that sends reliable requests: with acknowledgements and retransmission.
pub trait Requester: Routed {}

/// A transport that answers reliable requests.
pub trait Responder: Routed {}

macro_rules! transports {
    ($($(#[$doc:meta])* $name:ident = $raw:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(());

        impl sealed::SealedTransport for $name {}

        impl Transport for $name {
            const RAW: ibv_qp_type = ibv_qp_type::$raw;
            const NAME: &'static str = stringify!($name);
        }
    )*};
}

transports! {
    /// Reliable connection: messages arrive once and in order, or the connection fails. Also the
    /// only transport of iWARP.
    #[doc(alias = "IBV_QPT_RC")]
    Rc = IBV_QPT_RC;
    /// Unreliable connection: messages arrive in order, or not at all.
    #[doc(alias = "IBV_QPT_UC")]
    Uc = IBV_QPT_UC;
    /// Unreliable datagram: each message is one packet with an address of its own.
    #[doc(alias = "IBV_QPT_UD")]
    Ud = IBV_QPT_UD;
    /// Extended reliable connection, the sending end. Each request [names](crate::op::ToSrq) a
    /// shared receive queue of the peer; nothing is received.
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    XrcSend = IBV_QPT_XRC_SEND;
    /// Extended reliable connection, the receiving end, for all shared receive queues of its
    /// [domain](crate::xrcd::XrcDomain). Without queues, in the form of an
    /// [`XrcReceiver`](crate::qp::XrcReceiver).
    #[doc(alias = "IBV_QPT_XRC_RECV")]
    XrcRecv = IBV_QPT_XRC_RECV;
    /// Raw packets: whole Ethernet frames, of any protocol.
    #[doc(alias = "IBV_QPT_RAW_PACKET")]
    RawPacket = IBV_QPT_RAW_PACKET;
    /// A vendor-specific transport; see [`create_with`](crate::qp::QueuePairBuilder::create_with).
    #[doc(alias = "IBV_QPT_DRIVER")]
    Driver = IBV_QPT_DRIVER;
}

// Spelled out, since the compiler prints these lines in its error messages.
impl Queued for Rc {}
impl Queued for Uc {}
impl Queued for Ud {}
impl Queued for RawPacket {}
impl Queued for Driver {}
impl Queued for XrcSend {
    const RECEIVES: bool = false;
}

impl Partitioned for Rc {}
impl Partitioned for Uc {}
impl Partitioned for Ud {}
impl Partitioned for XrcSend {}
impl Partitioned for XrcRecv {}

impl Routed for Rc {}
impl Routed for Uc {}
impl Routed for XrcSend {}
impl Routed for XrcRecv {}

impl Connected for Rc {}
impl Connected for Uc {}

impl Reliable for Rc {}

impl Datagram for Ud {}

impl Requester for Rc {}
impl Requester for XrcSend {}

impl Responder for Rc {}
impl Responder for XrcRecv {}
