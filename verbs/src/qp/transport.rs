//! The transports, as types.

use std::fmt::Debug;

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_qp_type;

mod sealed {
    pub trait SealedTransport {}

    /// Not of vendors: requests without an address would be undefined.
    pub trait SealedConnected {}
}

/// A transport service: the guarantees and the requests of a queue pair.
pub trait Transport: sealed::SealedTransport + Debug + Send + Sync + 'static {
    /// The number C knows the transport by.
    #[doc(hidden)]
    const RAW: ibv_qp_type;
    /// The transport in the table of states and attributes.
    #[doc(hidden)]
    const RULES: ibv_qp_type = Self::RAW;
    /// The name of the transport.
    const NAME: &'static str;
}

/// A transport between two connected queue pairs, for requests without an address.
#[diagnostic::on_unimplemented(
    message = "a queue pair of `{Self}` is not connected to one peer",
    label = "no connected transport",
    note = "`Rc` and `Uc` are connected; the messages of `Ud` have addresses"
)]
pub trait Connected: Routed + Queued + sealed::SealedConnected {}

/// A transport with acknowledged delivery.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no acknowledged delivery",
    label = "no reliable transport",
    note = "reads, atomic operations and flushes need `Rc`, or `XrcSend` with `op::ToSrq`"
)]
pub trait Reliable: Connected {}

/// A transport with an address for each message.
///
/// # Safety
/// - A request of `ibv_post_send` with an address handle, the number of a queue pair and a Q_Key is a message to that queue
///   pair, as on UD; its handle is in use until its completion.
/// - So is a request of `ibv_wr_set_ud_addr`, which the provider has for every queue pair of the transport made for operations
///   of `ibv_wr_*`.
#[diagnostic::on_unimplemented(
    message = "the messages of `{Self}` have no address of their own",
    label = "no transport of datagrams",
    note = "use a queue pair of `Ud`"
)]
pub unsafe trait Datagram: Queued {}

/// A transport whose queue pairs have queues to post to: every one but [`XrcRecv`].
pub trait Queued: Transport {
    /// Whether the second queue is for receives.
    #[doc(hidden)]
    const RECEIVES: bool = true;
    /// Whether the device completes requests in posting order, as far as [`Order`](super::unordered::Order) knows.
    #[doc(hidden)]
    const IN_ORDER: bool = true;
    /// The vendor's call in place of `ibv_create_qp` and `ibv_create_qp_ex`.
    #[doc(hidden)]
    const CREATE: Option<&'static str> = None;

    /// Creates a queue pair of these attributes.
    ///
    /// # Safety
    /// - The context is open. The objects that the attributes name exist, and are of the context.
    #[doc(hidden)]
    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp {
        // SAFETY: the caller's promise. Assumption: C keeps no pointer to the attributes.
        unsafe { ffi::ibv_create_qp_ex(ctx, attr) }
    }
}

/// A transport whose packets carry a P_Key: every one but raw packets.
pub trait Partitioned: Transport {}

/// A transport whose queue pairs have one peer each, and a path to the peer.
pub trait Routed: Partitioned {}

/// A transport that sends reliable requests: with acknowledgements and retransmission.
pub trait Requester: Routed {}

/// A transport that answers reliable requests.
pub trait Responder: Routed {}

/// A transport of a vendor: queue pairs of `IBV_QPT_DRIVER`, made by the vendor's own call.
///
/// [`qp_builder`](crate::ProtectionDomain::qp_builder) makes queue pairs of the transport beside those of this crate's. This
/// crate keeps the books: the slots of both queues, the entries of the completion queues, the work in flight. Requests are
/// [`VendorRequest`](crate::op::VendorRequest)s, and those of [`op`](crate::op) if the transport is a [`Datagram`].
///
/// # Safety
/// - [`create`](Self::create) returns null, with `errno` set, or a queue pair of the context made of the attributes, in the state RESET, with
///   no other owner, for which `ibv_modify_qp`, `ibv_destroy_qp`, `ibv_post_recv` and the functions of the chosen
///   `send_ops_flags` are defined. It changes nothing in the attributes but the capacities, to the granted ones, not less than
///   requested, and keeps no pointer to the attributes.
/// - A request, and a receive, has at most one completion, in the completion queue of the attributes, with its `wr_id`. The
///   device accesses the memory of a request, and its address handle, only until its completion, the reset or the
///   destruction of the queue pair. This also holds after a reset and a destruction, for completions not polled yet, and in no
///   other queue pair's name.
/// - Every receive that a post accepts completes, one without elements too.
/// - The number of a queue pair changes at most by the transition to RTR.
/// - With [`IN_ORDER`](Self::IN_ORDER), a completion of a queue implies that all requests posted to this queue earlier are
///   complete, too. Without, nothing is assumed: every request has a completion of its own, in any order.
///
/// # Examples
/// Unreliable datagrams in place of a card's transport:
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(16)?);
/// use ibverbs_sys as ffi;
/// use verbs::{Init, QueuePair, Reset, Ud, qp::{Attributes, VendorTransport}};
///
/// #[derive(Debug)]
/// struct Card;
///
/// // SAFETY: a queue pair of UD satisfies the rules, in any order.
/// unsafe impl VendorTransport for Card {
///     const NAME: &'static str = "Card";
///     const CREATE: &'static str = "carddv_create_qp";
///     const IN_ORDER: bool = false;
///     type Attributes = Ud;
///
///     unsafe fn create(
///         ctx: *mut ffi::ibv_context,
///         attr: &mut ffi::ibv_qp_init_attr_ex,
///     ) -> *mut ffi::ibv_qp {
///         let mut attr = *attr;
///         attr.qp_type = ffi::ibv_qp_type::IBV_QPT_UD;
///         // SAFETY: as the caller promises.
///         unsafe { ffi::ibv_create_qp_ex(ctx, &raw mut attr) }
///     }
/// }
///
/// let qp: QueuePair<Card, Reset> = pd.qp_builder(cq, cq).max_send_wr(8).create()?;
/// let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 0x1234).of_vendor())?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[doc(alias = "IBV_QPT_DRIVER")]
pub unsafe trait VendorTransport: Debug + Send + Sync + 'static {
    /// The name of the transport, for errors.
    const NAME: &'static str;
    /// The vendor's call that makes a queue pair, for errors.
    const CREATE: &'static str;
    /// Whether the requests of a queue complete in posting order.
    const IN_ORDER: bool;
    /// Whether queue pairs have a receive queue, or use a shared one. Without, [`create`](Self::create) is given neither, nor a
    /// completion queue for receives.
    const RECEIVES: bool = true;
    /// The transport of this crate with the same states and attributes:
    /// [`Attributes::of_vendor`](crate::qp::Attributes::of_vendor) makes those of this one. `Self` if there is none; then they
    /// come [from C](crate::qp::Attributes::from_raw).
    type Attributes: Transport;

    /// Creates a queue pair of the context.
    ///
    /// # Safety
    /// - The context is open. The objects that the attributes name exist, and are of the context.
    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp;
}

impl<V: VendorTransport> sealed::SealedTransport for V {}

impl<V: VendorTransport> Transport for V {
    const RAW: ibv_qp_type = ibv_qp_type::IBV_QPT_DRIVER;
    const RULES: ibv_qp_type = V::Attributes::RAW;
    const NAME: &'static str = V::NAME;
}

impl<V: VendorTransport> Queued for V {
    const IN_ORDER: bool = V::IN_ORDER;
    const RECEIVES: bool = V::RECEIVES;
    const CREATE: Option<&'static str> = Some(V::CREATE);

    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp {
        // SAFETY: the caller's promise.
        unsafe { <V as VendorTransport>::create(ctx, attr) }
    }
}

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
}

// Spelled out, since the compiler prints these lines in its error messages.
impl Queued for Rc {}
impl Queued for Uc {}
impl Queued for Ud {}
impl Queued for RawPacket {}
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

impl sealed::SealedConnected for Rc {}
impl sealed::SealedConnected for Uc {}
impl Connected for Rc {}
impl Connected for Uc {}

impl Reliable for Rc {}

// SAFETY: of InfiniBand's UD. The table of functions is checked when a queue pair is made.
unsafe impl Datagram for Ud {}

impl Requester for Rc {}
impl Requester for XrcSend {}

impl Responder for Rc {}
impl Responder for XrcRecv {}
