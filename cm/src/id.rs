//! Identifiers: one end of a connection, or a listener.

use std::{
    fmt, io,
    marker::PhantomData,
    net::SocketAddr,
    ptr::{self, NonNull},
    sync::Arc,
};

use ibverbs_sys::ibv_qp_type;
use rdmacm_sys as ffi;
use verbs::{Error, QpNum, Refused, Result, Transport, Ud, error::cvt_neg};

use crate::{
    addr::{self, Addr},
    channel::{ChannelHandle, EventChannel},
    phase::Phase,
    phases::{IdPhase, Idle},
    port_space::PortSpace,
    registry::Key,
};

/// `rdma_cm_id`—One end of a connection, or a listener, in phase `P`.
///
/// What takes time consumes the identifier, which then belongs to its channel; the event that ends
/// it gives it back, in its next phase. Dropping an identifier destroys it, and ends whatever it
/// was doing. The call waits until the kernel's message for the identifier is answered, or has been repeated as often as it
/// may be: for milliseconds as a rule, for more than a minute on Linux 6.1 where the peer is gone after a
/// [notification](EventChannel::notify).
#[doc(alias = "rdma_cm_id")]
#[doc(alias = "rdma_destroy_id")]
pub struct CmId<P: IdPhase> {
    raw: RawId,
    phase: PhantomData<P>,
}

/// The C object, and its place in the channel.
pub(crate) struct RawId {
    // INVARIANT: created, and destroyed only in `drop`.
    raw: NonNull<ffi::rdma_cm_id>,
    key: Key,
    channel: Arc<ChannelHandle>,
    /// The number of the queue pair that the connection was asked for or accepted with.
    qp_num: Option<QpNum>,
}

// SAFETY: librdmacm allows its calls from any thread. Two calls on one identifier are never made at
// once: the calls that change it need ownership or `&mut`, or are made under the lock of the
// registry that it is parked in.
unsafe impl Send for RawId {}
// SAFETY: through a shared identifier only fields are read that are set before it is shared.
unsafe impl Sync for RawId {}

impl RawId {
    /// # Safety
    /// - `raw` is an identifier of `channel` that nobody else destroys, and `key` its entry in the
    ///   registry.
    pub(crate) unsafe fn new(
        raw: NonNull<ffi::rdma_cm_id>,
        key: Key,
        channel: Arc<ChannelHandle>,
    ) -> Self {
        Self {
            raw,
            key,
            channel,
            qp_num: None,
        }
    }

    pub(crate) fn key(&self) -> Key {
        self.key
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }

    pub(crate) fn channel(&self) -> &Arc<ChannelHandle> {
        &self.channel
    }

    /// Notes that the identifier has been moved to another channel.
    pub(crate) fn set_channel(&mut self, channel: Arc<ChannelHandle>) {
        self.channel = channel;
    }
}

impl fmt::Debug for RawId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawId")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Drop for RawId {
    fn drop(&mut self) {
        // An identifier that waits is removed before it is dropped, so this finds none to drop.
        drop(self.channel.registry().remove(self.key));
        // SAFETY: the identifier exists and is destroyed once, here; its channel is open, since it
        // is dropped after this. Every event is acknowledged as soon as it has been read, so librdmacm waits for none; the
        // kernel waits for its own message, whose repetitions are bounded. It can fail only if the channel is broken, and then there is nothing to
        // be done.
        let _: i32 = unsafe { ffi::rdma_destroy_id(self.raw.as_ptr()) };
    }
}

impl EventChannel {
    /// `rdma_create_id(channel, …, RDMA_PS_TCP)`—Creates an identifier for a reliable connection.
    ///
    /// # Errors
    /// As for [`create_id_in`](Self::create_id_in).
    #[doc(alias = "rdma_create_id")]
    pub fn create_id(&self) -> Result<CmId<Idle>> {
        self.create_id_in(PortSpace::Tcp)
    }

    /// `rdma_create_id(channel, …, space)`—Creates an identifier of a port space.
    ///
    /// What C calls the user's context is the identifier's [`key`](CmId::key): let it name an entry
    /// of a map. Every event has it.
    ///
    /// # Errors
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [rdma_create_id(3)](https://man7.org/linux/man-pages/man3/rdma_create_id.3.html)
    #[doc(alias = "rdma_create_id")]
    pub fn create_id_in(&self, space: PortSpace) -> Result<CmId<Idle>> {
        let channel = self.handle();
        let key = channel.registry().add(Phase::Idle);
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open for as long as `self` lives, and `raw` is a valid place for
        // the result. The key is a number that comes back with events, as a pointer that nobody
        // follows.
        let ret = unsafe {
            ffi::rdma_create_id(
                channel.as_ptr(),
                &raw mut raw,
                key.to_context(),
                space.to_raw(),
            )
        };
        let created = cvt_neg("rdma_create_id", ret)
            .and_then(|_| verbs::error::cvt_ptr("rdma_create_id", raw));
        match created {
            // SAFETY: the identifier is fresh, and nobody else's.
            Ok(raw) => Ok(CmId::new(unsafe {
                RawId::new(raw, key, Arc::clone(channel))
            })),
            Err(err) => {
                drop(channel.registry().remove(key));
                Err(err.detail(format!("{space:?}")))
            }
        }
    }
}

impl<P: IdPhase> CmId<P> {
    pub(crate) fn new(raw: RawId) -> Self {
        Self {
            raw,
            phase: PhantomData,
        }
    }

    /// Notes that the identifier goes on to another phase, in which the program has it.
    pub(crate) fn advance<To: IdPhase>(self) -> CmId<To> {
        self.raw
            .channel
            .registry()
            .set_phase(self.raw.key, To::PHASE.0);
        CmId::new(self.raw)
    }

    pub(crate) fn set_qp_num(&mut self, qp_num: QpNum) {
        self.raw.qp_num = Some(qp_num);
    }

    pub(crate) fn expected_qp_num(&self) -> Option<QpNum> {
        self.raw.qp_num
    }

    pub(crate) fn raw(&self) -> &RawId {
        &self.raw
    }

    pub(crate) fn raw_mut(&mut self) -> &mut RawId {
        &mut self.raw
    }

    /// Whether it is for datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        // SAFETY: the identifier exists (invariant), and its type is set for good when it is made.
        unsafe { (*self.as_raw()).qp_type == Ud::RAW }
    }

    /// Makes sure that the identifier is for queue pairs of transport `T`.
    pub(crate) fn check_transport<T: Transport>(&self, call: &'static str) -> Result<()> {
        // SAFETY: the identifier exists (invariant), and its type is set for good when it is made.
        let own = unsafe { (*self.as_raw()).qp_type };
        if own == T::RAW {
            return Ok(());
        }
        let own = QP_TYPES
            .iter()
            .find(|(raw, _)| *raw == own)
            .map_or("others", |(_, name)| name);
        let reason = format!(
            "the identifier, of {:?}, is for {own}, not for {}",
            self.port_space(),
            T::NAME
        );
        Err(Error::refused(call, io::ErrorKind::InvalidInput, reason))
    }

    /// The name of this identifier in this process. Its events carry it, and it stays the same on
    /// whatever channel it is.
    pub fn key(&self) -> Key {
        self.raw.key
    }

    /// The port space it was made in. `None`: one that this crate does not know.
    pub fn port_space(&self) -> Option<PortSpace> {
        // SAFETY: the identifier exists (invariant), and its space is set for good when it is made.
        PortSpace::from_raw(unsafe { (*self.as_raw()).ps })
    }

    /// `rdma_get_local_addr`—The local IP address and port, once it has one.
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.any_local_addr()?.ip()
    }

    /// The same, for an identifier of whatever family.
    pub fn any_local_addr(&self) -> Option<Addr> {
        // SAFETY: the identifier exists (invariant), and the address is inside it.
        let addr = unsafe { ffi::rdma_get_local_addr(self.as_raw()) };
        // SAFETY: librdmacm keeps a whole `sockaddr_storage` there.
        unsafe { addr::read(addr.cast()) }
    }

    /// `rdma_get_peer_addr`—The peer's IP address and port, once there is a peer.
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.any_peer_addr()?.ip()
    }

    /// The same, for an identifier of whatever family.
    pub fn any_peer_addr(&self) -> Option<Addr> {
        // SAFETY: the identifier exists (invariant), and the address is inside it.
        let addr = unsafe { ffi::rdma_get_peer_addr(self.as_raw()) };
        // SAFETY: librdmacm keeps a whole `sockaddr_storage` there.
        unsafe { addr::read(addr.cast()) }
    }

    /// The C object, for calls that this crate does not wrap. It exists for as long as `self`
    /// lives.
    pub fn as_raw(&self) -> *mut ffi::rdma_cm_id {
        self.raw.as_ptr()
    }

    /// Gives the identifier to the channel, and makes the call whose end an event will tell. The
    /// call is made under the lock of the registry, so the event finds the identifier there. When the
    /// channel was dropped, no event will, and the call is refused.
    pub(crate) fn start(
        self,
        phase: Phase,
        name: &'static str,
        call: impl FnOnce(*mut ffi::rdma_cm_id) -> i32,
    ) -> Result<(), Refused<Self>> {
        let (key, channel) = (self.raw.key, Arc::clone(&self.raw.channel));
        let raw = self.raw.as_ptr();
        let mut registry = channel.registry();
        if registry.is_closed() {
            drop(registry);
            let reason = "its event channel was dropped, so nobody would hear how it ends";
            let error = Error::refused(name, io::ErrorKind::InvalidInput, reason);
            return Err(Refused { value: self, error });
        }
        registry.park(self.raw, phase);
        match cvt_neg(name, call(raw)) {
            Ok(_) => Ok(()),
            Err(error) => match registry.unpark(key, P::PHASE.0) {
                Some(raw) => Err(Refused {
                    value: Self::new(raw),
                    error,
                }),
                // Not reached: it was parked three lines up, and the lock is held since.
                None => Ok(()),
            },
        }
    }
}

impl<P: IdPhase> fmt::Debug for CmId<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("phase", &P::NAME)
            .field("key", &self.key())
            .field("local", &self.any_local_addr())
            .field("peer", &self.any_peer_addr())
            .finish_non_exhaustive()
    }
}

/// The names of the transports that an identifier can be for.
const QP_TYPES: [(ibv_qp_type, &str); 5] = [
    (ibv_qp_type::IBV_QPT_RC, "Rc"),
    (ibv_qp_type::IBV_QPT_UC, "Uc"),
    (ibv_qp_type::IBV_QPT_UD, "Ud"),
    (ibv_qp_type::IBV_QPT_XRC_SEND, "XrcSend"),
    (ibv_qp_type::IBV_QPT_XRC_RECV, "XrcRecv"),
];

/// An error for a call that the phase does not allow.
pub(crate) fn wrong_qp(call: &'static str, found: QpNum, expected: Option<QpNum>) -> Error {
    let reason = match expected {
        Some(expected) => {
            format!("queue pair {found} given, and the connection was made for {expected}")
        }
        None => format!("queue pair {found} given to an identifier that has none"),
    };
    Error::refused(call, io::ErrorKind::InvalidInput, reason)
}
